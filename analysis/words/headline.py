"""Writes the headline of a report: sentences on what was found, made from its numbers.

A sentence says no more than its interval: where the interval includes "no difference", it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.data.evidence import INVALID_INCLUDED
from analysis.data.metrics import ALL_BURSTS, IMPAIRED, describe
from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate, true_reduction
from analysis.summary import phases
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
from analysis.words import formatting, no_pairs
from analysis.words.formatting import PERCENT

Summary = Mapping[str, Any]
_FLOWS_TOLD = _TASKS_TOLD = 3


def sentences(summary: Summary) -> list[str]:
    """The findings, most important sentence first; every number is measured."""
    first, *others = _findings(summary)
    mark = f"{INVALID_INCLUDED}: " if summary.get("invalid_included") else ""
    return [mark + first, *others]


def _findings(summary: Summary) -> list[str]:
    compared = sorted(pairs(list(summary["arms"])), key=lambda pair: pair[0] != BASELINE)
    found: list[str] = []
    for left, right in compared[:1]:
        found += _latency(summary, left, right)
        found += _along_the_sweep(summary, left, right)
    of_flows = [name for name in of_programs(summary["arms"]) if name.endswith(".goodput_bps")]
    for left, right in compared:
        found += _goodput(summary, left, right, of_flows[:_FLOWS_TOLD])
        found += _training_time(summary, left, right)
        if (left, right) == compared[0]:
            found += _task_metrics(summary, left, right)
    if not found:
        return [_nothing_compared(summary)]
    measure = next(iter(of_programs(summary["arms"])), "training_time_s")
    seeds = [entry(summary, "ratios", f"{a}/{b}", measure).n for a, b in compared]
    fewest = min(filter(None, seeds), default=0)
    if max(seeds) == 1:
        found.append("n = 1 paired seed: there are no intervals, so any difference may be chance.")
    elif fewest < ENOUGH_SEEDS:
        found.append(f"Fewer than {ENOUGH_SEEDS} paired seeds give no interval; here n = {fewest}.")
    return found


def _latency(summary: Summary, left: str, right: str) -> list[str]:
    pair = f"{left}/{right}"
    name, where = ALL_BURSTS, "In rounds hit by an impairment"
    if entry(summary, "ratios", pair, name).value is None:
        name, where = "round_latency_s.mean", "On average"
    if len(points(summary)) > 1:
        # A mean over all points would be no point's: they may differ in what decides the ratio.
        return [*_range(summary, left, right, name, where), *_allowed(summary, left, right, name)]
    ratio = entry(summary, "ratios", pair, name)
    if ratio.value is None:
        return []
    ours, theirs = (entry(summary, "arms", arm, name) for arm in (right, left))
    took = f"{formatting.number(ratio.value)} x as long {formatting.brackets(ratio)}"
    if pair in unlike(summary):
        # Each arm's mean is of its own runs: beside each other they would not give the ratio.
        found = [f"{where}, {left} took {took} as {right}, {_paired(summary)}{_doubt(ratio, 1)}."]
    else:
        unit = formatting.unit_for("s", (ours.value, theirs.value))
        found = [
            f"{where}, {right} finished a round in {_quantity(ours, unit)} and {left} in "
            f"{_quantity(theirs, unit)}: {left} took {took}{_doubt(ratio, 1)}."
        ]
    if name != ALL_BURSTS:
        return found
    found += _allowed(summary, left, right, name)
    kinds = summary["ratios"][pair].get(IMPAIRED.rstrip("."), {})
    by_kind = {kind: entry(summary, "ratios", pair, IMPAIRED + kind) for kind in kinds}
    if len(by_kind) > 1:
        listed = " and ".join(
            f"{formatting.with_interval(each)} for {kind}" for kind, each in by_kind.items()
        )
        found.append(f"By kind of impairment, {pair} is {listed}.")
    return found


def _range(summary: Summary, left: str, right: str, name: str, where: str) -> list[str]:
    """How many times as long the baseline took at the points of a sweep, from least to most."""
    found = [
        value
        for point in points(summary)
        if (value := entry(point, "ratios", f"{left}/{right}", name).value) is not None
    ]
    if not found:
        return []
    ends = dict.fromkeys(formatting.number(end) for end in (min(found), max(found)))
    known, planned = len(found), len(points(summary))
    of_points = f"{known} points" if known == planned else f"{known} of {planned} points"
    return [f"{where}, {left} took {' to '.join(ends)} times as long as {right}, {of_points}."]


def _allowed(summary: Summary, left: str, right: str, name: str) -> list[str]:
    """What both tolerated: whether bursts met different tolerances at all depends on the phase."""
    ours, theirs = (entry(summary, "arms", arm, "burst_tolerance.gather") for arm in (right, left))
    if name != ALL_BURSTS or ours.value is None or theirs.value is None:
        return []
    phased = [arm for arm in phases.arms(summary) if arm in (left, right)]
    depends = f"; the tolerance of {' and '.join(phased)} depends on the phase of training"
    return [
        f"In those rounds {right} allowed a loss of {_quantity(ours, PERCENT)} on the gather "
        f"leg, {left} {_quantity(theirs, PERCENT)} (means{depends if phased else ''})."
    ]


def _along_the_sweep(summary: Summary, left: str, right: str) -> list[str]:
    """The range of the headline ratio over the points of a sweep."""
    for name, words in (
        (ALL_BURSTS, "latency in rounds hit by an impairment"),
        ("training_time_s", "training time"),
    ):
        found = [
            (estimate.value, factors_text(point["factors"]), formatting.with_interval(estimate))
            for point in points(summary)
            if (estimate := entry(point, "ratios", f"{left}/{right}", name)).value is not None
        ]
        if len(found) > 1:
            (_, at_low, low), (_, at_high, high) = min(found), max(found)
            return [
                f"{left}/{right} of the {words} is lowest at {at_low}, with {low}, and highest at "
                f"{at_high}, with {high}."
            ]
    return []


def _training_time(summary: Summary, left: str, right: str) -> list[str]:
    ratio = entry(summary, "ratios", f"{left}/{right}", "training_time_s")
    if not ratio.value:
        return []
    saved = true_reduction(ratio.value)
    share = f"{abs(saved) * 100:.1f}"
    word = "less" if saved >= 0 else "more"
    took = "the same time as" if share == "0.0" else f"{share} % {word} time than"
    return [
        f"Training with {right} took {took} with {left}: "
        f"{left}/{right} is {formatting.with_interval(ratio)}{_doubt(ratio, 1)}."
    ]


def _goodput(summary: Summary, left: str, right: str, names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        ratio = entry(summary, "ratios", f"{left}/{right}", name)
        ours, theirs = (entry(summary, "arms", arm, name) for arm in (right, left))
        if ratio.value is None:
            continue
        unit = formatting.unit_for("bps", (ours.value, theirs.value))
        found.append(
            f"{describe(name).label}: "
            + _of_each(summary, left, right, _quantity(theirs, unit), _quantity(ours, unit))
            + f"{left}/{right} is {formatting.with_interval(ratio)}{_doubt(ratio, 1)}."
        )
    return found


def _task_metrics(summary: Summary, left: str, right: str) -> list[str]:
    task = summary.get("task_metric") or "accuracy"
    if not is_of_several_tasks(summary):
        return _task_metric(summary, left, right, task, "")
    found = points(summary)
    if len(found) > _TASKS_TOLD:
        return []  # the tables have them
    told = (
        _task_metric(point, left, right, task, f" at {factors_text(point['factors'])}")
        for point in found
    )
    return [sentence for each in told for sentence in each]


def _task_metric(part: Summary, left: str, right: str, task: str, where: str) -> list[str]:
    """Of a whole summary, or of a point of it."""
    difference = entry(part, "differences", f"{right}-{left}", task)
    if difference.value is None:
        return []
    ours, theirs = (entry(part, "arms", arm, task) for arm in (right, left))
    name, unit, of_difference = "accuracy", PERCENT, formatting.POINTS
    if task == "perplexity":
        name, unit = "perplexity, lower being better", formatting.Unit("")
        of_difference = unit
    return [
        f"Final {name}{where}: "
        + _of_each(part, left, right, _quantity(theirs, unit), _quantity(ours, unit))
        + f"difference {formatting.with_interval(difference, of_difference)}"
        f"{_doubt(difference, 0)}."
    ]


def _of_each(summary: Summary, left: str, right: str, of_left: str, of_right: str) -> str:
    """Both arms' means, unless they are of different runs, of which no comparison is made."""
    if f"{left}/{right}" in unlike(summary):
        return f"{right} against {left}, {_paired(summary)}: "
    return f"{of_right} with {right}, {of_left} with {left}; "


