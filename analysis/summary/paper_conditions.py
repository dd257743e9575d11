"""Under what conditions runs measured, in the terms in which the papers state theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.data.load import Run
from analysis.data.records import section
from analysis.statistics import byte_bound

Conditions = dict[str, Any]
REFERENCE = "dblp"


def of_run(run: Run) -> Conditions:
    """`model`, `dataset`, `loss` (of its loss impairments, a share) and `k` (points, as a share).

    `loss` is 0 where nothing impairs, and not there where impairments have no or several rates.
    """
    training = section(run.config, "training")
    dataset = training.get("dataset")
    found: Conditions = {"model": training.get("model")}
    found["dataset"] = dataset.get("name") if isinstance(dataset, Mapping) else dataset
    impairments = run.config.get("impairments") or []
    rates = {each.get("q") for each in impairments if isinstance(each, Mapping)}
    if len(rates) <= 1:
        found["loss"] = rates.pop() if rates else 0.0
    bounds = byte_bound.tolerances(run.config)
    if run.arm == REFERENCE and bounds is not None:
        found["k"] = round(bounds[1] - bounds[0], 6)
    return {name: value for name, value in found.items() if value is not None}


def shared(runs: Sequence[Run]) -> Conditions:
    """What all of some runs have in common: a quantity on which two disagree is left out."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in of_run(run).items():
            found.setdefault(name, []).append(value)
    return {
        name: values[0] for name, values in found.items() if all(v == values[0] for v in values)
    }


def fulfil(conditions: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether conditions have every value that is wanted; a list stands for any of its values."""
    return all(
        name in conditions
        and any(
            _same(conditions[name], each)
            for each in (value if isinstance(value, list) else [value])
        )
        for name, value in wanted.items()
    )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) < 1e-9
    return bool(left == right)
