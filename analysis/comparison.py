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
from analysis.data.per_run import metric_names, per_run
from analysis.statistics.intervals import Estimate, mean_interval, ratio_interval

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One metric of one arm at one point.

    Attributes:
        arm, metric: their names.
        factors: the point, by name.
        first, second: means over the pairs, in the metric's unit.
        ratio: second over first.
    """

    arm: str
    metric: str
    factors: dict[str, str | None]
    first: float
    second: float
    ratio: Estimate

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {**vars(self), "ratio": self.ratio.as_json()}


def evidence(folder: Path) -> Evidence:
    """What a folder of runs or of kept results holds."""
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
    on = ["arm", *columns, "seed"]
    one, two = per_run(first), per_run(second)
    metrics = [name for name in metric_names(one) if name in two.columns]
    paired = one.select(*on, *metrics).join(
        two.select(*on, *metrics), on=on, suffix="|", nulls_equal=True, maintain_order="left"
    )
    if not paired.height:
        raise ValueError(
            f"{first.experiment} and {second.experiment}: no ok run of one has the arm, point and "
            "seed of one of the other"
        )
    points = paired.select(*on[:-1]).unique(maintain_order=True).rows(named=True)
    found = []
    for point in sorted(points, key=lambda each: first.arms.index(each["arm"])):
        here = paired.filter(
            pl.all_horizontal(pl.col(key).eq_missing(value) for key, value in point.items())
        )
        factors = {key.removeprefix(FACTOR_PREFIX): point[key] for key in columns}
        for name in metrics:
            both = here.select(pl.col(name), pl.col(f"{name}|")).drop_nulls().cast(pl.Float64)
            if both.height:
                left, right = (each.to_list() for each in both.get_columns())
                found.append(_compared(point["arm"], name, factors, left, right))
    return found


def compare_runs(first: Evidence, second: Evidence) -> list[Compared]:
    """All metrics that two runs have, whatever their arms, points and seeds."""
    sides = []
    for each in (first, second):
        if not each.ok_runs:
            run = each.runs[0]
            raise ValueError(f"{run.key}: this run is {run.verdict}; valid: two ok runs")
        sides.append(per_run(each).row(0, named=True))
    one, two = sides
    arm = " -> ".join(dict.fromkeys([one["arm"], two["arm"]]))
    names = metric_names(per_run(first))
    return [
        _compared(arm, name, {}, [float(one[name])], [float(two[name])])
        for name in names
        if one[name] is not None and two.get(name) is not None
    ]


def _compared(
    arm: str,
    metric: str,
    factors: dict[str, str | None],
    left: Sequence[float],
    right: Sequence[float],
) -> Compared:
    return Compared(
        arm=arm,
        metric=metric,
        factors=factors,
        first=mean_interval(left).value or 0.0,
        second=mean_interval(right).value or 0.0,
        ratio=ratio_interval(right, left),
    )


def document(first: str, second: str, found: Sequence[Compared]) -> dict[str, Any]:
    """The comparison for a program; `first` and `second` name the folders."""
    return {
        "schema": SCHEMA,
        "first": first,
        "second": second,
        "compared": [each.as_json() for each in found],
    }
