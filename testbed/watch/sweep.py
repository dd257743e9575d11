"""Compares a sweep's plan with the runs' folders."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.shared.run_directory import PLAN, VERDICTS, read_or_empty

_READ_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class State:
    """The runs of one experiment's folder."""

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
    """The folder of one experiment's results, read once a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read_s = -_READ_EVERY_S
        self._state: State | None = None

    def state(self, running: frozenset[str] = frozenset()) -> State | None:
        """Return its state; None where nothing was planned, as for a lab in Python."""
        if time.monotonic() - self._read_s >= _READ_EVERY_S:
            self._state, self._read_s = self._read(running), time.monotonic()
        return self._state

    def _read(self, running: frozenset[str]) -> State | None:
        runs = read_or_empty(self.folder / PLAN).get("runs", [])
        if not runs:
            return None
        verdicts, waiting, troubles = Counter[str](), [], []
        for run in runs:
            key = str(run["key"])
            if key in running:
                continue
            if not (self.folder / key).is_dir():
                waiting.append(_label(run))
                continue
            status = read_or_empty(self.folder / key / "status.json")
            verdict, reason = status.get("verdict", "interrupted"), status.get("reason", "")
            verdicts[verdict] += 1
            if verdict != "ok":
                troubles.append(f"{key}: {verdict}{': ' if reason else ''}{reason}")
        return State(
            verdicts=verdicts,
            running=len(running & {run["key"] for run in runs}),
            waiting=waiting,
            troubles=troubles,
        )


def _label(run: dict[str, Any]) -> str:
    point = "".join(f" {name}={value}" for name, value in run.get("factors", {}).items())
    return f"{run['arm']} seed {run['seed']}{point}"
