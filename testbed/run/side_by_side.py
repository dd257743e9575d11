"""Executes simulated runs side by side, one for each processor that this process may use.

Runs are independent, and each is a fork of this process, which has imported what they need. So a
run is ready in milliseconds, its memory is given back at its end, and its results are those that it
has alone: its numbers come from its seed. `taskset` limits the processors.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from testbed.experiment import Run
from testbed.run import runner, simulating
from testbed.run.runner import OnProgress, Outcome
from testbed.shared.progress_pipe import ProgressWriter
from testbed.shared.run_directory import InUseError

_DONE, _IN_USE, _INTERRUPTED = 0, 3, 130
_LOOK_S = 5.0


@dataclass
class _UnderWay:
    """A run that a child executes, which tells its progress through a pipe."""

    run: Run
    child: int
    told: int
    on_progress: OnProgress
    unread: bytes = field(default=b"")

    def hear(self) -> bool:
        """Takes what it tells; returns False once it has ended."""
        read = os.read(self.told, 1 << 16)
        *lines, self.unread = (self.unread + read).split(b"\n")
        for line in lines:
            self.on_progress(json.loads(line))
        return bool(read)


def execute(
    results: Path, runs: Sequence[Run], begin: Callable[[Run], OnProgress]
) -> Iterator[Outcome]:
    """Execute those runs that are not done; yield how each ended, as they end."""
    waiting = deque(runs)
    under_way: dict[int, _UnderWay] = {}
    processors = len(os.sched_getaffinity(0))
    if any(run.config()["training"]["pace"]["kind"] != "payload-only" for run in runs):
        importlib.import_module("torch._dynamo")  # the first optimiser would, in each child
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or under_way:
                while waiting and len(under_way) < processors:
                    run = waiting.popleft()
                    place = runner.directory_of(results, run)
                    if place.verdict() == "ok":
                        begin(run)
                        yield Outcome(run, place.path, "ok", "", executed=False)
                        continue
                    runner.require_space(results, run)
                    begun = _begin(results, run, begin(run))
                    under_way[begun.child] = begun
                    selector.register(begun.told, selectors.EVENT_READ, begun)
                ready = selector.select(_LOOK_S) if under_way else []
                for begun in under_way.values() if not ready else ():
                    begun.on_progress({})  # a round may take minutes
                for key, _ in ready:
                    begun = key.data
                    if not begun.hear():
                        selector.unregister(begun.told)
                        del under_way[begun.child]
                        yield _outcome(results, begun)
    finally:  # of those that are under way if it was interrupted
        for begun in under_way.values():
            os.kill(begun.child, signal.SIGTERM)
        for begun in under_way.values():
            os.waitpid(begun.child, 0)
            os.close(begun.told)


def _begin(results: Path, run: Run, on_progress: OnProgress) -> _UnderWay:
    parent = os.getpid()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        _live(results, run, ProgressWriter(tell), parent)
    os.close(tell)
    return _UnderWay(run, child, told, on_progress)


def _live(results: Path, run: Run, progress: ProgressWriter, parent: int) -> NoReturn:
    def on_progress(record: dict[str, Any]) -> None:
        if os.getppid() != parent:  # it was killed, and nobody wants this any more
            raise KeyboardInterrupt
        progress.record(record)

    status = 1
    # Ctrl-C goes to both, and the parent sees to it that each is interrupted once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        simulating.execute(results, run, on_progress)
        status = _DONE
    except InUseError:
        status = _IN_USE
    except KeyboardInterrupt:
        status = _INTERRUPTED
    finally:
        os._exit(status)


def _interrupt(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # while the verdict is written
    raise KeyboardInterrupt


def _outcome(results: Path, begun: _UnderWay) -> Outcome:
    os.close(begun.told)
    _, ended = os.waitpid(begun.child, 0)
    status, place = os.waitstatus_to_exitcode(ended), runner.directory_of(results, begun.run)
    if status == _IN_USE:
        raise InUseError(f"{place.partial}: another process is executing this run")
    if status == _INTERRUPTED:
        raise KeyboardInterrupt
    if status != _DONE:  # such as one that was killed for its memory
        how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
        return Outcome(begun.run, place.path, "failed", f"its process {how}", executed=True)
    return runner.outcome(begun.run, place)
