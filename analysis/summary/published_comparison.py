"""Sets the papers' numbers beside ours, where our runs had the conditions that they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from analysis.data.learning import dataset_name
from analysis.data.load import Evidence, Run
from analysis.data.metrics import ALL_BURSTS, IMPAIRED, TASK_METRICS
from analysis.data.published import Published
from analysis.data.records import section
from analysis.statistics import byte_bound, pairing
from analysis.statistics.intervals import Estimate, difference_interval, ratio_interval
from analysis.summary.lookup import REFERENCE, entry

Conditions = dict[str, Any]
Compared = dict[str, list[dict[str, Any]]]  # by metric


def between_arms(entries: Sequence[Published], summary: Mapping[str, Any]) -> Compared:
    """The entries that compare two arms, beside the ratios and differences of a summary.

    Where one kind of impairment makes all burst rounds, its rounds are not shown a second time;
    where an experiment lacks that kind, only an entry about nothing else is shown.
    """
    found: Compared = {}
    for each in entries:
        if each.within_arm:
            continue
        pair = ("/" if each.section == "ratios" else "-").join(each.arms)
        shown: dict[str, Estimate] = {}
        for metric in each.metrics:
            ours = entry(summary, each.section, pair, metric)
            if metric.startswith(IMPAIRED):
                if metric != each.metrics[0] and ours.value is None:
                    continue
                if ours == entry(summary, each.section, pair, ALL_BURSTS):
                    metric = ALL_BURSTS
            shown[metric] = ours
        for metric, ours in shown.items():
            found.setdefault(metric, []).append(_compared(each, pair, ours))
    return found


def within_arm(entries: Sequence[Published], results: Evidence, per_run: pl.DataFrame) -> Compared:
    """The entries that compare one arm with itself at two points of a sweep.

    Runs are paired by seed; an entry with a point that was not run is left out.
    """
    found: Compared = {}
    for each in entries:
        if each.within_arm is None:
            continue
        arm = each.within_arm["arm"]
        first, second = (
            per_run.filter(
                (pl.col("arm") == arm)
                & pl.col("run_key").is_in(
                    [run.key for run in results.ok_runs if _has(run, each.within_arm[point])]
                )
            )
            for point in ("first", "second")
        )
        if first.is_empty() or second.is_empty():
            continue
        sign = " / " if each.section == "ratios" else " - "
        points = sign.join(_text(each.within_arm[point]) for point in ("first", "second"))
        for metric in each.metrics:
            ours = _paired(first, second, metric)
            found.setdefault(metric, []).append(_compared(each, f"{arm}: {points}", ours))
    return found


def inside(ours: Estimate, low: float, high: float) -> bool | None:
    """Whether the paper's value, or some value of its range, lies inside our interval.

    None where we have no interval.
    """
    if ours.low is None or ours.high is None:
        return None
    return ours.low <= high and low <= ours.high


def run_conditions(run: Run) -> Conditions:
    """`model`, `dataset`, `loss` (of its loss impairments, a share) and `k` (points, as a share).

    `loss` is 0 where nothing impairs, and absent where impairments have no or several rates.
    """
    training = section(run.config, "training")
    found: Conditions = {"model": training.get("model"), "dataset": dataset_name(training)}
    impairments = run.config.get("impairments") or []
    rates = {each.get("q") for each in impairments if isinstance(each, Mapping)}
    if len(rates) <= 1:
        found["loss"] = rates.pop() if rates else 0.0
    tolerances = byte_bound.tolerances(run.config)
    if run.arm == REFERENCE and tolerances is not None:
        found["k"] = round(tolerances[1] - tolerances[0], 6)
    return {name: value for name, value in found.items() if value is not None}


def shared_conditions(runs: Sequence[Run]) -> Conditions:
    """The conditions that all of some runs share."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in run_conditions(run).items():
            found.setdefault(name, []).append(value)
    return {
        name: values[0] for name, values in found.items() if all(v == values[0] for v in values)
    }


def meets(conditions: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether conditions have every value that is wanted; a list stands for any of its values."""
    return all(
        name in conditions
        and any(
            _same(conditions[name], each)
            for each in (value if isinstance(value, list) else [value])
        )
        for name, value in wanted.items()
    )


def _has(run: Run, wanted: Mapping[str, Any]) -> bool:
    return meets(run.factors | run_conditions(run), wanted)


def _paired(first: pl.DataFrame, second: pl.DataFrame, metric: str) -> Estimate:
    """Ratio of first over second, or the difference for accuracy and perplexity."""
    both = pl.concat(
        [
            rows.select("seed", pl.lit(point).alias("arm"), metric)
            for point, rows in (("first", first), ("second", second))
        ]
    )
    means = both.group_by("seed", "arm").agg(pl.col(metric).mean())
    table = pairing.measured(means, ["first", "second"], [metric])
    of_pairs = difference_interval if metric in TASK_METRICS else ratio_interval
    return of_pairs(*table.paired("first", "second", metric))


def _compared(published: Published, compared: str, ours: Estimate) -> dict[str, Any]:
    """An entry of `published` in `summary.json`: the paper's value, its source, and ours."""
    low, high = published.bounds
    return {
        "id": published.id,
        "title": published.title,
        "compared": f"{published.section[:-1]} {compared}",
        **({"value": low} if low == high else {"low": low, "high": high}),
        **({"values": published.values} if published.values else {}),
        "condition": published.condition,
        "source": published.source,
        "confidence": published.confidence,
        "version": published.version,
        "ours": ours.as_json(),
        "inside_our_interval": inside(ours, low, high),
    }


def _text(conditions: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in conditions.items()
    )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) < 1e-9
    return bool(left == right)
