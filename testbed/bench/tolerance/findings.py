"""Compares the study's trainings with those without loss, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.statistics.intervals import NOTHING, Estimate, difference_interval, ratio_interval

HARMLESS_POINTS = 1.0  # of accuracy, or per cent of perplexity

Record = Mapping[str, Any]


class Group(NamedTuple):
    """Trainings that differ in loss and seed alone."""

    task: str
    cause: str
    order: str
    filling: str
    when: str

    @property
    def label(self) -> str:
        """For a legend: what is lost, and what stands in for it."""
        lost = "network" if self.cause == "network" else self.order
        return f"{lost}, {self.filling}"


def harm(records: Sequence[Record]) -> dict[Group, dict[float, Estimate]]:
    """For each group, by loss: how much worse the final metric is than without loss.

    In percentage points of accuracy that are missing, or in per cent of perplexity that are too
    much; negative is better, infinite where a seed's model diverged. Seeds that lack either run are
    left out.
    """
    reference = {
        (each["task"], each["seed"]): each["final"] for each in records if each["loss"] == 0
    }
    finals: dict[Group, dict[float, dict[int, Any]]] = {}
    for each in records:
        if each["loss"] == 0:
            continue
        group = Group(each["task"], each["cause"], each["order"], each["filling"], each["when"])
        finals.setdefault(group, {}).setdefault(each["loss"], {})[each["seed"]] = each["final"]
    metrics = {each["task"]: each["metric"] for each in records}
    return {
        group: {
            loss: _worse(metrics[group.task], seeds, reference, group.task)
            for loss, seeds in sorted(by_loss.items())
        }
        for group, by_loss in finals.items()
    }


def _worse(
    metric: str, finals: Mapping[int, Any], reference: Mapping[tuple[str, int], Any], task: str
) -> Estimate:
    seeds = sorted(seed for seed in finals if (task, seed) in reference)
    if not seeds:
        return NOTHING
    without = [reference[task, seed] for seed in seeds]
    lossy = [finals[seed] for seed in seeds]
    if None in lossy:
        return Estimate(value=math.inf, n=len(seeds))
    if metric == "accuracy":
        return _scaled(difference_interval(without, lossy), 100.0, 0.0)
    return _scaled(ratio_interval(lossy, without), 100.0, -100.0)


def _scaled(estimate: Estimate, factor: float, offset: float) -> Estimate:
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (None if each is None else each * factor + offset for each in ends)
    values = tuple(each * factor + offset for each in estimate.values)
    return Estimate(value=value, low=low, high=high, n=estimate.n, values=values)


def largest_harmless(by_loss: Mapping[float, Estimate]) -> float | None:
    """The largest loss up to which no loss costs more than `HARMLESS_POINTS`, all of its interval.

    None where the smallest does already.
    """
    found = None
    for loss, estimate in sorted(by_loss.items()):
        worst = estimate.value if estimate.high is None else estimate.high
        worst = max(estimate.values, default=worst)
        if worst is None or worst > HARMLESS_POINTS:
            break
        found = loss
    return found


def rows(found: Mapping[Group, Mapping[float, Estimate]]) -> Iterable[list[str]]:
    """A line per group for a table: what it is, the harm by loss, the largest harmless loss."""
    for group, by_loss in found.items():
        told = ", ".join(
            f"{loss * 100:g} %: {_text(estimate)}" for loss, estimate in by_loss.items()
        )
        largest = largest_harmless(by_loss)
        limit = "none" if largest is None else f"{largest * 100:g} %"
        yield [group.task, group.label, group.when, told, limit]


def _text(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    return "diverges" if math.isinf(estimate.value) else f"{estimate.value:+.1f}"
