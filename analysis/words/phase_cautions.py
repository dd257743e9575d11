"""Writes the cautions about phases: where runs that are compared tolerated different losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.data.evidence import Evidence
from analysis.data.records import section
from analysis.summary import phases
from analysis.words.formatting import PERCENT, joined, number

# Shares of critical rounds that differ by so much change the mean of DBLP's tolerances (0.8 and
# 40.8 %) by 2 points, and the time of rounds that only bytes cost by 3.4 %: 0.05 x ((1 - 0.008) /
# (1 - 0.408) - 1). Less is hard to tell from the spread between seeds.
LIMIT = 0.05
_CHOSEN = {"schedule", "always-critical", "never-critical"}  # these detect nothing
_WHY = (
    "A seed fixes the training, but not which chunks are lost. A detector sees the gradient after "
    "loss, so it may judge the same runs differently when they are repeated. 'phases: {detector: "
    "schedule, from: EXPERIMENT/ARM}' gives all arms the same phases; see "
    "docs/how-to/phase-detector.md."
)


@dataclass(frozen=True)
class _Group:
    """Runs that are compared with each other: the shares of critical rounds, by what differs."""

    common: str  # what they share, in words
    shares: Mapping[str, float]

    @property
    def lowest(self) -> str:
        return min(self.shares, key=self.shares.__getitem__)

    @property
    def highest(self) -> str:
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def spread(self) -> float:
        return self.shares[self.highest] - self.shares[self.lowest]

    def percent(self, name: str) -> str:
        return f"{number(self.shares[name], PERCENT)} %"


def sentences(results: Evidence, summary: Mapping[str, Any]) -> list[str]:
    """What differs, what it means and what to do; empty where phases agree or were chosen."""
    detectors = {section(run.config, "phases").get("detector") for run in results.ok_runs}
    if detectors <= _CHOSEN:
        return []
    points = list(phases.compared(summary))
    found = [*_between_arms(points), *_between_seeds(points)]
    return [*found, _WHY] if found else []


def _between_arms(points: Iterable[phases.Compared]) -> list[str]:
    """Arms with the same seed at the same point."""
    groups = []
    for each in points:
        for seed in sorted({seed for shares in each.shares.values() for seed in shares}, key=int):
            of_seed = {arm: found[seed] for arm, found in each.shares.items() if seed in found}
            if len(of_seed) > 1:
                groups.append(_Group(joined(each.point, f"seed {seed}"), of_seed))
    wide = [group for group in groups if group.spread > LIMIT]
    if not wide:
        return []
    worst = max(wide, key=lambda group: group.spread)
    counted = (
        f" Shares differ by more than {LIMIT * 100:g} points in {len(wide)} of {len(groups)} such "
        "groups of runs."
    )
    return [
        f"Phases differ between arms that are compared. At {worst.common}, "
        f"{worst.percent(worst.highest)} of the rounds were critical with {worst.highest} and "
        f"{worst.percent(worst.lowest)} with {worst.lowest}.{counted * (len(groups) > 1)} In "
        "critical rounds these arms tolerate less loss, so a part of their differences in loss, "
        "time and accuracy comes from the phases alone."
    ]


def _between_seeds(points: Iterable[phases.Compared]) -> list[str]:
    """Seeds of the same arm at the same point."""
    wide: dict[str, _Group] = {}
    for each in points:
        for arm, shares in each.shares.items():
            group = _Group(joined(arm, each.point and f"at {each.point}"), shares)
            if group.spread > LIMIT and (arm not in wide or group.spread > wide[arm].spread):
                wide[arm] = group
    if not wide:
        return []
    worst = max(wide.values(), key=lambda group: group.spread)
    return [
        f"Phases differ between seeds. With {worst.common}, {worst.percent(worst.lowest)} of the "
        f"rounds were critical for seed {worst.lowest} and {worst.percent(worst.highest)} for "
        f"seed {worst.highest}. Every comparison with {_listed(list(wide))} averages over runs "
        "that tolerated different losses."
    ]


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
