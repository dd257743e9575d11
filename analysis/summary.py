"""The numbers of an experiment for programs: `summary.json`.

Arms are compared over what both of them have: runs are paired by seed and point of the sweep,
averaged over the points of a seed, and then over seeds.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis import metrics, published
from analysis.load import FACTOR_PREFIX, Results
from analysis.statistics import (
    NOTHING,
    Estimate,
    Floats,
    difference_interval,
    mean_interval,
    permutation_p_value,
    ratio_interval,
)

SCHEMA = 1
REFERENCE = "dblp"  # ratios are written as the paper writes them: baseline / DBLP
BASELINE = "fixed-low"


def summarise(results: Results, per_run: pl.DataFrame) -> dict[str, Any]:
    """The content of `summary.json`; `per_run` is `metrics.per_run(results)`.

    Every measured entry is {value, low, high, n}: mean over seeds, its 95 % interval, number of
    seeds. `ratios` holds both directions of every pair. A sweep's points follow in `points`.
    """
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": results.experiment,
        "verdicts": results.verdicts(),
        **_cells(per_run, results.arms),
    }
    entries = published.select(published.load(), results.published_ids, results.arms)
    summary["published"] = published.beside(entries, partial(entry, summary))
    factors = results.factor_columns
    if factors:
        summary["points"] = [
            {
                "factors": {
                    column.removeprefix(FACTOR_PREFIX): value
                    for column, value in zip(factors, point, strict=True)
                },
                **_cells(rows, results.arms),
            }
            for point, rows in per_run.group_by(factors, maintain_order=True)
        ]
    return summary


def pairs(arms: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs (numerator, denominator) that tables show: over `dblp`, or else the first arm."""
    reference = REFERENCE if REFERENCE in arms else next(iter(arms), "")
    return [(arm, reference) for arm in arms if arm != reference]


def entry(summary: dict[str, Any], section: str, name: str, metric: str) -> Estimate:
    """One measured entry, such as `entry(summary, "arms", "dblp", "round_latency_s.p95")`."""
    found: Any = summary.get(section, {}).get(name, {})
    for part in metric.split("."):
        found = found.get(part, {})
    if "value" not in found:
        return NOTHING
    return Estimate(**{key: found[key] for key in ("value", "low", "high", "n")})


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _cells(per_run: pl.DataFrame, arms: Sequence[str]) -> dict[str, Any]:
    """`arms`, `ratios` and `differences` over some runs."""
    columns = metrics.names(per_run)
    document: dict[str, Any] = {"arms": {}, "ratios": {}, "differences": {}}
    for arm in arms:
        rows = per_run.filter(pl.col("arm") == arm)
        cell: dict[str, Any] = {"n_runs": rows.height}
        for name in columns:
            _put(cell, name, mean_interval(_per_seed(rows, name)).as_json())
        document["arms"][arm] = cell
    for left, right in itertools.permutations(arms, 2):
        cell = {}
        for name in columns:
            _put(cell, name, ratio_interval(*_paired(per_run, name, left, right)).as_json())
        document["ratios"][f"{left}/{right}"] = cell
        values = _paired(per_run, "accuracy", left, right)
        difference = difference_interval(*values).as_json()
        document["differences"][f"{left}-{right}"] = {
            "accuracy": {**difference, "p_value": permutation_p_value(*values)}
        }
    return document


def _per_seed(rows: pl.DataFrame, name: str) -> Floats:
    """One value per seed: the mean over the points of the sweep that this seed has."""
    known = rows.filter(pl.col(name).is_not_null())
    means = known.group_by("seed").agg(pl.col(name).mean()).sort("seed")
    return means[name].cast(pl.Float64).to_numpy()


def _paired(per_run: pl.DataFrame, name: str, left: str, right: str) -> tuple[Floats, Floats]:
    """Values of both arms at the seeds and points that both have, averaged per seed."""
    unit = ["seed", *(column for column in per_run.columns if column.startswith(FACTOR_PREFIX))]
    known = per_run.filter(pl.col(name).is_not_null())
    both = (
        known.filter(pl.col("arm") == left)
        .join(known.filter(pl.col("arm") == right), on=unit, nulls_equal=True)
        .group_by("seed")
        .agg(pl.col(name).mean(), pl.col(f"{name}_right").mean())
        .sort("seed")
        .cast({name: pl.Float64, f"{name}_right": pl.Float64})
    )
    return np.asarray(both[name]), np.asarray(both[f"{name}_right"])


def _put(cell: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        cell = cell.setdefault(parent, {})
    cell[leaf] = value
