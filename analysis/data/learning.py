"""Reads what runs learnt and what loss did to their gradients, from the training logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from analysis.data.evidence import Run
from analysis.data.logs import section
from analysis.data.metrics import TASK_METRICS

_DEVIATIONS = ("relative_error", "cosine", "norm_ratio")


def task_metric(measured: pl.DataFrame) -> str | None:
    """`accuracy` or `perplexity`, whichever a log, or the rows of `per_run`, have; or None."""
    logged = [name for name in TASK_METRICS if measured[name].count()]
    return logged[0] if logged else None


def evaluations(training: pl.DataFrame) -> pl.DataFrame:
    """One row per run and evaluation: mean over the replicas, at the mean of their clocks."""
    labels = [name for name in training.columns if name in ("run_key", "arm", "seed")]
    means = pl.col(*TASK_METRICS, "elapsed_s")
    evaluated = pl.any_horizontal(pl.col(name).is_not_null() for name in TASK_METRICS)
    learns = evaluated.any().over("run_key")
    is_last = pl.col("round") == pl.col("round").max().over("run_key")
    return (
        training.filter(evaluated.any().over("run_key", "round") | (learns & is_last))
        .group_by(*labels, "round")
        .agg(pl.when(means.null_count() == 0).then(means.mean()).name.keep())
        .sort("run_key", "round")
    )


def targets(runs: Sequence[Run]) -> pl.DataFrame:
    """`run_key` and `target` of the runs that have a `training.target`."""
    found = [(run.key, section(run.config, "training").get("target")) for run in runs]
    return pl.DataFrame(
        [(key, float(target)) for key, target in found if isinstance(target, int | float)],
        schema={"run_key": pl.String, "target": pl.Float64},
        orient="row",
    )


def deviations(effects: pl.DataFrame) -> pl.DataFrame:
    """Relative error, cosine and norm ratio of the gathered and the applied gradient per round."""
    rows = []
    for record in effects.select("gathered", "applied").iter_rows():
        gathered, applied = map(_parsed, record)
        row = {}
        for name in _DEVIATIONS:
            row[f"{name}.gathered"] = gathered.get(name)
            values = [each.get(name) for each in applied.values() if isinstance(each, dict)]
            known = [value for value in values if isinstance(value, int | float)]
            row[f"{name}.applied"] = sum(known) / len(known) if known else None
        rows.append(row)
    names = [f"{name}.{stage}" for name in _DEVIATIONS for stage in ("gathered", "applied")]
    found = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Float64), orient="row", strict=False)
    return effects.drop("gathered", "applied").hstack(found)


def paced_iterations(runs: Sequence[Run], training: pl.DataFrame) -> pl.DataFrame:
    """The workers' iterations that had a given time to compute in, of the `training` log."""
    given = [run.key for run in runs if pace(run.config).get("compute_s")]
    return training.filter(
        pl.col("run_key").is_in(given) & pl.col("compute_overrun_s").is_not_null()
    )


def dataset_name(training: dict[str, Any]) -> Any:
    """The name of the data set in a `training` section, whose options may stand beside it."""
    dataset = training.get("dataset")
    return dataset.get("name") if isinstance(dataset, dict) else dataset


def task(config: dict[str, Any]) -> str:
    """What a run of the built-in training learns: `small-cnn on digits`."""
    training = section(config, "training")
    return f"{training.get('model')} on {dataset_name(training)}"


def pace(config: dict[str, Any]) -> dict[str, Any]:
    """The pace of a run's iterations: `kind` is `real`, `paced` or `payload-only`."""
    found = section(section(config, "training"), "pace")
    return found if "kind" in found else {"kind": "real"}


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
