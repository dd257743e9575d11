"""Lines up runs by seed and point of the sweep, so that arms are compared over what both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analysis.data.load import FACTOR_PREFIX
from analysis.statistics.intervals import Floats


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Every arm's values: `values[arm]` has shape (units, metrics), NaN where there is none.

    A unit is a seed at a point of the sweep; `seeds` has shape (units,).
    """

    seeds: NDArray[np.int64]
    columns: Mapping[str, int]
    values: Mapping[str, Floats]
    n_runs: Mapping[str, int]

    def per_seed(self, arm: str, metric: str) -> Floats:
        """One value per seed: the mean over the points of the sweep that this seed has."""
        column = self.values[arm][:, self.columns[metric]]
        return self._averaged(column, ~np.isnan(column))

    def paired(self, left: str, right: str, metric: str) -> tuple[Floats, Floats]:
        """Values of both arms at the seeds and points that both have, averaged per seed."""
        index = self.columns[metric]
        one, two = self.values[left][:, index], self.values[right][:, index]
        both = ~(np.isnan(one) | np.isnan(two))
        return self._averaged(one, both), self._averaged(two, both)

    def _averaged(self, column: Floats, known: NDArray[np.bool_]) -> Floats:
        _, place = np.unique(self.seeds[known], return_inverse=True)
        counts = np.bincount(place)
        return np.bincount(place, weights=column[known]) / counts if len(counts) else np.zeros(0)


def measured(per_run: pl.DataFrame, arms: Sequence[str], metrics: Sequence[str]) -> Measured:
    """The values of `per_run`'s columns `metrics`, by arm."""
    unit = ["seed", *(name for name in per_run.columns if name.startswith(FACTOR_PREFIX))]
    units = per_run.select(unit).unique(maintain_order=True).sort("seed", maintain_order=True)
    places = {row: index for index, row in enumerate(units.iter_rows())}
    values, n_runs = {}, {}
    for arm in arms:
        rows = per_run.filter(pl.col("arm") == arm)
        n_runs[arm] = rows.height
        table = np.full((len(places), len(metrics)), np.nan)
        if rows.height:
            found = rows.select(pl.col(name).cast(pl.Float64) for name in metrics)
            at = [places[row] for row in rows.select(unit).iter_rows()]
            table[at] = found.fill_null(float("nan")).to_numpy()
        values[arm] = table
    return Measured(
        seeds=units["seed"].to_numpy(),
        columns={name: index for index, name in enumerate(metrics)},
        values=values,
        n_runs=n_runs,
    )
