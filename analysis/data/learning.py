"""What a run learnt, and what loss did to it: one row per run, from the training logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl

from analysis.data.records import section

if TYPE_CHECKING:
    from analysis.data.load import Results

TASK_METRICS = ("accuracy", "perplexity")
_DEVIATIONS = ("relative_error", "cosine", "norm_ratio")


def task_metric(training: pl.DataFrame) -> str | None:
    """`accuracy` or `perplexity`, whichever was logged; None where nothing was evaluated."""
    logged = [name for name in TASK_METRICS if training[name].count()]
    return logged[0] if logged else None


def evaluations(training: pl.DataFrame) -> pl.DataFrame:
    """One row per run and evaluation: mean over the replicas, at the mean of their clocks."""
    labels = [name for name in training.columns if name in ("run_key", "arm", "seed")]
    evaluated = pl.any_horizontal(pl.col(name).is_not_null() for name in TASK_METRICS)
    return (
        training.filter(evaluated)
        .group_by(*labels, "round")
        .agg(pl.col(*TASK_METRICS, "elapsed_s").mean())
        .sort("run_key", "round")
    )


def final(results: Results) -> pl.DataFrame:
    """Accuracy or perplexity at each run's last evaluation."""
    return (
        evaluations(results.training)
        .group_by("run_key", maintain_order=True)
        .agg(pl.col(*TASK_METRICS).last())
    )


def to_target(results: Results) -> pl.DataFrame:
    """Training time and rounds until the first evaluation that reached `training.target`.

    Runs without a target have no row. One that never reached it has `target_reached` 0 and null
    elsewhere: it enters no mean, which `target_reached` tells.
    """
    targets = pl.DataFrame(
        [(run.key, _target(run.config)) for run in results.ok_runs],
        schema={"run_key": pl.String, "target": pl.Float64},
        orient="row",
    ).drop_nulls()
    reached = (pl.col("accuracy") >= pl.col("target")) | (pl.col("perplexity") <= pl.col("target"))
    return (
        evaluations(results.training)
        .join(targets, on="run_key")
        .group_by("run_key", maintain_order=True)
        .agg(
            pl.col("elapsed_s").filter(reached).first().alias("time_to_target_s"),
            # Counted from 0 in the logs.
            (pl.col("round").filter(reached).first() + 1.0).alias("rounds_to_target"),
            reached.any().cast(pl.Float64).alias("target_reached"),
        )
    )


def _target(config: dict[str, Any]) -> float | None:
    target = section(config, "training").get("target")
    return float(target) if isinstance(target, int | float) else None


def deviations(effects: pl.DataFrame) -> pl.DataFrame:
    """`relative_error`, `cosine` and `norm_ratio` of the `.gathered` and the `.applied` gradient.

    One row per measured round, with the labels of the frame; of the workers' the mean.
    """
    rows = []
    for record in effects.iter_rows(named=True):
        gathered, applied = (_parsed(record[name]) for name in ("gathered", "applied"))
        row = {name: value for name, value in record.items() if name not in ("gathered", "applied")}
        for name in _DEVIATIONS:
            row[f"{name}.gathered"] = gathered.get(name)
            values = [each.get(name) for each in applied.values() if isinstance(each, dict)]
            known = [value for value in values if isinstance(value, int | float)]
            row[f"{name}.applied"] = sum(known) / len(known) if known else None
        rows.append(row)
    labels = [name for name in effects.columns if name not in ("gathered", "applied")]
    columns: dict[str, Any] = {name: effects.schema[name] for name in labels}
    columns |= {
        f"{name}.{place}": pl.Float64 for name in _DEVIATIONS for place in ("gathered", "applied")
    }
    return pl.DataFrame(rows, schema=columns, orient="row", strict=False)


def effects(effects: pl.DataFrame) -> pl.DataFrame:
    """Per run: means over the measured rounds, and the replicas' divergence at the last of them."""
    found = deviations(effects)
    means = [f"{name}.{place}" for name in _DEVIATIONS[:2] for place in ("gathered", "applied")]
    return (
        found.sort("run_key", "round")
        .group_by("run_key", maintain_order=True)
        .agg(
            pl.col(*means).mean(),
            pl.col("divergence").drop_nulls().last().alias("replica_divergence"),
        )
    )


def pace_overruns(results: Results) -> pl.DataFrame:
    """The share of iterations that computed for longer than their pace, where one is given."""
    given = [run.key for run in results.ok_runs if pace(run.config).get("compute_s")]
    over = pl.col("compute_overrun_s")
    return (
        results.training.filter(pl.col("run_key").is_in(given) & over.is_not_null())
        .group_by("run_key")
        .agg((over > 0).cast(pl.Float64).mean().alias("pace_overrun_share"))
    )


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
