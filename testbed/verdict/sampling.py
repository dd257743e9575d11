"""Samples a run's queues, flows and processes in a process of its own, on one monotonic clock.

It fills `samples/` of the run directory, and `live.json` 4 times a second. One that fails does not
fail the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from testbed.lab.helpers.process import HelperError, HelperProcess
from testbed.lab.kernel.commands import CommandError
from testbed.lab.network import LabInfo
from testbed.shared import python_module
from testbed.shared.unlinked import open_file

# Writing the files of an hour's run takes a few seconds.
_TIMEOUT_S = 60.0


def order_of(
    network: LabInfo,
    *,
    flows: Mapping[str, Any],
    processes: Mapping[str, int],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """The sampler's first request: what it needs to know of a lab, as plain data."""
    document = network.as_json()
    return {
        "links": document["links"],
        "hosts": document["hosts"],
        "processes": dict(processes),
        "flows": dict(flows),
        "run": {name: config.get(name) for name in ("key", "arm", "seed", "rounds", "experiment")},
    }


class RunningSampler:
    """A sampler at work, or about to begin."""

    def __init__(self, helper: HelperProcess) -> None:
        self._helper = helper
        self._begun = False

    @property
    def pid(self) -> int:
        return self._helper.pid

    def wait(self) -> None:
        """Return when it samples."""
        if not self._begun:
            self._helper.hear()
            self._begun = True

    def write(self) -> None:
        """Write what was sampled so far into the parquet files, and go on."""
        try:
            self.wait()
            problems = list(self._helper.ask(_TIMEOUT_S, do="write")["problems"])
        except HelperError as error:
            problems = [str(error)]
        if problems:
            raise CommandError(f"no samples: {'; '.join(problems)}")


@contextmanager
def sampled(
    directory: Path,
    order: Mapping[str, Any],
    *,
    first: Callable[[], object] = bool,
    from_begin: bool = True,
) -> Iterator[RunningSampler]:
    """Sample for the duration of the body; all files are complete when this returns."""
    # `first` is called before anything is sampled; the body waits for the sampler `from_begin`.
    with open_file(directory / "logs" / "sampler.log", "ab") as log:
        helper = HelperProcess(
            python_module.command("testbed.verdict.sampler", str(directory)),
            name="sampler",
            stderr=log,
            # numpy's threads would only take memory here.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
        ).start()
    try:
        sampler = RunningSampler(helper)
        first()
        with suppress(HelperError):  # its log says why; a sampler that fails costs no run
            helper.tell(**order)
            if from_begin:
                sampler.wait()
        yield sampler
    finally:
        helper.finish(_TIMEOUT_S)
