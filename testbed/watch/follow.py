"""Follows the run in progress below a results folder, and then the next one.

It only reads: the run directories that are locked by a command, and the `live.json` that each run's
sampler rewrites 4 times a second.
"""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from testbed.shared.run_directory import RunDirectory
from testbed.shared.yaml_input import InputError
from testbed.watch import screen

_LOOK_S = 0.1
_LINE_S = 1.0
# Between two runs of an experiment, and between the last one and its report.
_PATIENCE_S = 3.0
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
        """Its `live.json`; before training begins, its parameters and stage."""
        document = _read(self.directory / "live.json")
        if document:
            return document
        config = _read(self.directory / "config.json")
        calibrated = (self.directory / "calibration.json").exists()
        stage = "training begins" if calibrated else "building and calibrating the network"
        run = {name: config.get(name) for name in ("key", "arm", "seed", "rounds", "experiment")}
        return {"run": run, "stage": stage}

    def outcome(self) -> str:
        """Its verdict and reason; empty while it has none."""
        finished = RunDirectory(self.directory.with_name(self.key))
        verdict = finished.verdict()
        if verdict is None:
            return ""
        reason = _read(finished.path / "status.json").get("reason")
        return f"{verdict}: {reason}" if reason else verdict


def running(results: Path, key: str | None = None) -> list[Watched]:
    """The runs in progress, the latest first."""
    found = []
    locked = _locked_inodes()
    for directory in results.glob(f"*/*{_PARTIAL}"):
        run = Watched(directory)
        if (key is None or run.key == key) and _in_progress(directory, locked):
            found.append((_began(directory), run))
    return [run for _, run in sorted(found, key=lambda each: each[0], reverse=True)]


def watch(results: Path, key: str | None, console: Console) -> None:
    """Show what runs below `results` until nothing does any more.

    Raises:
        InputError: nothing is running.
    """
    found = running(results, key)
    if not found:
        what = f"run {key!r} is not in progress" if key else "no run is in progress"
        raise InputError(f"{results}: {what}; start one with ./lab run, or name its folder")
    ended: list[str] = []
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, screen=True) as display:
            for run in _following(results, key, ended):
                view = screen.render(run.live(), console.size, ended)
                display.update(view, refresh=True)
        for line in ended:
            console.print(Text(line), soft_wrap=True)
        return
    printed_s = 0.0
    for run in _following(results, key, ended):
        while ended:
            print(ended.pop(0), flush=True)
        if time.monotonic() - printed_s >= _LINE_S:
            printed_s = time.monotonic()
            print(f"{run.key}: {screen.line(run.live())}", flush=True)
    for line in ended:
        print(line, flush=True)


def _following(results: Path, key: str | None, ended: list[str]) -> Iterator[Watched]:
    """The run to show, again and again, until nothing has run for a while.

    How a run ended is added to `ended`.
    """
    current: Watched | None = None
    seen_s = time.monotonic()
    while time.monotonic() - seen_s < _PATIENCE_S:
        found = running(results, key)
        if current is not None and current not in found:
            ended.append(f"{current.key}: {current.outcome() or 'ended without a verdict'}")
            current = None
            if key is not None:
                return
        if found:
            seen_s = time.monotonic()
            current = current or found[0]
            yield current
        time.sleep(_LOOK_S)


def _locked_inodes() -> set[int]:
    """The inodes on which some process holds a lock."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set()
    fields = [line.split() for line in lines if "->" not in line]
    places = [each[5] for each in fields if len(each) > 5 and each[1] == "FLOCK"]
    return {int(place.rpartition(":")[2]) for place in places}


def _in_progress(directory: Path, locked: set[int]) -> bool:
    """Whether a command is executing this run.

    It holds the directory's lock, which is looked up and not tried: trying would get in its way.
    Where the kernel names another inode (on stacked file systems), fresh samples tell.
    """
    try:
        if os.stat(directory).st_ino in locked:  # noqa: PTH116
            return True
    except OSError:
        return False
    at_s = _read(directory / "live.json").get("t_s")
    return isinstance(at_s, int | float) and 0 <= time.monotonic() - at_s < _FRESH_S


def _began(directory: Path) -> float:
    try:
        return (directory / "config.json").stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none to read at this moment."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
