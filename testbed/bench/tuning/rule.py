"""The rule by which `./lab tune` chooses learning rates.

Candidates are powers of two times a thousandth. Each is trained with seeds that no experiment of
the lab uses, and evaluated on a validation part. The best mean wins, of equal ones the smaller
rate. A candidate is out when one of its trainings diverges.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

CANDIDATES = tuple(0.001 * 2**power for power in range(1, 9))
SEEDS = (1001, 1002, 1003)

Record = Mapping[str, Any]


class Group(NamedTuple):
    """The trainings among which one rate is chosen."""

    point: str
    arm: str


class Choice(NamedTuple):
    """What is chosen, the mean of its metric, and whether it is at an end of the candidates."""

    learning_rate: float
    metric: str
    mean: float
    at_end: bool


def means(records: Sequence[Record]) -> dict[Group, dict[float, float | None]]:
    """For each group, by rate: the mean of the metric; None where a training diverged."""
    values: dict[Group, dict[float, list[float | None]]] = {}
    for each in records:
        by_rate = values.setdefault(Group(each["point"], each["arm"]), {})
        by_rate.setdefault(each["learning_rate"], []).append(each["value"])
    return {
        group: {rate: _mean(found) for rate, found in sorted(by_rate.items())}
        for group, by_rate in sorted(values.items())
    }


def choices(records: Sequence[Record]) -> Iterator[tuple[Group, Choice | None]]:
    """What is chosen for each group; None where all diverged."""
    metric = {Group(each["point"], each["arm"]): each["metric"] for each in records}
    for group, by_rate in means(records).items():
        known = {rate: mean for rate, mean in by_rate.items() if mean is not None}
        if not known:
            yield group, None
            continue
        best = max if metric[group] == "accuracy" else min
        target = best(known.values())
        rate = min(rate for rate, mean in known.items() if mean == target)
        ends = (min(by_rate), max(by_rate))
        yield group, Choice(rate, metric[group], target, rate in ends)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.fmean(known) if len(known) == len(values) else None
