"""Sets what papers claim (`analysis/claims.yaml`) beside what we measured in their conditions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import polars as pl
import yaml

from analysis import statistics
from analysis.data.evidence import (
    BLOCK,
    FACTOR_PREFIX,
    REFERENCE,
    Run,
    dataset_name,
    pace,
    section,
)
from analysis.data.metrics import ALL_BURSTS, IMPAIRED, TASK_METRICS, describe
from analysis.statistics import Estimate, difference_interval, paired_p_value, ratio_interval
from analysis.summary import lookup, pairing
from analysis.summary.lookup import BASELINE, entry, factors_text

ANY_MODEL, NOT_STATED = "any", "not stated"  # in place of models' names
_PAYLOAD = "payload of "
Conditions = dict[str, Any]
Compared = dict[str, list[dict[str, Any]]]  # by metric
_POINTS = ("first", "second")  # of an entry that compares an arm with itself


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claimed value or range: of two arms, or of one at two points of a sweep."""

    id: str
    title: str
    paper: str = ""
    model: Sequence[str]
    metrics: Sequence[str]
    section: str = "ratios"  # of `summary.json` that holds our value: or `differences`
    arms: Sequence[str] = (BASELINE, REFERENCE)  # the first is the numerator or minuend
    bounds: Sequence[float]
    values: dict[str, float] | None = None  # of each arm
    points: Sequence[Conditions] = ()
    applies_to: Conditions = field(default_factory=dict)
    rule: Literal["gain", "cost"] = "gain"
    margin: float = 0.0  # of a cost, beyond what is claimed
    dataset: str | None = None
    condition: str
    source: str
    confidence: str
    version: str
    why: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """The claimed range; infinite where any effect is meant."""
        return self.bounds[0], self.bounds[1] if self.bounds[1:] else math.inf

    @property
    def nothing(self) -> float:
        """The value of no effect."""
        return 1.0 if self.section == "ratios" else 0.0


@cache
def _document() -> dict[str, Any]:
    path = Path(__file__).parents[1] / "claims.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


@cache
def load() -> tuple[Claim, ...]:
    return tuple(Claim(**claim) for claim in _document()["claims"])


def load_models() -> dict[str, str]:
    return dict(_document()["models"])


def settings(ids: Sequence[str] | None) -> list[dict[str, Any]]:
    return [setting for setting in _document()["settings"] if ids is None or setting["id"] in ids]


def unknown(ids: Sequence[str] | None) -> list[str]:
    known = {claim.id for claim in load()} | {setting["id"] for setting in settings(None)}
    return [name for name in ids or [] if name not in known]


def select(ids: Sequence[str] | None, arms: Sequence[str]) -> list[Claim]:
    return [
        claim
        for claim in load()
        if (set(claim.arms) <= set(arms) if ids is None else claim.id in ids)
    ]


def between_arms(
    claims: Sequence[Claim], summary: Mapping[str, Any], runs: Sequence[Run]
) -> Compared:
    by_metric: Compared = {}
    for claim in claims:
        if claim.points:
            continue
        section_name = claim.section
        pair = ("/" if section_name == "ratios" else "-").join(claim.arms)
        shown: dict[str, Estimate] = {}
        for metric in claim.metrics:
            ours = entry(summary, section_name, pair, metric)
            of_kind = metric.startswith(IMPAIRED)
            may_lack = of_kind or describe(metric).optional
            if metric != claim.metrics[0] and ours.value is None and may_lack:
                continue
            if of_kind and ours == entry(summary, section_name, pair, ALL_BURSTS):
                metric = ALL_BURSTS
            shown[metric] = ours
        for metric, ours in shown.items():
            p_value = lookup.p_value(summary, section_name, pair, metric)
            made = _compared(claim, pair, ours, p_value, runs)
            by_metric.setdefault(metric, []).append(made)
    return by_metric


def within_arm(claims: Sequence[Claim], runs: Sequence[Run], per_run: pl.DataFrame) -> Compared:
    by_metric: Compared = {}
    for claim in claims:
        of_points = [
            [
                run
                for run in runs
                if run.arm in claim.arms and meets(run.factors | _conditions(run), point)
            ]
            for point in claim.points
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
        sign = " / " if claim.section == "ratios" else " - "
        words = f"{claim.arms[0]}: {sign.join(map(factors_text, claim.points))}"
        for metric in claim.metrics:
            differ = metric in TASK_METRICS
            mean = pl.col(metric).mean() if differ else pl.col(metric).log().mean().exp()
            of_unit = both.group_by("seed", *BLOCK, "arm", maintain_order=True).agg(mean)
            sides = pairing.measured(of_unit, _POINTS, [metric]).paired(*_POINTS, metric)
            ours = difference_interval(*sides) if differ else ratio_interval(*sides)
            p_value = paired_p_value(*sides, ratio=not differ)
            made = _compared(claim, words, ours, p_value, itertools.chain(*of_points))
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
    claim: Claim, compared: str, ours: Estimate, p_value: float | None, runs: Iterable[Run]
) -> dict[str, Any]:
    of_arms = [run for run in runs if run.arm in claim.arms]
    datasets = (dataset_name(section(run.config, "training")) for run in of_arms)
    low, high = claim.ends
    entry = {
        "id": claim.id,
        "title": claim.title,
        "compared": f"{claim.section[:-1]} {compared}",
        **({"value": low} if low == high else {"low": low}),
        **({"high": high} if low < high < math.inf else {}),
        **({"values": claim.values} if claim.values else {}),
        "model": list(claim.model),
        "our_model": _models(of_arms),
        "our_dataset": list(dict.fromkeys(filter(None, datasets))),
        "condition": claim.condition,
        "source": claim.source,
        "confidence": claim.confidence,
        "version": claim.version,
        "ours": ours.as_json(),
        "p_value": p_value,
    }
    return entry | {"verdict": verdict(claim, entry)}


def verdict(
    claim: Claim, compared: Mapping[str, Any], p_value: float | None = None
) -> statistics.Verdict:
    """Judge a claim by what `summary.json` has beside it; the p-value of no effect is corrected."""
    ours = Estimate.of_json(compared["ours"])
    alike = is_alike(claim, compared)
    if claim.rule == "cost":
        return statistics.verdict_on_cost(
            ours, claim.ends, claim.nothing, claim.margin, alike=alike
        )
    return statistics.verdict_on_gain(ours, claim.ends, claim.nothing, alike=alike, p_value=p_value)


def is_alike(claim: Claim, compared: Mapping[str, Any]) -> bool:
    """Tell whether ours is of the claim's models, and of its data where something is learnt."""
    names = load_models()
    models = {name.removeprefix(_PAYLOAD) for name in compared["our_model"]}
    if NOT_STATED in claim.model or not models <= {names.get(name, name) for name in claim.model}:
        return False
    learns = any(not name.startswith(_PAYLOAD) for name in compared["our_model"])
    return not learns or set(compared["our_dataset"]) == {claim.dataset}


def _models(runs: Iterable[Run]) -> list[str]:
    """The models that some runs trained, or whose payload they sent; none of programs."""
    named = ((section(run.config, "training").get("model"), pace(run.config)) for run in runs)
    words = {"payload-only": _PAYLOAD}  # nothing is learnt: only its layers are the model's
    return list(dict.fromkeys(f"{words.get(p['kind'], '')}{model}" for model, p in named if model))
