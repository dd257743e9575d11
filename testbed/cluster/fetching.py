"""Stores the results that another machine sent as those of this one's runs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.cluster import archive
from testbed.experiment import Run
from testbed.lab.kernel import privileges
from testbed.run import runner
from testbed.run.runner import Outcome
from testbed.shared import run_directory


def store(results: Path, runs: Sequence[Run], packed: bytes) -> list[Outcome]:
    """Put the folders of some runs in their place; an earlier attempt at one is kept beside it.

    Args:
        results: the folder of all results.
        runs: those of one experiment that were asked for.
        packed: what `archive.pack` gave on the other machine.

    Raises:
        ValueError: these are not the results of these runs. Nothing is stored then.
        DiskFullError: there may be no room for them.
    """
    runner.require_space(results, runs[0])
    folder = results / runs[0].experiment.name
    names = {run.key for run in runs}
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder) as incoming:
        archive.unpack(packed, Path(incoming), names)
        for run in runs:
            config = run_directory.read_or_empty(Path(incoming, run.key, "config.json"))
            status = run_directory.read_or_empty(Path(incoming, run.key, "status.json"))
            if config.get("key") != run.key or status.get("verdict") not in run_directory.VERDICTS:
                raise ValueError(f"{run.key} is missing, or has no verdict")
        for run in runs:
            place = runner.directory_of(results, run)
            place.accept(Path(incoming, run.key))
            privileges.hand_over_below(place.path)
    return [runner.outcome(run, runner.directory_of(results, run)) for run in runs]
