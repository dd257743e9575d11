"""Follows the run in progress, wherever its results lie, and then the next one of its sweep."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from testbed.shared.run_directory import RunDirectory, read_or_empty
from testbed.shared.yaml_input import InputError
from testbed.watch import screen
from testbed.watch.sweep import State, Sweep

_POLL_S = 0.1
# Between two runs of an experiment, and between the last one and its report.
_TIMEOUT_S = 3.0
_FRESH_S = 3.0
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
    """Runs to follow; None stands for any."""

    results: Path | None = None
    experiment: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        if self.key is not None:
            return f"run {self.key!r}"
        what = f"no run of {self.experiment!r}" if self.experiment is not None else "no run"
        return what if self.results is None else f"{what} in {self.results}"

    def has(self, directory: Path) -> bool:
        """Tell whether a run's directory is one of these."""
        return (
            self.key in (None, Watched(directory).key)
            and self.experiment in (None, directory.parent.name)
            and (self.results is None or directory.parents[1].samefile(self.results))
        )


def running(selection: Selection) -> list[Watched]:
    """Find the runs in progress, the latest first."""
    held, locked = _held_by_commands()
    places = dict.fromkeys(held)
    if selection.results is not None:  # another user's commands do not show what they hold
        places |= dict.fromkeys(selection.results.resolve().glob(f"*/*{_PARTIAL}"))
    began_s: dict[Path, float] = {}
    for directory in places:
        with suppress(OSError):  # it has just ended, or has only begun
            in_progress = directory in held or _in_progress(directory, locked)
            if in_progress and directory.is_dir() and selection.has(directory):
                began_s[directory] = (directory / "config.json").stat().st_mtime
    return [Watched(run) for run in sorted(began_s, key=began_s.__getitem__, reverse=True)]


def watch(selection: Selection, console: Console) -> None:
    """Show the runs until none is in progress any more."""
    if not running(selection):
        what = "is not in progress" if selection.key else "is in progress"
        raise InputError(f"{selection} {what}{_rest_of(selection)}; start one with ./lab run")
    if not console.is_terminal:
        raise InputError("watch: draws in a terminal; without one, ./lab run itself prints lines")
    ended: list[str] = []
    with Live(console=console, auto_refresh=False, screen=True) as display:
        for run, state in _following(selection, ended):
            view = screen.render(run.live(), console.size, ended, state)
            display.update(view, refresh=True)
    for line in ended:
        console.print(Text(line), soft_wrap=True)


def _rest_of(selection: Selection) -> str:
    """Describe the sweep for a message; empty where no plan is named."""
    if selection.results is None or selection.experiment is None or selection.key is not None:
        return ""
    state = Sweep(selection.results / selection.experiment).state()
    if state is None:
        return ""
    more = f", and {len(state.troubles) - 1} more" if state.troubles[1:] else ""
    return f" ({state}{''.join(f'; {trouble}{more}' for trouble in state.troubles[:1])})"


def _following(selection: Selection, ended: list[str]) -> Iterator[tuple[Watched, State | None]]:
    """Yield the run to show and its sweep, until none has been in progress for a while."""
    current: Watched | None = None
    sweep: Sweep | None = None
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
            folder = current.directory.parent
            if sweep is None or sweep.folder != folder:
                sweep = Sweep(folder)
            here = frozenset(run.key for run in runs if run.directory.parent == folder)
            yield current, sweep.state(here)
        time.sleep(_POLL_S)


def _held_by_commands() -> tuple[set[Path], set[int]]:
    """Return the runs' directories that commands have locked, and the inodes of all locks."""
    # A command of another user does not show which files it has open, but its locks' inodes.
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set(), set()
    fields = [line.split() for line in lines if "->" not in line]
    locks = [field for field in fields if len(field) > 5 and field[1] == "FLOCK"]
    held = set()
    for pid in {lock[4] for lock in locks}:
        try:
            opened = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for descriptor in opened:
            with suppress(OSError):  # closed since
                target = Path(os.readlink(descriptor))  # noqa: PTH115 (a socket is no path)
                if target.suffix == _PARTIAL and (target / "config.json").is_file():
                    held.add(target)
    return held, {int(lock[5].rpartition(":")[2]) for lock in locks}


def _in_progress(directory: Path, locked: set[int]) -> bool:
    """Tell whether a command is executing this run; OSError where it has just ended."""
    # The lock is looked up and not tried: trying would get in its way. Where the kernel names
    # another inode (on stacked file systems), fresh samples tell.
    if directory.stat().st_ino in locked:
        return True
    at_s = read_or_empty(directory / "live.json").get("t_s")
    return isinstance(at_s, int | float) and 0 <= time.monotonic() - at_s < _FRESH_S
