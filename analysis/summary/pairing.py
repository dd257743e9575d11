"""Lines up runs by seed, point of the sweep, machine and code: arms are compared over pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analysis.data.evidence import BLOCK, FACTOR_PREFIX
from analysis.statistics import Floats


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Every arm's values: `values[arm]` has shape (units, metrics), NaN where there is none."""

    seeds: NDArray[np.int64]  # of the units, in order
    columns: Mapping[str, int]
    values: Mapping[str, Floats]
    n_runs: Mapping[str, int]

    def per_seed(self, arm: str, metric: str) -> Floats:
        """One value per seed: the mean over the points of the sweep that this seed has."""
        column = self.values[arm][:, self.columns[metric]]
        return self._averaged(column, ~np.isnan(column))

    def paired(
        self, left: str, right: str, metric: str, *, ratio: bool = False
    ) -> tuple[Floats, Floats]:
        """Values of both arms at the units that both have, averaged per seed."""
        one, two = self._columns((left, right), metric)
        both = ~np.isnan(one) & ~np.isnan(two)
        if ratio and np.minimum(one, two)[both].min(initial=np.inf) > 0:
            logs = (np.log(np.where(both, values, 1)) for values in (one, two))
            top, bottom = (np.exp(self._averaged(log, both)) for log in logs)
            return top, bottom
        return self._averaged(one, both), self._averaged(two, both)

    def together(self, arms: Sequence[str], metric: str) -> list[Floats]:
        columns = self._columns(arms, metric)
        all_have = np.logical_and.reduce([~np.isnan(column) for column in columns])
        return [self._averaged(column, all_have) for column in columns]

    def _columns(self, arms: Sequence[str], metric: str) -> list[Floats]:
        return [self.values[arm][:, self.columns[metric]] for arm in arms]

    def _averaged(self, column: Floats, units: NDArray[np.bool_]) -> Floats:
        values, seeds = column[units], self.seeds[units]
        if (differs := seeds[1:] != seeds[:-1]).all():  # one value of each seed
            return values
        place = np.cumsum(np.append(0, differs))
        return np.bincount(place, weights=values) / np.bincount(place)


def at_point(per_run: pl.DataFrame, factors: Mapping[str, str | None]) -> pl.DataFrame:
    """The rows of one point of the sweep; a factor without a column has one level alone."""
    return per_run.filter(
        *(
            pl.col(FACTOR_PREFIX + name).eq_missing(pl.lit(level))
            for name, level in factors.items()
            if FACTOR_PREFIX + name in per_run.columns
        )
    )


def measured(per_run: pl.DataFrame, arms: Sequence[str], metrics: Sequence[str]) -> Measured:
    unit = [*_unit(per_run), *BLOCK]
    units = per_run.select(unit).unique(maintain_order=True).sort("seed", maintain_order=True)
    places = {row: index for index, row in enumerate(units.iter_rows())}
    values, n_runs = {}, {}
    for arm in arms:
        rows = per_run.filter(pl.col("arm") == arm)
        n_runs[arm] = rows.height
        table = np.full((len(places), len(metrics)), np.nan)
        if rows.height:
            numbers = rows.select(pl.col(name).cast(pl.Float64) for name in metrics)
            at = [places[row] for row in rows.select(unit).iter_rows()]
            table[at] = numbers.fill_null(float("nan")).to_numpy()
        values[arm] = table
    return Measured(
        seeds=units["seed"].to_numpy(),
        columns={name: index for index, name in enumerate(metrics)},
        values=values,
        n_runs=n_runs,
    )


def no_pairs(per_run: pl.DataFrame, left: str, right: str) -> dict[str, Any] | None:
    """The `seeds`, `of` those that both arms have, without a machine or code in common; or None."""
    one, two = (_blocks(per_run.filter(pl.col("arm") == arm)) for arm in (left, right))
    both = one.keys() & two.keys()
    apart = [unit for unit in both if not one[unit] & two[unit]]
    if not apart:
        return None
    differ = [
        name
        for at, name in enumerate(BLOCK)
        if any({b[at] for b in one[unit]}.isdisjoint(b[at] for b in two[unit]) for unit in apart)
    ]
    return {
        "seeds": sorted({unit[0] for unit in apart}),
        "of": len({unit[0] for unit in both}),
        "differ": differ or list(BLOCK),
    }


def _unit(per_run: pl.DataFrame) -> list[str]:
    return ["seed", *(name for name in per_run.columns if name.startswith(FACTOR_PREFIX))]


def _blocks(rows: pl.DataFrame) -> dict[tuple[Any, ...], set[tuple[Any, ...]]]:
    blocks: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    for unit, of_unit in rows.group_by(_unit(rows), maintain_order=True):
        blocks[unit] = set(of_unit.select(BLOCK).iter_rows())
    return blocks
