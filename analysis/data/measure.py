"""Measures runs: from their logs to the tables that reports, metrics and figures are made of."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from analysis.data import logs
from analysis.data.evidence import Run, impairment_kinds, pace, section
from analysis.data.metrics import IMPAIRED, LEGS, METRICS, TASK_METRICS, TOLERANCE_VARIED, describe

_DEVIATIONS = ("relative_error", "cosine")
# Of a round: the workers' mean computing, the legs, the server's averaging with the last worker's
# update, and what remains: waiting for slower workers and for messages between the steps.
ROUND_PARTS = ("compute_s", "gather_s", "mean_update_s", "broadcast_s", "waiting_s")
_AT_ONCE = 50  # runs whose logs lie in memory together: a few ten MB of text
_ROUNDS = ("round", "critical", "latency_s", "impairments")
_EVALUATIONS = ("round", "accuracy", "perplexity", "elapsed_s")


def measure(runs: Sequence[Run]) -> dict[str, pl.DataFrame]:
    """The tables of ok runs, by name; what is wrong with their files is remarked on."""
    for run, name in itertools.product(runs, logs.SAMPLES):
        assert run.directory is not None
        try:
            logs.scan_samples(run.directory, name)
        except ValueError as error:
            logs.remark(run, [str(error).replace(f"{run.directory}/", "", 1)])
    starts = range(0, max(1, len(runs)), _AT_ONCE)
    parts = [_measure(runs[start : start + _AT_ONCE]) for start in starts]
    return {name: pl.concat([part[name] for part in parts], how="diagonal") for name in parts[0]}


def _measure(runs: Sequence[Run]) -> dict[str, pl.DataFrame]:
    rounds = logs.read(runs, "rounds")
    transfers, training, impairments, effects = (
        logs.read(runs, log) for log in ("transfers", "training", "impairments", "effects")
    )
    evaluations, lost = _evaluations(training), deviations(effects)
    targets = {
        run.key: float(target)
        for run in runs
        for name in ("training", "workload")
        if isinstance(target := section(run.config, name).get("target"), int | float)
    }
    baselines = {
        run.key: float(baseline)
        for run in runs
        if run.directory is not None
        and isinstance(
            baseline := logs.read_document(run.directory / "training.json", []).get("baseline"),
            int | float,
        )
    }
    gathered = transfers.filter(pl.col("chunks_received") >= 0, leg="gather", role="receiver")
    by_log = {
        "rounds": rounds,
        "receivers": transfers.filter(
            pl.col("role") == "receiver", pl.col("chunks_received").is_not_null()
        ),
        "senders": transfers.filter(role="sender"),
        "evaluations": evaluations.with_columns(
            pl.col("run_key")
            .replace_strict(values, default=None, return_dtype=pl.Float64)
            .alias(name)
            for name, values in (("target", targets), ("baseline", baselines))
        ),
        "effects": lost.sort("run_key", "round"),
        "paced_iterations": training.filter(
            pl.col("run_key").is_in([run.key for run in runs if pace(run.config).get("compute_s")]),
            pl.col("compute_overrun_s").is_not_null(),
        ),
        "impairment_ends": impairments.filter(action="end"),
        "impaired_rounds": _impaired_rounds(runs, rounds),
    }
    return {
        "metrics": _metrics(runs, by_log),
        "latencies": rounds.select("run_key", *_ROUNDS),
        "round_parts": _round_parts(rounds, training),
        "gathered_loss": gathered.group_by("run_key", "round", maintain_order=True).agg(
            loss=1 - pl.col("chunks_received").sum() / pl.col("chunk_count").sum()
        ),
        "evaluations": evaluations.select("run_key", *_EVALUATIONS),
        "deviations": lost,
        "impairments": impairments,
    }


def _metrics(runs: Sequence[Run], by_log: dict[str, pl.DataFrame]) -> pl.DataFrame:
    frame = pl.DataFrame(
        [(run.key, run.config.get("rounds")) for run in runs],
        schema={"run_key": pl.String, "_planned": pl.Int64},
        strict=False,
        orient="row",
    )
    kinds = by_log["impaired_rounds"]["kind"].unique().sort()
    metrics = [*METRICS, *(describe(IMPAIRED + kind) for kind in kinds)]
    for log, rows in by_log.items():
        values = [metric.expression for metric in metrics if metric.log == log]
        if log == "rounds":
            values += [pl.len().cast(pl.Int64).alias("_logged"), _VARIED]
        measured = rows.group_by("run_key").agg(values)
        frame = frame.join(measured, on="run_key", how="left", maintain_order="left")
    whole = (pl.col("_logged") == pl.col("_planned")) | pl.col("_planned").is_null()
    return frame.with_columns(
        pl.when(whole).then(pl.col(metric.name)).alias(metric.name)
        for metric in METRICS
        if metric.whole_log
    ).drop("_logged", "_planned")


_VARIED = pl.any_horizontal(
    pl.col(f"tolerance_{leg}").drop_nulls().n_unique() > 1 for leg in LEGS
).alias(TOLERANCE_VARIED)


def _impaired_rounds(runs: Sequence[Run], rounds: pl.DataFrame) -> pl.DataFrame:
    """A row per round that was hit; `kind` names all kinds that hit it, as `loss + straggler`."""
    kinds = pl.DataFrame(
        [
            {"run_key": run.key, "impairments": label, "kind": kind}
            for run in runs
            for label, kind in impairment_kinds(run.config).items()
        ],
        schema={"run_key": pl.String, "impairments": pl.String, "kind": pl.String},
    )
    return (
        rounds.select("run_key", "round", "latency_s", "impairments")
        .explode("impairments")
        .join(kinds, on=["run_key", "impairments"], how="inner", maintain_order="left")
        .group_by("run_key", "round", maintain_order=True)
        .agg(pl.col("latency_s").first(), pl.col("kind").unique().sort().str.join(" + "))
    )


def _round_parts(rounds: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """The time of each round with whole records in `ROUND_PARTS`, whose sum is `iteration_s`."""
    computing = training.group_by("run_key", "round").agg(pl.col("compute_s").mean())
    steps = rounds.drop("compute_s").join(computing, on=["run_key", "round"], maintain_order="left")
    gathered, received = (
        pl.col(f"{leg}_began_s") + pl.col(f"{leg}_s") for leg in ("gather", "broadcast")
    )
    at_server = pl.col("broadcast_began_s") - gathered + pl.col("ended_s") - received
    steps = steps.with_columns(mean_update_s=at_server)
    waiting = pl.col("iteration_s") - pl.sum_horizontal(ROUND_PARTS[:-1], ignore_nulls=False)
    steps = steps.with_columns(waiting_s=waiting).filter(pl.col("iteration_s") > 0)
    return steps.select("run_key", "round", "iteration_s", *ROUND_PARTS).drop_nulls()


def task_metric(measured: pl.DataFrame) -> str | None:
    """`accuracy` or `perplexity`, whichever a log, or the rows of `per_run`, have; or None."""
    return next((name for name in TASK_METRICS if measured[name].count()), None)


def _evaluations(training: pl.DataFrame) -> pl.DataFrame:
    means = pl.col(*TASK_METRICS, "elapsed_s")
    evaluated = pl.any_horizontal(pl.col(name).is_not_null() for name in TASK_METRICS)
    learns = evaluated.any().over("run_key")
    is_last = pl.col("round") == pl.col("round").max().over("run_key")
    return (
        training.filter(pl.any_horizontal(evaluated, pl.col("elapsed_s").is_not_null()))
        .filter(evaluated.any().over("run_key", "round") | (learns & is_last))
        .group_by("run_key", "round")
        .agg(pl.when(means.null_count() == 0).then(means.mean()).name.keep())
        .sort("run_key", "round")
    )


def deviations(effects: pl.DataFrame) -> pl.DataFrame:
    """The relative error and cosine of the gathered and the applied gradient, by round."""
    rows = []
    for record in effects.select("gathered", "applied").iter_rows():
        gathered, applied = map(_parsed, record)
        row = {}
        for name in _DEVIATIONS:
            row[f"{name}.gathered"] = gathered.get(name)
            values = [worker.get(name) for worker in applied.values() if isinstance(worker, dict)]
            numbers = [value for value in values if isinstance(value, int | float)]
            row[f"{name}.applied"] = sum(numbers) / len(numbers) if numbers else None
        rows.append(row)
    names = [f"{name}.{stage}" for name in _DEVIATIONS for stage in ("gathered", "applied")]
    schema = dict.fromkeys(names, pl.Float64)
    frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
    return effects.drop("gathered", "applied").hstack(frame)


def _parsed(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
