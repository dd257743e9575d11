"""Sets the papers' numbers beside ours, where our runs had the conditions that they are about."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from analysis import statistics
from analysis.data.evidence import (
    BLOCK,
    FACTOR_PREFIX,
    Evidence,
    Run,
    dataset_name,
    pace,
    section,
    task,
)
from analysis.data.metrics import ALL_BURSTS, IMPAIRED, TASK_METRICS, describe
from analysis.data.published import Published
from analysis.statistics import Estimate, difference_interval, ratio_interval
from analysis.summary import pairing
from analysis.summary.lookup import REFERENCE, entry

Conditions = dict[str, Any]
Compared = dict[str, list[dict[str, Any]]]  # by metric
_POINTS = ("first", "second")  # of an entry that compares an arm with itself


def between_arms(
    entries: Sequence[Published], summary: Mapping[str, Any], runs: Sequence[Run]
) -> Compared:
    """The entries that compare two arms, beside the ratios and differences of a summary of runs."""
    by_metric: Compared = {}
    for each in entries:
        if each.within_arm:
            continue
        pair = ("/" if each.section == "ratios" else "-").join(each.arms)
        shown: dict[str, Estimate] = {}
        for metric in each.metrics:
            ours = entry(summary, each.section, pair, metric)
            of_kind = metric.startswith(IMPAIRED)
            may_lack = of_kind or describe(metric).optional
            if metric != each.metrics[0] and ours.value is None and may_lack:
                continue
            if of_kind and ours == entry(summary, each.section, pair, ALL_BURSTS):
                metric = ALL_BURSTS
            shown[metric] = ours
        for metric, ours in shown.items():
            by_metric.setdefault(metric, []).append(_compared(each, metric, pair, ours, runs))
    return by_metric


def within_arm(entries: Sequence[Published], results: Evidence, per_run: pl.DataFrame) -> Compared:
    """The entries that compare one arm with itself at two points of a sweep."""
    by_metric: Compared = {}
    for each in entries:
        if each.within_arm is None:
            continue
        arm, ends = each.within_arm["arm"], [each.within_arm[point] for point in _POINTS]
        sign = " / " if each.section == "ratios" else " - "
        words = f"{arm}: {sign.join(map(_text, ends))}"
        by_task: dict[str, list[Run]] = {}
        for run in results.ok_runs:
            if run.arm == arm:
                # A time may be a mean over tasks; a mean accuracy is nobody's.
                name = task(run.config) if each.metrics[0] in TASK_METRICS else ""
                by_task.setdefault(name, []).append(run)
        for name, runs in by_task.items():
            of_points = [[run for run in runs if _has(run, point)] for point in ends]
            if not all(of_points):
                continue
            both = _by_point(per_run, of_points)
            apart = pairing.no_pairs(both, *_POINTS)
            compared = f"{words}, {name}" if len(by_task) > 1 else words
            for metric in each.metrics:
                ours = _paired(both, metric)
                made = _compared(each, metric, compared, ours, itertools.chain(*of_points))
                by_metric.setdefault(metric, []).append(
                    made | ({"no_pairs": apart} if apart else {})
                )
    return by_metric


def _conditions(run: Run) -> Conditions:
    """`model`, `dataset`, `loss` (of its loss impairments, a share) and `k` (points, a share)."""
    training = section(run.config, "training")
    conditions: Conditions = {"model": training.get("model"), "dataset": dataset_name(training)}
    impairments = run.config.get("impairments") or []
    rates = {each.get("q") for each in impairments if isinstance(each, Mapping)}
    if len(rates) <= 1:
        conditions["loss"] = rates.pop() if rates else 0.0
    tolerances = statistics.tolerances(run.config)
    if run.arm == REFERENCE and tolerances is not None:
        conditions["k"] = round(tolerances[1] - tolerances[0], 6)
    return {name: value for name, value in conditions.items() if value is not None}


def shared_conditions(runs: Sequence[Run]) -> Conditions:
    """The conditions that all of some runs share."""
    by_name: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in _conditions(run).items():
            by_name.setdefault(name, []).append(value)
    return {
        name: values[0] for name, values in by_name.items() if all(v == values[0] for v in values)
    }


def meets(conditions: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """Whether conditions have every value that is required; a list stands for any of its values."""
    return all(
        name in conditions
        and any(
            _same(conditions[name], each)
            for each in (value if isinstance(value, list) else [value])
        )
        for name, value in required.items()
    )


def _has(run: Run, required: Mapping[str, Any]) -> bool:
    return meets(run.factors | _conditions(run), required)


def _by_point(per_run: pl.DataFrame, runs: Sequence[Sequence[Run]]) -> pl.DataFrame:
    """The rows of the runs of two points, each as if it were an arm; other factors play no part."""
    rows = per_run.drop(pl.selectors.starts_with(FACTOR_PREFIX))
    return pl.concat(
        rows.filter(pl.col("run_key").is_in([run.key for run in of_point])).with_columns(
            pl.lit(point).alias("arm")
        )
        for point, of_point in zip(_POINTS, runs, strict=True)
    )


def _paired(both: pl.DataFrame, metric: str) -> Estimate:
    """Ratio of first over second, or the difference for accuracy and perplexity."""
    of_unit = both.group_by("seed", *BLOCK, "arm", maintain_order=True)
    values = pl.col(metric)
    differ = metric in TASK_METRICS
    mean = values.mean() if differ else values.log().mean().exp()
    sides = pairing.measured(of_unit.agg(mean), _POINTS, [metric]).paired(*_POINTS, metric)
    return difference_interval(*sides) if differ else ratio_interval(*sides)


def _compared(
    published: Published, metric: str, compared: str, ours: Estimate, runs: Iterable[Run]
) -> dict[str, Any]:
    """An entry of `published` in `summary.json`: the paper's value, its source, and ours."""
    low, high = published.bounds
    document: dict[str, Any] = {
        "id": published.id,
        "title": published.title,
        "compared": f"{published.section[:-1]} {compared}",
        **({"value": low} if low == high else {"low": low, "high": high}),
        **({"values": published.values} if published.values else {}),
        "model": list(published.model),
        "our_model": _models(run for run in runs if run.arm in published.arms),
        "condition": published.condition,
        "source": published.source,
        "confidence": published.confidence,
        "version": published.version,
        "ours": ours.as_json(),
    }
    quantity: statistics.Quantity = "accuracy" if metric == "accuracy" else "other"
    if published.section == "ratios":
        quantity = "ratio"
    return document | {"verdict": statistics.verdict(ours, low, high, quantity)}


def _models(runs: Iterable[Run]) -> list[str]:
    """What some runs trained, or whose payload they sent; nothing of programs."""
    named = ((section(run.config, "training").get("model"), pace(run.config)) for run in runs)
    words = {"payload-only": "payload of "}  # nothing is learnt: only its layers are the model's
    return list(dict.fromkeys(f"{words.get(p['kind'], '')}{model}" for model, p in named if model))


def _text(conditions: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in conditions.items()
    )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) < 1e-9
    return bool(left == right)
