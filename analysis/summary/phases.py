"""Which arms tolerate loss by the phase of training, and how many of their rounds were critical."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analysis.data.evidence import Evidence, Run
from analysis.data.per_run import TOLERANCE_VARIED
from analysis.statistics import byte_bound
from analysis.summary.lookup import factors_text, points

Shares = dict[str, dict[str, float]]  # arm -> seed (a text, as JSON has it) -> share
_LEGS = ("gather", "broadcast")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Runs that are compared with each other: one point of the sweep, and what they share."""

    point: str
    shares: Shares


def phased_arms(results: Evidence, measured: pl.DataFrame) -> list[str]:
    """The arms whose tolerance depends on the phase, by their settings or by what was logged."""
    logged = set(measured.filter(TOLERANCE_VARIED)["run_key"])
    found = {run.arm for run in results.ok_runs if run.key in logged or _has_two(run)}
    return [arm for arm in results.arms if arm in found]


def critical_shares(runs: Sequence[Run], measured: pl.DataFrame, phased: Sequence[str]) -> Shares:
    """The share of critical rounds of each run of a phased arm; the runs are of one point."""
    known = dict(measured.select("run_key", "critical_share").iter_rows())
    found: Shares = {}
    for arm in phased:
        for run in sorted(runs, key=lambda run: run.seed):
            if run.arm == arm and (share := known.get(run.key)) is not None:
                found.setdefault(arm, {})[str(run.seed)] = share
    return found


def compared(summary: Mapping[str, Any]) -> Iterator[Compared]:
    """The shares of a summary, point by point."""
    cells: Sequence[Mapping[str, Any]] = points(summary) or [dict(summary)]
    for cell in cells:
        yield Compared(
            point=factors_text(cell.get("factors", {})), shares=cell.get("critical_shares", {})
        )


def arms(summary: Mapping[str, Any]) -> list[str]:
    """The arms of a summary whose tolerance depends on the phase."""
    found = {arm for each in compared(summary) for arm in each.shares}
    return [arm for arm in summary["arms"] if arm in found]


def _has_two(run: Run) -> bool:
    found = (byte_bound.tolerances(run.config, leg) for leg in _LEGS)
    return any(each is not None and each[0] != each[1] for each in found)
