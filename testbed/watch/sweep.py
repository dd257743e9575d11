"""What became of a sweep so far: its plan beside the runs' folders, read when they change."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.shared.run_directory import PLAN, VERDICTS, read_or_empty

_TICK_NS = 50_000_000  # a second change within a tick of the clock leaves the time as it is


@dataclass(frozen=True, kw_only=True)
class State:
    """Of one experiment's folder."""

    verdicts: Counter[str]
    running: int
    waiting: list[str]  # labels, in the plan's order
    troubles: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts: dict[str, int] = {name: self.verdicts[name] for name in VERDICTS}
        counts |= {"running": self.running, "waiting": len(self.waiting)}
        words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"{sum(counts.values())} planned: {words}"


class Sweep:
    """The folder of one experiment's results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read_at: tuple[int, frozenset[str]] | None = None
        self._state: State | None = None
        self._ended: dict[tuple[str, int], tuple[str, str]] = {}  # verdict and reason, by inode

    def state(self, running: frozenset[str] = frozenset()) -> State | None:
        """What became of it; None where nothing was planned, as for a lab in Python."""
        # A run that begins or ends changes the folder, and so does a plan that grows.
        try:
            changed_ns = self.folder.stat().st_mtime_ns
            is_fresh = time.time_ns() - changed_ns < _TICK_NS
            if is_fresh or (changed_ns, running) != self._read_at:
                self._state = self._read(running)
                self._read_at = changed_ns, running
        except OSError:
            return None  # removed meanwhile
        return self._state

    def _read(self, running: frozenset[str]) -> State | None:
        planned = read_or_empty(self.folder / PLAN).get("runs", [])
        if not planned:
            return None
        with os.scandir(self.folder) as entries:
            inodes = {entry.name: entry.inode() for entry in entries}
        verdicts, waiting, troubles = Counter[str](), [], []
        for each in planned:
            key = str(each["key"])
            if key in running:
                continue
            if key in inodes:
                verdict, reason = self._outcome(key, inodes[key])
                verdicts[verdict] += 1
                if verdict != "ok":
                    troubles.append(f"{key}: {verdict}{': ' if reason else ''}{reason}")
            else:
                waiting.append(_label(each))
        return State(
            verdicts=verdicts,
            running=len(running & {each["key"] for each in planned}),
            waiting=waiting,
            troubles=troubles,
        )

    def _outcome(self, key: str, inode: int) -> tuple[str, str]:
        if (key, inode) not in self._ended:
            status = read_or_empty(self.folder / key / "status.json")
            verdict = str(status.get("verdict", "interrupted"))
            self._ended[key, inode] = verdict, str(status.get("reason", ""))
        return self._ended[key, inode]


def _label(planned: dict[str, Any]) -> str:
    point = "".join(f" {name}={value}" for name, value in planned.get("factors", {}).items())
    return f"{planned['arm']} seed {planned['seed']}{point}"
