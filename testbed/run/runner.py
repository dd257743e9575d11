"""Executes runs that are not ok yet: of labs one after another, simulated ones side by side."""

import functools
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from testbed.capture import recorder
from testbed.experiment import Run
from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.run.processes import how_ended
from testbed.shared import run_directory, units
from testbed.shared.input_error import InputError
from testbed.shared.messages import MessageError
from testbed.shared.run_directory import InUseError, RunDirectory, Verdict, write_status
from testbed.verdict.gates import STOPPING

OnProgress = Callable[[dict[str, Any]], None]
# A run takes some megabytes, and its samples take more until they are packed at its end.
LEAST_FREE_BYTES = 32_000_000
_IN_USE, _INTERRUPTED = 3, 130  # exit statuses
_POLL_S = 5.0
_FORKS = multiprocessing.get_context("fork")


class DiskFullError(InputError):
    """There is no room for the next run."""


@dataclass(frozen=True)
class Outcome:
    """The end of one run."""

    run: Run
    directory: Path
    verdict: Verdict
    reason: str
    executed: bool  # not done before
    may_differ: bool = False  # it is invalid, and may go better another time


def directory_of(results: Path, run: Run) -> RunDirectory:
    return RunDirectory(results / run.experiment.name / run.key)


def require_space(results: Path, run: Run) -> None:
    """Make sure that one more run fits on the disk; a run that is done needs nothing."""
    if directory_of(results, run).verdict() == "ok":
        return
    name = run.experiment.name
    ended = (results / name).glob("*/status.json")
    largest_bytes = max((run_directory.bytes_below(path.parent) for path in ended), default=0)
    needed_bytes = max(LEAST_FREE_BYTES, 2 * largest_bytes)
    free_bytes = shutil.disk_usage(_existing(results)).free
    if free_bytes < needed_bytes:
        free, needed = map(units.size_in_words, (free_bytes, needed_bytes))
        raise DiskFullError(
            f"{results}: {run_directory.DISK_FULL}: {free} are free, and the next run of {name} "
            f"may take {needed}; make room, for example with './lab clean', then give the same "
            "command again"
        )


def require_writable(results: Path) -> None:
    there = _existing(results)
    try:
        with tempfile.TemporaryDirectory(prefix=".lab-", dir=there):
            pass
    except OSError as error:
        where = "" if there == results.absolute() else f" in {there}"
        whom = " to the user who called sudo" if privileges.caller() else ""
        raise InputError(
            f"--out {results}: no results can be written{where}: {error.strerror}{whom}"
        ) from None


