"""The headline of a report: a row for each main comparison, `pair · quantity · ratio · verdict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.data.evidence import INVALID_INCLUDED
from analysis.data.metrics import ALL_BURSTS, describe
from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate
from analysis.summary.lookup import (
    BASELINE,
    entry,
    factors_text,
    is_of_several_tasks,
    of_programs,
    pairs,
    points,
    unlike,
)
from analysis.words import formatting
from analysis.words.formatting import PERCENT

Summary = Mapping[str, Any]
_MOST_FLOWS = _MOST_TASKS = 3


def lines(summary: Summary) -> list[str]:
    """The findings, the most important first; every number is measured."""
    first, *others = _compared(summary) or [_not_compared(summary)]
    mark = f"{INVALID_INCLUDED}: " if summary.get("invalid_included") else ""
    return [mark + first, *others]


def _compared(summary: Summary) -> list[str]:
    compared = sorted(pairs(list(summary["arms"])), key=lambda pair: pair[0] != BASELINE)
    goodputs = [name for name in of_programs(summary["arms"]) if name.endswith(".goodput_bps")]
    found: list[str] = []
    for number, (left, right) in enumerate(compared):
        if not number:
            found += _latency(summary, left, right)
        for metric in (*goodputs[:_MOST_FLOWS], "training_time_s"):
            found += _ratio(summary, left, right, metric)
        if not number:
            found += _task_metrics(summary, left, right)
    if not found:
        return []
    measure = next(iter(of_programs(summary["arms"])), "training_time_s")
    seeds = [entry(summary, "ratios", f"{a}/{b}", measure).n for a, b in compared]
    fewest = min(filter(None, seeds), default=0)
    if fewest < ENOUGH_SEEDS:
        found.append(f"n = {fewest}: an interval needs {ENOUGH_SEEDS} paired seeds")
    return found


def _latency(summary: Summary, left: str, right: str) -> list[str]:
    """Of the rounds that were hit, or of all; of a sweep from the lowest to the highest point."""
    pair = f"{left}/{right}"
    metric = ALL_BURSTS
    if entry(summary, "ratios", pair, metric).value is None:
        metric = "round_latency_s.mean"
    if len(points(summary)) < 2:
        return _ratio(summary, left, right, metric)
    # A mean over all points would be no point's: they may differ in what decides the ratio.
    found = [
        (ratio.value, factors_text(point["factors"]))
        for point in points(summary)
        if (ratio := entry(point, "ratios", pair, metric)).value is not None
    ]
    if not found:
        return []
    (low, at_low), (high, at_high) = min(found), max(found)
    ratios = formatting.TO.join(dict.fromkeys(map(formatting.number, (low, high))))
    count = f"{len(found)} of {len(points(summary))} points"
    ends = f"lowest at {at_low}, highest at {at_high}" if low < high else ""
    return [_joined(pair, describe(metric).label, f"{ratios} x at {count}", ends)]


def _ratio(summary: Summary, left: str, right: str, metric: str) -> list[str]:
    pair = f"{left}/{right}"
    ratio = entry(summary, "ratios", pair, metric)
    if not ratio.value:
        return []
    described = describe(metric)
    better = right if (ratio.value > 1) is (described.unit == "s") else left
    words = {"s": "is faster", "bps": "has more"}[described.unit]
    return [
        _joined(
            pair,
            described.label,
            formatting.with_interval(ratio),
            _doubt(ratio, 1) or f"{better} {words}",
            _of_each(summary, left, right, metric, described.unit),
        )
    ]


def _task_metrics(summary: Summary, left: str, right: str) -> list[str]:
    task = summary.get("task_metric") or "accuracy"
    parts = points(summary) if is_of_several_tasks(summary) else [summary]
    if len(parts) > _MOST_TASKS:
        return []  # the tables have them
    found = []
    for part in parts:
        difference = entry(part, "differences", f"{right}-{left}", task)
        if difference.value is None:
            continue
        unit = formatting.POINTS if task == "accuracy" else formatting.RATIO
        better = right if (difference.value > 0) is (task == "accuracy") else left
        label = describe(task).label
        if factors := factors_text(part.get("factors", {})):
            label = f"{label} at {factors}"
        found.append(
            _joined(
                f"{right} \u2212 {left}",
                label,
                formatting.with_interval(difference, unit).replace(" x ", " "),
                _doubt(difference, 0) or f"{better} is better",
                _of_each(part, left, right, task, "share" if task == "accuracy" else "count"),
            )
        )
    return found


def _of_each(summary: Summary, left: str, right: str, metric: str, unit_of: str) -> str:
    """Both arms' means, unless they are of different runs, of which no comparison is made."""
    if f"{left}/{right}" in unlike(summary):
        return "pairs alone"
    means = {arm: entry(summary, "arms", arm, metric).value for arm in (right, left)}
    unit = PERCENT if unit_of == "share" else formatting.unit_for(unit_of, means.values())
    return ", ".join(
        f"{arm} {formatting.number(value, unit)} {unit.symbol}".rstrip()
        for arm, value in means.items()
    )


def _not_compared(summary: Summary) -> str:
    arms = summary["arms"]
    if len(arms) > 1 and any(cell["n_runs"] for cell in arms.values()):
        (_, reference), *_ = pairs(list(arms))
        return f"nothing to compare yet: needs ok runs of {reference} and another arm with one seed"
    for metric in (*list(of_programs(arms))[:1], "training_time_s"):
        for arm in arms:
            value = entry(summary, "arms", arm, metric)
            if value.value is not None:
                unit = formatting.unit_for(describe(metric).unit, (value.value,))
                return _joined(arm, describe(metric).label, formatting.with_interval(value, unit))
    return "no run is ok yet: the table of runs says why"


def _doubt(estimate: Estimate, same: float) -> str:
    """Where the interval includes `same`, the value of no difference, or the seeds disagree."""
    if estimate.values:
        low, high = min(estimate.values), max(estimate.values)
    elif estimate.low is None or estimate.high is None:
        return ""  # n = 1: the last row says so
    else:
        low, high = estimate.low, estimate.high
    return "no clear difference" if low <= same <= high else ""


def _joined(*parts: str) -> str:
    return " \u00b7 ".join(filter(None, parts))
