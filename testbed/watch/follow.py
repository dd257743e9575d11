"""Follows the run in progress, and then the next one of its sweep."""

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from testbed.shared.run_directory import PLAN, VERDICTS, RunDirectory, read_or_empty
from testbed.shared.yaml_input import InputError
from testbed.watch import screen

_POLL_S = 0.1
# Between two runs of an experiment, and between the last one and its report.
_TIMEOUT_S = 3.0
_FRESH_S = 3.0
_READ_SWEEP_EVERY_S = 1.0
_PARTIAL = ".partial"


@dataclass(frozen=True)
class Watched:
    """A run in progress."""

    directory: Path

    @property
    def key(self) -> str:
        return self.directory.name.removesuffix(_PARTIAL)

    def live(self) -> dict[str, Any]:
        """Read its `live.json`; before and after the workload, its parameters and stage."""
        document = read_or_empty(self.directory / "live.json")
        if document:
            return document
        config = read_or_empty(self.directory / "config.json")
        stage = "building and calibrating the network"
        if (self.directory / "calibration.json").exists():
            stage = "programs begin" if "workload" in config else "training begins"
        if (self.directory / "samples" / "sampler.json").exists():
            stage = "judging what was measured"
        if config.get("simulated"):
            stage = "goes on in virtual time"
        run = {name: config.get(name) for name in ("key", "arm", "seed", "rounds", "experiment")}
        return {"run": run, "stage": stage}

    def outcome(self) -> str:
        """Return its verdict and reason; empty while it has none."""
        finished = RunDirectory(self.directory.with_name(self.key))
        verdict = finished.verdict()
        if verdict is None:
            return ""
        reason = read_or_empty(finished.path / "status.json").get("reason")
        return f"{verdict}: {reason}" if reason else verdict


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Runs to follow in a folder of results; None stands for any."""

    results: Path
    experiment: str | None = None
    key: str | None = None


def running(selection: Selection) -> list[Watched]:
    """Find the runs in progress, the latest first."""
    held, locked = _held_by_commands()
    began_s: dict[Path, float] = {}
    for directory in selection.results.glob(
        f"{selection.experiment or '*'}/{selection.key or '*'}{_PARTIAL}"
    ):
        with suppress(OSError):  # it has just ended, or has only begun
            if directory.resolve() in held or _in_progress(directory, locked):
                began_s[directory] = (directory / "config.json").stat().st_mtime
    return [Watched(run) for run in sorted(began_s, key=began_s.__getitem__, reverse=True)]


def watch(selection: Selection, console: Console) -> None:
    """Show the runs until none is in progress any more."""
    if not running(selection):
        which = f" {selection.key!r}" if selection.key else ""
        planned = ""
        if selection.experiment is not None:
            which += f" of {selection.experiment!r}"
            planned = sweep(selection.results / selection.experiment)
        rest = f" ({planned})" if planned else ""
        raise InputError(
            f"no run{which} in {selection.results} is in progress{rest}; start one with ./lab run"
        )
    if not console.is_terminal:
        raise InputError("watch: draws in a terminal; without one, ./lab run itself prints lines")
    ended: list[str] = []
    with Live(console=console, auto_refresh=False, screen=True) as display:
        for run, planned in _following(selection, ended):
            view = screen.render(run.live(), console.size, ended, planned)
            display.update(view, refresh=True)
    for line in ended:
        console.print(Text(line), soft_wrap=True)


def _following(selection: Selection, ended: list[str]) -> Iterator[tuple[Watched, str]]:
    """Yield the run to show and its sweep, until none has been in progress for a while."""
    current: Watched | None = None
    planned, read_s = "", -_READ_SWEEP_EVERY_S
    seen_s = time.monotonic()
    while time.monotonic() - seen_s < _TIMEOUT_S:
        runs = running(selection)
        if current is not None and current not in runs:
            ended.append(f"{current.key}: {current.outcome() or 'ended without a verdict'}")
            current = None
            if selection.key is not None:
                return
        if runs:
            seen_s = time.monotonic()
            current = current or runs[0]
            if seen_s - read_s >= _READ_SWEEP_EVERY_S:
                planned, read_s = sweep(current.directory.parent, [run.key for run in runs]), seen_s
            yield current, planned
        time.sleep(_POLL_S)


def sweep(folder: Path, running: Collection[str] = ()) -> str:
    """Say how far an experiment is; "" where nothing was planned, as for a lab in Python."""
    counts = Counter[str]()
    for run in read_or_empty(folder / PLAN).get("runs", []):
        key = str(run["key"])
        if key in running:
            counts["running"] += 1
        elif not (folder / key).is_dir():
            counts["waiting"] += 1
        else:
            verdict = read_or_empty(folder / key / "status.json").get("verdict", "interrupted")
            counts[verdict] += 1
    names = (*VERDICTS, "running", "waiting")
    words = ", ".join(f"{counts[name]} {name}" for name in names if counts[name])
    return f"{counts.total()} planned: {words}" if counts else ""


def _held_by_commands() -> tuple[set[Path], set[int]]:
    """Return what commands that hold locks have open, and the inodes of all locks."""
    # A command of another user does not show which files it has open, but its locks' inodes. On
    # stacked file systems the kernel names another inode, and open files tell.
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set(), set()
    fields = [line.split() for line in lines if "->" not in line]
    locks = [lock for lock in fields if lock[1:2] == ["FLOCK"]]
    held = set()
    for pid in {lock[4] for lock in locks}:
        with suppress(OSError):  # another user's, or ended
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # closed since
                    held.add(Path(os.readlink(descriptor)))  # noqa: PTH115 (a socket is no path)
    return held, {int(lock[5].rpartition(":")[2]) for lock in locks}


def _in_progress(directory: Path, locked: Collection[int]) -> bool:
    """Tell whether a command is executing this run; OSError where it has just ended."""
    # The lock is looked up and not tried: trying would get in its way. Where neither the lock nor
    # open files can be seen, fresh samples tell.
    if directory.stat().st_ino in locked:
        return True
    at_s = read_or_empty(directory / "live.json").get("t_s")
    return isinstance(at_s, int | float) and 0 <= time.monotonic() - at_s < _FRESH_S
