"""Executes simulated runs side by side, one for each processor that this process may use.

Each run is a fork of this process, which has imported what they need: it is ready in milliseconds.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from testbed.experiment import Run
from testbed.run import runner, simulating
from testbed.run.processes import how_ended
from testbed.run.runner import OnProgress, Outcome
from testbed.shared.run_directory import InUseError

_IN_USE, _INTERRUPTED = 3, 130  # exit statuses
_LOOK_S = 5.0
_FORKS = multiprocessing.get_context("fork")


class _UnderWay(NamedTuple):
    """A run that a child executes, which sends its progress."""

    run: Run
    child: BaseProcess
    on_progress: OnProgress


def execute(
    results: Path, runs: Sequence[Run], begin: Callable[[Run], OnProgress]
) -> Iterator[Outcome]:
    """Execute those runs that are not done; yield how each ended, as they end."""
    waiting = deque(runs)
    under_way: dict[Connection, _UnderWay] = {}
    processors = len(os.sched_getaffinity(0))
    if any(run.config()["training"]["pace"]["kind"] != "payload-only" for run in runs):
        importlib.import_module("torch._dynamo")  # the first optimiser would, in each child
    try:
        while waiting or under_way:
            while waiting and len(under_way) < processors:
                run = waiting.popleft()
                place = runner.directory_of(results, run)
                if place.verdict() == "ok":
                    begin(run)
                    yield Outcome(run, place.path, "ok", "", executed=False)
                    continue
                runner.require_space(results, run)
                on_progress = begin(run)
                receiving, sending = _FORKS.Pipe(duplex=False)
                child = _FORKS.Process(target=_live, args=(results, run, sending, os.getpid()))
                child.start()
                sending.close()
                under_way[receiving] = _UnderWay(run, child, on_progress)
            ready = wait(list(under_way), _LOOK_S)
            for begun in under_way.values() if not ready else ():
                begun.on_progress({})  # a round may take minutes
            for receiving in [pipe for pipe in under_way if pipe in ready]:
                begun = under_way[receiving]
                try:
                    begun.on_progress(json.loads(receiving.recv_bytes()))
                except EOFError:
                    receiving.close()
                    del under_way[receiving]
                    yield _outcome(results, begun)
    finally:  # of those that are under way if it was interrupted
        for begun in under_way.values():
            begun.child.terminate()
        for begun in under_way.values():
            begun.child.join()


def _live(results: Path, run: Run, sending: Connection, parent: int) -> None:
    def on_progress(record: dict[str, Any]) -> None:
        if os.getppid() != parent:  # it was killed, and nobody wants this any more
            raise KeyboardInterrupt
        with suppress(BrokenPipeError):
            sending.send_bytes(json.dumps(record).encode())

    # Ctrl-C goes to both, and the parent sees to it that each is interrupted once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        simulating.execute(results, run, on_progress)
    except InUseError:
        sys.exit(_IN_USE)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _interrupt(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # while the verdict is written
    raise KeyboardInterrupt


def _outcome(results: Path, begun: _UnderWay) -> Outcome:
    begun.child.join()
    status, place = begun.child.exitcode or 0, runner.directory_of(results, begun.run)
    if status == _IN_USE:
        raise InUseError(f"{place.partial}: another process is executing this run")
    if status == _INTERRUPTED:
        raise KeyboardInterrupt
    if status:  # such as one that was killed for its memory
        reason = f"its process: {how_ended(status)}"
        return Outcome(begun.run, place.path, "failed", reason, executed=True)
    return runner.outcome(begun.run, place)