def _existing(folder: Path) -> Path:
    """Return the folder, or the one above it that there is."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def outcome(run: Run, place: RunDirectory) -> Outcome:
    """Read from its `status.json` how a run ended that has just been executed."""
    status = run_directory.read_json(place.path / "status.json")
    verdict, gates = status["verdict"], status["gates"]
    stopping = [gate for gate in gates if gate["decides"] and gate["outcome"] in STOPPING]
    repeats = bool(stopping) and all(gate["repeats"] for gate in stopping)
    may_differ = verdict == "invalid" and not repeats
    return Outcome(run, place.path, verdict, status["reason"], executed=True, may_differ=may_differ)


def carry_out(
    place: RunDirectory, config: dict[str, Any], on_progress: OnProgress, *, last: bool = True
) -> None:
    """Execute a configuration in a directory of its own; only `last` is never cut short."""
    if config["capture"]:
        recorder.require()
    with place.open(config) as directory:
        began_at, began_s = run_directory.now(), time.monotonic()

        def end(verdict: Verdict, reason: str) -> None:
            """Write the verdict that the supervisor left out."""
            if not (directory / "status.json").exists():
                wall_s = time.monotonic() - began_s
                write_status(directory, verdict, reason, began_at=began_at, wall_s=wall_s)

        try:
            error = _in_sandbox(directory, on_progress, last=last)
        except KeyboardInterrupt:
            end("interrupted", "interrupted by Ctrl-C or a signal")
            raise
        finally:
            privileges.hand_over_below(directory)
        end("failed", error)


def attempts(
    results: Path,
    run: Run,
    on_progress: OnProgress,
    *,
    capture: Sequence[str] = (),
    retries: int = 0,
) -> Iterator[Outcome]:
    """Execute a run unless it is ok, again while it may go better; yields every outcome."""
    # Mostly, invalid means that the machine, not the protocol, was the limit.
    place = directory_of(results, run)
    if place.verdict() != "ok" and place.finish_left_over():
        privileges.hand_over_below(place.path)  # to this its command did not come
    if place.verdict() == "ok":
        yield Outcome(run, place.path, "ok", "", executed=False)
        return
    # What is recorded changes nothing of what is run: it is not in the key.
    config = run.config() | {"capture": list(capture)}
    for left in reversed(range(retries + 1)):
        carry_out(place, config, on_progress, last=not left)
        ended = outcome(run, place)
        yield ended
        if not ended.may_differ:
            return


def _in_sandbox(directory: Path, on_progress: OnProgress, *, last: bool) -> str:
    """Run the supervisor in a new sandbox, pass its progress on, return why it gave no verdict."""
    error = ""
    with (directory / "logs" / "supervisor.log").open("ab") as log:
        box = sandbox.start("testbed.run.supervisor", output=log)
    try:
        # Until the last process of the lab has gone: nobody holds the connection any more.
        with suppress(MessageError):
            box.messages.send({"directory": str(directory.resolve()), "last": last})
            while True:
                record, _ = box.messages.receive()
                if "error" in record:  # of the first process, which ends with it
                    error = f"{record['error']}; see logs/supervisor.log"
                    continue
                on_progress(record)
        status = box.process.wait()
        return error or f"the supervisor ended with status {status}, without a verdict"
    finally:
        box.stop()


_Execute = Callable[[Path, Run, OnProgress], Outcome]


class _UnderWay(NamedTuple):
    """A run that a child executes, which sends its progress."""

    run: Run
    child: BaseProcess
    on_progress: OnProgress


def simulate_side_by_side(
    results: Path, runs: Sequence[Run], begin: Callable[[Run], OnProgress], execute: _Execute
) -> Iterator[Outcome]:
    """Execute simulated runs that are not ok, one on each processor; yield outcomes as they end."""
    # Each is a fork of this process, which has imported what `execute` needs.

    waiting = deque(runs)
    under_way: dict[Connection, _UnderWay] = {}
    processors = len(os.sched_getaffinity(0))
    if any(run.config()["training"]["pace"]["kind"] != "payload-only" for run in runs):
        importlib.import_module("torch._dynamo")  # the first optimiser would, in each child
    try:
        while waiting or under_way:
            while waiting and len(under_way) < processors:
                run = waiting.popleft()
                place = directory_of(results, run)
                if place.verdict() == "ok":
                    begin(run)
                    yield Outcome(run, place.path, "ok", "", executed=False)
                    continue
                require_space(results, run)
                on_progress = begin(run)
                receiving, sending = _FORKS.Pipe(duplex=False)
                job = functools.partial(_simulate, execute, results, run, sending, os.getpid())
                child = _FORKS.Process(target=job)
                child.start()
                sending.close()
                under_way[receiving] = _UnderWay(run, child, on_progress)
            ready = wait(list(under_way), _POLL_S)
            for begun in under_way.values() if not ready else ():
                begun.on_progress({})  # a round may take minutes
            for receiving in [pipe for pipe in under_way if pipe in ready]:
                begun = under_way[receiving]
                try:
                    begun.on_progress(json.loads(receiving.recv_bytes()))
                except EOFError:
                    receiving.close()
                    del under_way[receiving]
                    yield _outcome_of_child(results, begun)
    finally:  # of those that are under way if it was interrupted
        for begun in under_way.values():
            begun.child.terminate()
        for begun in under_way.values():
            begun.child.join()


def _simulate(execute: _Execute, results: Path, run: Run, sending: Connection, parent: int) -> None:
    def on_progress(record: dict[str, Any]) -> None:
        if os.getppid() != parent:  # it was killed
            raise KeyboardInterrupt
        with suppress(BrokenPipeError):
            sending.send_bytes(json.dumps(record).encode())

    # Ctrl-C goes to both, and the parent sees to it that each is interrupted once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        execute(results, run, on_progress)
    except InUseError:
        sys.exit(_IN_USE)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _interrupt(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # while the verdict is written
    raise KeyboardInterrupt


def _outcome_of_child(results: Path, begun: _UnderWay) -> Outcome:
    begun.child.join()
    status, place = begun.child.exitcode or 0, directory_of(results, begun.run)
    if status == _IN_USE:
        raise InUseError(f"{place.partial}: another process is executing this run")
    if status == _INTERRUPTED:
        raise KeyboardInterrupt
    if status:  # such as one that was killed for its memory
        reason = f"its process: {how_ended(status)}"
        return Outcome(begun.run, place.path, "failed", reason, executed=True)
    return outcome(begun.run, place)
