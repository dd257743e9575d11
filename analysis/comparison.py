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
from analysis.statistics import Estimate, ratio_interval

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
    names = [name.removeprefix(FACTOR_PREFIX) for name in columns]
    one, two = first.per_run(), second.per_run()
    on = ["arm", *columns, "seed"]
    metrics = [name for name in metric_names(one) if name in two.columns]
    paired = one.select(*on, *metrics).join(
        two.select(*on, *metrics), on=on, suffix="|", nulls_equal=True, maintain_order="left"
    )
    compared = []
    for place, rows in paired.group_by(on[:-1], maintain_order=True):
        arm, *levels = list[Any](place)
        for metric in metrics:
            pairs = rows.select(metric, f"{metric}|").drop_nulls().cast(pl.Float64)
            if pairs.height:
                left, right = pairs.to_numpy().T
                compared.append(
                    Compared(
                        arm=str(arm),
                        metric=metric,
                        factors=dict(zip(names, levels, strict=True)),
                        first=float(left.mean()),
                        second=float(right.mean()),
                        ratio=ratio_interval(right, left),
                    )
                )
    if not compared:
        raise ValueError(
            f"{first.experiment} and {second.experiment}: no ok run of one has the arm, point and "
            "seed of one of the other"
        )
    return sorted(compared, key=lambda metric: first.arms.index(metric.arm))


def document(first: str, second: str, compared: Sequence[Compared]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "first": first,
        "second": second,
        "compared": [{**vars(row), "ratio": row.ratio.as_json()} for row in compared],
    }
