"""Two results of one experiment side by side: for each arm and metric their ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import kept_rows
from analysis.data.evidence import FACTOR_PREFIX, Evidence
from analysis.data.load import load
from analysis.data.metrics import metric_names
from analysis.statistics import Estimate, mean_interval, ratio_interval

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One metric of one arm at one point: means over the pairs, and the ratio second / first."""

    arm: str
    metric: str
    factors: dict[str, str | None]
    first: float
    second: float
    ratio: Estimate


def evidence(folder: Path) -> Evidence:
    if (folder / kept_rows.ROWS).is_file():
        return kept_rows.read(folder)
    return load(folder)


def compare(first: Evidence, second: Evidence) -> list[Compared]:
    """All metrics that both have, in the order of the first one's arms and points."""
    if first.experiment != second.experiment:
        raise ValueError(
            f"{first.experiment} and {second.experiment}: valid: two results of one experiment"
        )
    columns = list(first.factor_columns)
    if set(columns) != set(second.factor_columns):
        each_has = [
            ", ".join(name.removeprefix(FACTOR_PREFIX) for name in side.factor_columns) or "none"
            for side in (first, second)
        ]
        raise ValueError(f"{first.experiment}: factors {each_has[0]}; the other's: {each_has[1]}")
    pairs = _paired(first.per_run(), second.per_run(), columns)
    if not pairs:
        raise ValueError(
            f"{first.experiment} and {second.experiment}: no ok run of one has the arm, point and "
            "seed of one of the other"
        )
    return sorted(pairs, key=lambda compared: first.arms.index(compared.arm))


def compare_runs(first: Evidence, second: Evidence) -> list[Compared]:
    """All metrics that two runs have, whatever their arms, points and seeds."""
    for side in (first, second):
        if not side.ok_runs:
            run = side.runs[0]
            raise ValueError(f"{run.key}: this run is {run.verdict}; valid: two ok runs")
    sides = first.per_run(), second.per_run()
    arm = " -> ".join(dict.fromkeys(side["arm"][0] for side in sides))
    one, two = (side.with_columns(arm=pl.lit(arm), seed=pl.lit(0)) for side in sides)
    return _paired(one, two, [])


def _paired(one: pl.DataFrame, two: pl.DataFrame, factors: Sequence[str]) -> list[Compared]:
    on = ["arm", *factors, "seed"]
    metrics = [name for name in metric_names(one) if name in two.columns]
    paired = one.select(*on, *metrics).join(
        two.select(*on, *metrics), on=on, suffix="|", nulls_equal=True, maintain_order="left"
    )
    compared = []
    for place, rows in paired.group_by(on[:-1], maintain_order=True):
        arm, *levels = list[Any](place)
        for name in metrics:
            left, right = rows.select(name, f"{name}|").drop_nulls().cast(pl.Float64).to_numpy().T
            if len(left):
                names = [factor.removeprefix(FACTOR_PREFIX) for factor in factors]
                compared.append(
                    Compared(
                        arm=str(arm),
                        metric=name,
                        factors=dict(zip(names, levels, strict=True)),
                        first=mean_interval(left).value or 0.0,
                        second=mean_interval(right).value or 0.0,
                        ratio=ratio_interval(right, left),
                    )
                )
    return compared


def document(first: str, second: str, compared: Sequence[Compared]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "first": first,
        "second": second,
        "compared": [{**vars(row), "ratio": row.ratio.as_json()} for row in compared],
    }