def _paired(summary: Summary) -> str:
    return f"where both are ok{_of_one(summary)}"


def _of_one(summary: Summary) -> str:
    return f", {no_pairs.same(summary)}" if "no_pairs" in summary else ""


def _nothing_compared(summary: Summary) -> str:
    arms = summary["arms"]
    if len(arms) > 1 and any(cell["n_runs"] for cell in arms.values()):
        (_, reference), *_ = pairs(list(arms))
        return (
            f"Nothing can be compared yet: that needs an ok run of {reference} and one of another "
            f"arm with the same seed{_of_one(summary)}. The table of runs says what happened."
        )
    measure = next(iter(of_programs(arms)), None)
    for arm in arms if measure else ():
        metric, value = describe(str(measure)), entry(summary, "arms", arm, str(measure))
        if value.value is not None:
            unit = formatting.unit_for(metric.unit, (value.value,))
            return f"{arm}: {metric.label}: {formatting.with_interval(value, unit)}."
    for arm in arms:
        time = entry(summary, "arms", arm, "training_time_s")
        if time.value is not None:
            return f"{arm}: training time {formatting.with_interval(time, formatting.Unit('s'))}."
    return "No run is ok yet: there is nothing to compare. The table of runs says why."


def _quantity(estimate: Estimate, unit: formatting.Unit) -> str:
    return f"{formatting.number(estimate.value, unit)} {unit.symbol}".rstrip()


def _doubt(estimate: Estimate, same: float) -> str:
    """What to add where the interval includes `same`, the value of no difference.

    Without an interval, where the seeds do not agree on which side of `same` they are.
    """
    if estimate.values and min(estimate.values) <= same <= max(estimate.values):
        return f"; the seeds are not all on one side of {same:g}, so no clear difference"
    if estimate.low is None or estimate.high is None or not estimate.low <= same <= estimate.high:
        return ""
    return f"; the interval includes {same:g}, so no clear difference"
