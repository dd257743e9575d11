"""Measures runs: from their logs to the tables that reports, metrics and figures are made of."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from analysis.data import critical_path, learning, logs, samples
from analysis.data.evidence import Run, impairment_kinds
from analysis.data.kept_rows import TOLERANCE_VARIED
from analysis.data.metrics import IMPAIRED, LEGS, METRICS, describe

_ROUNDS = ("round", "critical", "gradient_norm", "latency_s", "impairments")
_EVALUATIONS = ("round", "accuracy", "perplexity", "elapsed_s")
TABLES = (
    *("metrics", "rounds", "critical_path", "gathered_loss", "evaluations", "deviations"),
    *("impairments", "layer_loss", "host_cpu", "problems"),
)


def measure(runs: Sequence[Run]) -> dict[str, pl.DataFrame]:
    """The tables of `TABLES` of a few ok runs; what is wrong with their logs is one of them."""
    before = {run.key: len(run.problems) for run in runs}
    rounds = logs.read(runs, "rounds")
    transfers, layer_loss = logs.transfers_and_layers(runs)
    training, impairments, effects = (
        logs.read(runs, log) for log in ("training", "impairments", "effects")
    )
    evaluations = learning.evaluations(training)
    deviations = learning.deviations(effects)
    host_cpu = _host_cpu(runs)
    by_log = {
        "rounds": rounds,
        "receivers": transfers.filter(
            pl.col("role") == "receiver", pl.col("chunks_received").is_not_null()
        ),
        "senders": transfers.filter(pl.col("role") == "sender"),
        "evaluations": evaluations.join(
            learning.targets(runs), on="run_key", how="left", maintain_order="left"
        ),
        "effects": deviations.sort("run_key", "round"),
        "paced_iterations": learning.paced_iterations(runs, training),
        "impairment_ends": impairments.filter(pl.col("action") == "end"),
        "impaired_rounds": _impaired_rounds(runs, rounds),
    }
    path = critical_path.of_rounds(
        rounds=rounds,
        transfers=transfers,
        training=training,
        impairments=impairments,
        labels=["run_key"],
    )
    found = [(run.key, each) for run in runs for each in run.problems[before[run.key] :]]
    return {
        "metrics": _metrics(runs, by_log),
        "rounds": rounds.select("run_key", *_ROUNDS),
        "critical_path": path,
        "gathered_loss": _gathered_loss(transfers),
        "evaluations": evaluations.select("run_key", *_EVALUATIONS),
        "deviations": deviations,
        "impairments": impairments,
        "layer_loss": layer_loss,
        "host_cpu": host_cpu,
        "problems": pl.DataFrame(
            found, schema={"run_key": pl.String, "problem": pl.String}, orient="row"
        ),
    }


def _metrics(runs: Sequence[Run], by_log: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """A row per run and a column per metric; null where the run has no value for it."""
    planned = {run.key: run.config.get("rounds") for run in runs}
    frame = pl.DataFrame(
        list(planned.items()),
        schema={"run_key": pl.String, "_planned": pl.Int64},
        strict=False,
        orient="row",
    )
    kinds = by_log["impaired_rounds"]["kind"].unique().sort()
    by_kind = [describe(IMPAIRED + kind) for kind in kinds]
    for log, rows in by_log.items():
        values = [each.value.alias(each.name) for each in (*METRICS, *by_kind) if each.log == log]
        if log == "rounds":
            values += [pl.len().cast(pl.Int64).alias("_logged"), *_FACTS]
        measured = rows.group_by("run_key").agg(values)
        frame = frame.join(measured, on="run_key", how="left", maintain_order="left")
    whole = (pl.col("_logged") == pl.col("_planned")) | pl.col("_planned").is_null()
    return frame.with_columns(
        pl.when(whole).then(pl.col(each.name)).alias(each.name)
        for each in METRICS
        if each.whole_log
    ).drop("_logged", "_planned")


def _varied(leg: str) -> pl.Expr:
    return pl.col(f"tolerance_{leg}").drop_nulls().n_unique() > 1


_FACTS = (pl.any_horizontal(map(_varied, LEGS)).alias(TOLERANCE_VARIED),)


def _impaired_rounds(runs: Sequence[Run], rounds: pl.DataFrame) -> pl.DataFrame:
    """A row per round that was hit; `kind` names all kinds that hit it, as `loss + straggler`."""
    kinds = pl.DataFrame(
        [
            {"run_key": run.key, "impairments": label, "kind": kind}
            for run in runs
            for label, kind in impairment_kinds(run.config.get("impairments")).items()
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


def _gathered_loss(transfers: pl.DataFrame) -> pl.DataFrame:
    """Per run and round the share of the gathered chunks that receivers went without: `loss`."""
    gathered = transfers.filter(
        pl.col("leg") == "gather", pl.col("role") == "receiver", pl.col("chunks_received") >= 0
    )
    share = 1 - pl.col("chunks_received").sum() / pl.col("chunk_count").sum()
    of_round = gathered.group_by("run_key", "round", maintain_order=True)
    return of_round.agg(share.alias("loss"))


def _host_cpu(runs: Sequence[Run]) -> pl.DataFrame:
    """Per run and host: `cpu_s` of its sampled processes."""
    directories = {run.key: run.directory for run in runs if run.directory is not None}
    used, problems = samples.cpu_s_of_runs(directories)
    for run in runs:
        if run.key in problems:
            logs.remark(run, [problems[run.key]])
    order = {key: place for place, key in enumerate(directories)}
    return used.sort(
        pl.col("run_key").replace_strict(order, return_dtype=pl.Int64), maintain_order=True
    )
