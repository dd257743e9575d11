"""Executes the runs of a command on the workers of a scheduler, and shows how they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.cli import progress
from testbed.cluster import fetching
from testbed.cluster.sharing import Workers, share_out
from testbed.experiment import Run, blocks
from testbed.run import runner
from testbed.run.runner import Outcome


@contextmanager
def connected(address: str, capture: Sequence[str]) -> Iterator[Workers]:
    """The workers of the scheduler at `address`; what goes on at the end of the body is ended.

    Raises:
        InputError: there is no such scheduler, or it must not be used.
    """
    from testbed.cluster.dask_workers import DaskWorkers

    workers = DaskWorkers(address, capture)
    try:
        yield workers
    finally:
        workers.close()


def execute(
    results: Path,
    runs: Sequence[Run],
    workers: Workers,
    shown: progress.RunProgress,
    *,
    retries: int,
) -> list[Outcome]:
    """Have workers execute what of some runs is not done; returns how all ended, in their order.

    Args:
        results: the folder of all results, into which workers' results come as they end.
        runs: what this command is to execute.
        workers: who executes it.
        shown: the display.
        retries: how often a block with an invalid run is tried again.

    Raises:
        InputError: no worker can execute them, or the disk is full.
    """
    outcomes: dict[str, Outcome] = {}

    def end(outcome: Outcome) -> None:
        shown.begin(outcome.run.label).end(outcome)
        outcomes[outcome.run.key] = outcome

    left = []
    for run in runs:
        place = runner.directory_of(results, run)
        if place.verdict() == "ok":
            end(Outcome(run, place.path, "ok", "", executed=False))
        else:
            left.append(run)
    given_up = share_out(
        blocks.blocks(left),
        workers,
        retries=retries,
        accept=lambda block, result: fetching.store(results, block, result["packed"]),
        end=end,
        say=shown.say,
    )
    for run in given_up:
        place = runner.directory_of(results, run)
        end(Outcome(run, place.path, "failed", "lost with its workers", executed=True))
    return [outcomes[run.key] for run in runs]
