"""The papers' numbers (`analysis/data/published.yaml`), and ours under their conditions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from analysis import statistics
from analysis.data.evidence import BLOCK, FACTOR_PREFIX, Run, dataset_name, pace, section
from analysis.data.metrics import ALL_BURSTS, IMPAIRED, TASK_METRICS, describe
from analysis.statistics import Estimate, difference_interval, ratio_interval
from analysis.summary import pairing
from analysis.summary.lookup import BASELINE, REFERENCE, entry, factors_text

ANY_MODEL, NOT_STATED = "any", "not stated"  # in place of models' names
Conditions = dict[str, Any]
Compared = dict[str, list[dict[str, Any]]]  # by metric
_POINTS = ("first", "second")  # of an entry that compares an arm with itself


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published value or range: of two arms, or of one at two points of a sweep."""

    id: str
    title: str
    model: Sequence[str]
    metrics: Sequence[str]
    section: str = "ratios"  # of `summary.json` that holds our value: or `differences`
    arms: Sequence[str] = (BASELINE, REFERENCE)  # the first is the numerator or minuend
    bounds: Sequence[float]
    values: dict[str, float] | None = None  # of each arm
    points: Sequence[Conditions] = ()
    applies_to: Conditions = field(default_factory=dict)
    condition: str
    source: str
    confidence: str
    version: str


@cache
def _document() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "data" / "published.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


@cache
def load() -> tuple[Published, ...]:
    return tuple(Published(**entry) for entry in _document()["entries"])


def load_models() -> dict[str, str]:
    return dict(_document()["models"])


def settings(ids: Sequence[str] | None) -> list[dict[str, Any]]:
    return [setting for setting in _document()["settings"] if ids is None or setting["id"] in ids]


def unknown(ids: Sequence[str] | None) -> list[str]:
    known = {published.id for published in load()} | {setting["id"] for setting in settings(None)}
    return [name for name in ids or [] if name not in known]


def select(ids: Sequence[str] | None, arms: Sequence[str]) -> list[Published]:
    return [
        published
        for published in load()
        if (set(published.arms) <= set(arms) if ids is None else published.id in ids)
    ]


def between_arms(
    entries: Sequence[Published], summary: Mapping[str, Any], runs: Sequence[Run]
) -> Compared:
    by_metric: Compared = {}
    for published in entries:
        if published.points:
            continue
        section_name = published.section
        pair = ("/" if section_name == "ratios" else "-").join(published.arms)
        shown: dict[str, Estimate] = {}
        for metric in published.metrics:
            ours = entry(summary, section_name, pair, metric)
            of_kind = metric.startswith(IMPAIRED)
            may_lack = of_kind or describe(metric).optional
            if metric != published.metrics[0] and ours.value is None and may_lack:
                continue
            if of_kind and ours == entry(summary, section_name, pair, ALL_BURSTS):
                metric = ALL_BURSTS
            shown[metric] = ours
        for metric, ours in shown.items():
            by_metric.setdefault(metric, []).append(_compared(published, metric, pair, ours, runs))
    return by_metric


def within_arm(
    entries: Sequence[Published], runs: Sequence[Run], per_run: pl.DataFrame
) -> Compared:
    by_metric: Compared = {}
    for published in entries:
        of_points = [
            [
                run
                for run in runs
                if run.arm in published.arms and meets(run.factors | _conditions(run), point)
            ]
            for point in published.points
        ]
        if not of_points or not all(of_points):
            continue
        rows = per_run.drop(pl.selectors.starts_with(FACTOR_PREFIX))  # the others play no part
        both = pl.concat(
            rows.filter(pl.col("run_key").is_in([run.key for run in of_point])).with_columns(
                arm=pl.lit(point)  # each point as if it were an arm
            )
            for point, of_point in zip(_POINTS, of_points, strict=True)
        )
        apart = pairing.no_pairs(both, *_POINTS)
        words = (" / " if published.section == "ratios" else " - ").join(
            map(factors_text, published.points)
        )
        words = f"{published.arms[0]}: {words}"
        for metric in published.metrics:
            differ = metric in TASK_METRICS
            mean = pl.col(metric).mean() if differ else pl.col(metric).log().mean().exp()
            of_unit = both.group_by("seed", *BLOCK, "arm", maintain_order=True).agg(mean)
            sides = pairing.measured(of_unit, _POINTS, [metric]).paired(*_POINTS, metric)
            ours = difference_interval(*sides) if differ else ratio_interval(*sides)
            made = _compared(published, metric, words, ours, itertools.chain(*of_points))
            by_metric.setdefault(metric, []).append(made | ({"no_pairs": apart} if apart else {}))
    return by_metric


def _conditions(run: Run) -> Conditions:
    """`model`, `dataset`, `loss` (of its loss impairments, a share) and `k` (points, a share)."""
    training = section(run.config, "training")
    conditions: Conditions = {"model": training.get("model"), "dataset": dataset_name(training)}
    impairments = run.config.get("impairments") or []
    rates = {impairment.get("q") for impairment in impairments if isinstance(impairment, Mapping)}
    if len(rates) <= 1:
        conditions["loss"] = rates.pop() if rates else 0.0
    tolerances = statistics.tolerances(run.config)
    if run.arm == REFERENCE and tolerances is not None:
        conditions["k"] = round(tolerances[1] - tolerances[0], 6)
    return {name: value for name, value in conditions.items() if value is not None}


def shared_conditions(runs: Sequence[Run]) -> Conditions:
    """The conditions in which all of some runs agree that have them."""
    by_name: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in _conditions(run).items():
            by_name.setdefault(name, []).append(value)
    return {
        name: values[0] for name, values in by_name.items() if all(v == values[0] for v in values)
    }


def meets(conditions: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """Tell whether conditions have every required value; a list stands for any of its values."""
    return all(
        name in conditions and conditions[name] in (value if isinstance(value, list) else [value])
        for name, value in required.items()
    )


def _compared(
    published: Published, metric: str, compared: str, ours: Estimate, runs: Iterable[Run]
) -> dict[str, Any]:
    low, high = published.bounds
    quantity: statistics.Quantity = "accuracy" if metric == "accuracy" else "other"
    if published.section == "ratios":
        quantity = "ratio"
    return {
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
        "verdict": statistics.verdict(ours, low, high, quantity),
    }


def _models(runs: Iterable[Run]) -> list[str]:
    """The models that some runs trained, or whose payload they sent; none of programs."""
    named = ((section(run.config, "training").get("model"), pace(run.config)) for run in runs)
    words = {"payload-only": "payload of "}  # nothing is learnt: only its layers are the model's
    return list(dict.fromkeys(f"{words.get(p['kind'], '')}{model}" for model, p in named if model))
