"""How the first process of every lab begins: of a run, of a script's lab and of the prompt's.

What takes longest is the import of two frameworks, the controller's and torch. So their processes
are started before all else, and this module imports little: the first process imports the rest of
what it needs, and builds the network, beside them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.lab import sandbox
from testbed.lab.kernel.commands import CommandError
from testbed.run.processes import ProcessError, Processes
from testbed.shared import own_code, python_module
from testbed.shared.input_error import InputError

# What goes wrong in a lab for a reason that one line says; anything else deserves a traceback.
EXPECTED = (InputError, CommandError, ProcessError, ConnectionError)


@dataclass(frozen=True, kw_only=True)
class Inside:
    """A sandbox that is ready for a lab."""

    private: Path  # a folder that goes with the sandbox
    directory: Path  # of the run
    processes: Processes

    @property
    def logs(self) -> Path:
        """The folder for the logs of all programs."""
        return self.directory / "logs"

    @property
    def impairment_log(self) -> Path:
        """The file to which the controller appends what it did."""
        return self.directory / "events" / "impairments.jsonl"

    @property
    def description(self) -> Path:
        """The file from which the controller learns the network and its impairments."""
        return self.private / "lab.json"

    def start_controller(self, framework: str) -> None:
        """Start the controller; it reads its description when it is told a line."""
        address, port = sandbox.CONTROLLER_ADDRESS
        self.processes.spawn(
            "controller",
            [
                *python_module.command("controllers", f"--framework={framework}"),
                *(f"--lab-file={self.description}", "--when-told"),
                *(f"--ofp-listen-host={address}", f"--ofp-tcp-listen-port={port}"),
            ],
            stdin=subprocess.PIPE,
        )

    def start_training(self, progress_descriptor: int) -> None:
        """Start the process that trains; it loads model and data until it is told the hosts."""
        self.processes.spawn(
            "training",
            python_module.command("testbed.run.training_launcher", str(self.directory)),
            stdin=subprocess.PIPE,
            pass_fds=(progress_descriptor,),
        )


def prepare(config: Mapping[str, Any], directory: Path | None = None) -> Inside:
    """Make this process's sandbox ready for the lab of a run; start its controller."""
    own_code.expect(config.get("code", {}))
    private = sandbox.prepare()
    if directory is not None:
        directory = sandbox.pinned(directory)
    else:
        directory = private / "run"
        for name in ("events", "logs"):
            (directory / name).mkdir(parents=True)
    place = Inside(private=private, directory=directory, processes=Processes(directory / "logs"))
    place.start_controller(config["controller"])
    return place
