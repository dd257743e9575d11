"""Executes the runs of an experiment one after another and skips those that are done."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.capture import recorder
from testbed.experiment import Run
from testbed.lab import sandbox
from testbed.lab.kernel import privileges
from testbed.shared import run_directory, sizes
from testbed.shared.input_error import InputError
from testbed.shared.messages import MessageError
from testbed.shared.run_directory import RunDirectory, Verdict
from testbed.verdict.gates import STOPPING

OnProgress = Callable[[dict[str, Any]], None]
# A run takes some megabytes, and its samples take more until they are packed at its end.
LEAST_FREE_BYTES = 32_000_000


class DiskFullError(InputError):
    """There is no room for the next run."""


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

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
    largest_bytes = max((sizes.bytes_below(path.parent) for path in ended), default=0)
    needed_bytes = max(LEAST_FREE_BYTES, 2 * largest_bytes)
    free_bytes = shutil.disk_usage(_existing(results)).free
    if free_bytes < needed_bytes:
        free, needed = map(sizes.in_words, (free_bytes, needed_bytes))
        raise DiskFullError(
            f"{results}: {run_directory.DISK_FULL}: {free} are free, and the next run of {name} "
            f"may take {needed}; make room, for example with './lab clean', then give the same "
            "command again"
        )


def require_writable(results: Path) -> None:
    """Make sure that results can be written, before anything else is done."""
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
    """The folder, or the one above it that there is."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def outcome(run: Run, place: RunDirectory) -> Outcome:
    """How a run ended that has just been executed, from its `status.json`."""
    status = run_directory.read_json(place.path / "status.json")
    verdict, gates = status["verdict"], status["gates"]
    stopping = [gate for gate in gates if gate["decides"] and gate["outcome"] in STOPPING]
    repeats = bool(stopping) and all(gate["repeats"] for gate in stopping)
    may_differ = verdict == "invalid" and not repeats
    return Outcome(run, place.path, verdict, status["reason"], executed=True, may_differ=may_differ)


def carry_out(place: RunDirectory, config: dict[str, Any], on_progress: OnProgress) -> None:
    """Execute a configuration in a directory of its own."""
    if config["capture"]:
        recorder.require()
    with place.open(config) as directory:
        began_at, began_s = run_directory.now(), time.monotonic()

        def end(verdict: Verdict, reason: str) -> None:
            """Write the verdict that the supervisor left out."""
            if not (directory / "status.json").exists():
                wall_s = time.monotonic() - began_s
                run_directory.write_status(
                    directory, verdict, reason, began_at=began_at, wall_s=wall_s
                )

        try:
            error = _in_sandbox(directory, on_progress)
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
    for _ in range(retries + 1):
        carry_out(place, config, on_progress)
        ended = outcome(run, place)
        yield ended
        if not ended.may_differ:
            return


def _in_sandbox(directory: Path, on_progress: OnProgress) -> str:
    """Run the supervisor in a new sandbox, pass its progress on, return why it gave no verdict."""
    error = ""
    with (directory / "logs" / "supervisor.log").open("ab") as log:
        box = sandbox.start("testbed.run.supervisor", output=log)
    try:
        # Until the last process of the lab has gone: nobody holds the connection any more.
        with suppress(MessageError):
            box.messages.send({"directory": str(directory.resolve())})
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
