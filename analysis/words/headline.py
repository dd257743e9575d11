"""Writes the headline of a report: sentences on what was found, made from its numbers."""

from __future__ import annotations

from typing import Any

from analysis.data.metrics import IMPAIRED
from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate, true_reduction
from analysis.summary.lookup import BASELINE, entry, factors_text, pairs
from analysis.words import formatting


def sentences(summary: dict[str, Any]) -> list[str]:
    """What the experiment found, most important sentence first; every number is measured."""
    compared = sorted(pairs(list(summary["arms"])), key=lambda pair: pair[0] != BASELINE)
    found: list[str] = []
    for left, right in compared[:1]:
        found += [
            *_latency(summary, left, right),
            *_along_the_sweep(summary, left, right),
            *_training_time(summary, left, right),
            *_accuracy(summary, left, right),
        ]
    for left, right in compared[1:]:
        found += _training_time(summary, left, right)
    if not found:
        return [_single_arm(summary)]
    pairs_most = max(
        (entry(summary, "ratios", f"{a}/{b}", "training_time_s").n for a, b in compared)
    )
    if pairs_most == 1:
        found.append("n = 1 paired seed: there are no intervals.")
    elif pairs_most < ENOUGH_SEEDS:
        found.append(
            f"n = {pairs_most} paired seeds; with fewer than {ENOUGH_SEEDS}, the intervals are "
            "only indicative."
        )
    return found


def _latency(summary: dict[str, Any], left: str, right: str) -> list[str]:
    name, where = "round_latency_s.burst_mean", "In rounds hit by an impairment"
    if entry(summary, "ratios", f"{left}/{right}", name).value is None:
        name, where = "round_latency_s.mean", "On average"
    ratio = entry(summary, "ratios", f"{left}/{right}", name)
    ours, theirs = (entry(summary, "arms", arm, name) for arm in (right, left))
    if ratio.value is None:
        return []
    unit = formatting.unit_for("s", (ours.value, theirs.value))
    sentence = (
        f"{where}, {right} finished a round in {_quantity(ours, unit)} and {left} in "
        f"{_quantity(theirs, unit)}: {left} took "
        f"{formatting.number(ratio.value)} x as long {formatting.brackets(ratio)}{_doubt(ratio)}."
    )
    sentences = [sentence, *_tolerance(summary, left, right)]
    kinds = summary["ratios"][f"{left}/{right}"].get(IMPAIRED.rstrip("."), {})
    by_kind = {kind: entry(summary, "ratios", f"{left}/{right}", IMPAIRED + kind) for kind in kinds}
    if name.endswith("burst_mean") and len(by_kind) > 1:
        listed = " and ".join(
            f"{formatting.with_interval(estimate)} for {kind}" for kind, estimate in by_kind.items()
        )
        sentences.append(f"By kind of impairment, {left}/{right} is {listed}.")
    return sentences


def _tolerance(summary: dict[str, Any], left: str, right: str) -> list[str]:
    """Whether the bursts met the arms with different tolerances at all: it depends on the phase."""
    ours, theirs = (entry(summary, "arms", arm, "burst_tolerance.gather") for arm in (right, left))
    if ours.value is None or theirs.value is None:
        return []
    unit = formatting.Unit("%", 100.0)
    return [
        f"In those rounds {right} allowed a loss of {_quantity(ours, unit)} on the gather leg, "
        f"{left} {_quantity(theirs, unit)} (means; {right}'s depends on the phase of training)."
    ]


def _training_time(summary: dict[str, Any], left: str, right: str) -> list[str]:
    ratio = entry(summary, "ratios", f"{left}/{right}", "training_time_s")
    if not ratio.value:
        return []
    saved = true_reduction(ratio.value)
    word = "less" if saved >= 0 else "more"
    return [
        f"Training with {right} took {abs(saved) * 100:.1f} % {word} time than with {left}: "
        f"{left}/{right} is {formatting.with_interval(ratio)}{_doubt(ratio)}."
    ]


def _accuracy(summary: dict[str, Any], left: str, right: str) -> list[str]:
    task = summary.get("task_metric") or "accuracy"
    difference = entry(summary, "differences", f"{right}-{left}", task)
    ours, theirs = (entry(summary, "arms", arm, task) for arm in (right, left))
    if difference.value is None:
        return []
    if task == "perplexity":
        return [
            f"Final perplexity, lower being better: {formatting.number(ours.value)} with {right}, "
            f"{formatting.number(theirs.value)} with {left}; difference "
            f"{formatting.number(difference.value)} {formatting.brackets(difference)}."
        ]
    percent = formatting.Unit("%", 100.0)
    return [
        f"Final accuracy: {_quantity(ours, percent)} with {right}, {_quantity(theirs, percent)} "
        f"with {left}; difference {formatting.with_interval(difference, formatting.POINTS)}."
    ]


def _along_the_sweep(summary: dict[str, Any], left: str, right: str) -> list[str]:
    """The range of the headline ratio over the points of a sweep."""
    points = summary.get("points") or []
    for name, words in (
        ("round_latency_s.burst_mean", "latency in rounds hit by an impairment"),
        ("training_time_s", "training time"),
    ):
        found = [
            (estimate.value, factors_text(point["factors"]))
            for point in points
            if (estimate := entry(point, "ratios", f"{left}/{right}", name)).value is not None
        ]
        if len(found) > 1:
            (low, at_low), (high, at_high) = min(found), max(found)
            return [
                f"Over the points of the sweep {left}/{right} of the {words} goes from "
                f"{formatting.number(low)} x ({at_low}) to {formatting.number(high)} x ({at_high})."
            ]
    return []


def _single_arm(summary: dict[str, Any]) -> str:
    for arm in summary["arms"]:
        time = entry(summary, "arms", arm, "training_time_s")
        if time.value is not None:
            return f"{arm}: training time {formatting.with_interval(time, formatting.Unit('s'))}."
    return "No run is ok yet: there is nothing to compare. The table of runs says why."


def _quantity(estimate: Estimate, unit: formatting.Unit) -> str:
    return f"{formatting.number(estimate.value, unit)} {unit.symbol}"


def _doubt(ratio: Estimate) -> str:
    if ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high:
        return ", so no clear difference"
    return ""
