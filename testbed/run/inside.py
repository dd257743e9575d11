"""How the first process of every lab begins: of a run, of a script's lab and of the prompt's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.run.processes import Processes
from testbed.shared import own_code


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A sandbox that is ready for a lab.

    Attributes:
        private: the sandbox's private folder, which goes with it.
        directory: of the run.
        processes: starts and watches the lab's processes.
    """

    private: Path
    directory: Path
    processes: Processes

    @property
    def logs(self) -> Path:
        """The folder for the logs of all programs."""
        return self.directory / "logs"

    @property
    def impairment_log(self) -> Path:
        """The file to which the controller appends what it did."""
        return self.directory / "events" / "impairments.jsonl"


def prepare(config: Mapping[str, Any], directory: Path | None = None) -> Inside:
    """Make this process's sandbox ready for the lab of a run's configuration.

    Args:
        config: own code that it names is loaded from now on as it was when the run was planned.
        directory: of the run; None: one in memory, which goes with the sandbox.

    Raises:
        InputError: own code has changed since.
    """
    if directory is not None:
        privileges.admit(directory)
    own_code.expect(config.get("code", {}))
    private = sandbox.prepare()
    directory = directory or private / "run"
    for name in ("events", "logs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    return Inside(private=private, directory=directory, processes=Processes(directory / "logs"))
