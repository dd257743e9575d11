"""What one run measured: one row per ok run, one column per metric; null where it has no value.

A metric's name is its path in `summary.json`, with dots. Tail quantiles are those of one run's
rounds and are null where that run has too few of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from analysis.data import learning
from analysis.data.load import FACTOR_PREFIX, Results, factor_text
from analysis.data.quantities import ALL_BURSTS, IMPAIRED, METRICS, Metric, describe, expand, names
from analysis.statistics.intervals import SAMPLES_FOR_QUANTILE

__all__ = [
    "ALL_BURSTS",
    "IMPAIRED",
    "METRICS",
    "Metric",
    "describe",
    "expand",
    "impairment_kinds",
    "names",
    "per_run",
]


def per_run(results: Results) -> pl.DataFrame:
    """One row per ok run: `run_key`, `arm`, `seed`, the factors, and a column per metric."""
    labels = ["run_key", "arm", "seed", *results.factor_columns]
    frame = pl.DataFrame(
        [
            {
                "run_key": run.key,
                "arm": run.arm,
                "seed": run.seed,
                **{
                    column: factor_text(run.factors.get(column.removeprefix(FACTOR_PREFIX)))
                    for column in results.factor_columns
                },
                "_expected": run.config.get("rounds"),
            }
            for run in results.ok_runs
        ],
        schema=dict.fromkeys(labels, pl.String) | {"seed": pl.Int64, "_expected": pl.Int64},
        strict=False,
    )
    for part in (
        _latency(results.rounds),
        _impaired_latency(results),
        _loss(results.transfers),
        _sending(results.transfers),
        learning.final(results),
        learning.to_target(results),
        learning.effects(results.effects),
        learning.pace_overruns(results),
        _dropped(results.impairments),
    ):
        frame = frame.join(part, on="run_key", how="left", maintain_order="left")
    whole = (pl.col("_rounds") == pl.col("_expected")) | pl.col("_expected").is_null()
    return frame.with_columns(
        # A log that lost rounds says nothing about the whole run's time, bytes or slowest round.
        pl.when(whole).then(pl.col(name)).alias(name)
        for name in ("training_time_s", "round_latency_s.max", "bytes_sent")
    ).drop("_rounds", "_expected")


def _latency(rounds: pl.DataFrame) -> pl.DataFrame:
    latency, iteration = pl.col("latency_s"), pl.col("iteration_s")
    hit = pl.col("impairments").list.len() > 0
    calm = pl.col("impairments").list.len() == 0
    return rounds.group_by("run_key").agg(
        pl.len().cast(pl.Int64).alias("_rounds"),
        _sum(iteration).alias("training_time_s"),
        (iteration.count() / iteration.sum()).alias("rounds_per_s"),
        latency.mean().alias("round_latency_s.mean"),
        latency.median().alias("round_latency_s.p50"),
        _tail(latency, 0.95).alias("round_latency_s.p95"),
        _tail(latency, 0.99).alias("round_latency_s.p99"),
        latency.max().alias("round_latency_s.max"),
        latency.filter(hit).mean().alias("round_latency_s.burst_mean"),
        latency.filter(calm).mean().alias("round_latency_s.calm_mean"),
        pl.col("tolerance_gather").filter(hit).mean().alias("burst_tolerance.gather"),
        pl.col("tolerance_broadcast").filter(hit).mean().alias("burst_tolerance.broadcast"),
        (_sum(latency) / _sum(iteration)).alias("communication_share"),
        ((_sum(iteration) - _sum(latency)) / _sum(latency)).alias("compute_to_communication"),
        pl.col("critical").cast(pl.Float64).mean().alias("critical_share"),
        pl.col("workers_lost").list.len().max().cast(pl.Float64).alias("workers_lost"),
    )


def _impaired_latency(results: Results) -> pl.DataFrame:
    """Mean latency of the rounds that each kind of impairment hit, one column per kind."""
    kinds = pl.DataFrame(
        [
            {"run_key": run.key, "impairments": label, "kind": kind}
            for run in results.ok_runs
            for label, kind in impairment_kinds(run.config.get("impairments")).items()
        ],
        schema={"run_key": pl.String, "impairments": pl.String, "kind": pl.String},
    )
    means = (
        results.rounds.select("run_key", "round", "latency_s", "impairments")
        .explode("impairments")
        .join(kinds, on=["run_key", "impairments"], how="inner")
        .unique(["run_key", "round", "kind"])
        .group_by("run_key", "kind")
        .agg(pl.col("latency_s").mean())
    )
    frame = pl.DataFrame({"run_key": means["run_key"].unique()}, schema={"run_key": pl.String})
    for kind in sorted(means["kind"].unique()):
        column = means.filter(pl.col("kind") == kind)
        frame = frame.join(
            column.select("run_key", pl.col("latency_s").alias(IMPAIRED + kind)),
            on="run_key",
            how="left",
        )
    return frame


def impairment_kinds(impairments: object) -> dict[str, str]:
    """The kind of each configured impairment by the name that the logs use."""
    entries: Iterable[object] = impairments if isinstance(impairments, list) else []
    return {
        str(entry.get("name") or f"{entry.get('kind')}-{entry.get('host')}"): str(entry.get("kind"))
        for entry in entries
        if isinstance(entry, dict)
    }


def _loss(transfers: pl.DataFrame) -> pl.DataFrame:
    received = transfers.filter(
        (pl.col("role") == "receiver") & pl.col("chunks_received").is_not_null()
    )
    of_leg = [
        (
            1
            - pl.col("chunks_received").filter(pl.col("leg") == leg).sum()
            / _sum(pl.col("chunk_count").filter(pl.col("leg") == leg))
        ).alias(f"realised_loss.{leg}")
        for leg in ("gather", "broadcast")
    ]
    return received.group_by("run_key").agg(of_leg)


def _sending(transfers: pl.DataFrame) -> pl.DataFrame:
    return (
        transfers.filter(pl.col("role") == "sender")
        .group_by("run_key")
        .agg(
            pl.col("passes").mean().alias("passes_per_transfer"),
            _sum(pl.col("bytes_sent")).cast(pl.Float64).alias("bytes_sent"),
        )
    )


def _dropped(impairments: pl.DataFrame) -> pl.DataFrame:
    return (
        impairments.filter(pl.col("action") == "end")
        .group_by("run_key")
        .agg(_sum(pl.col("dropped")).cast(pl.Float64).alias("packets_dropped"))
    )


def _sum(column: pl.Expr) -> pl.Expr:
    """A sum that is null, not 0, over nothing."""
    return pl.when(column.count() > 0).then(column.sum())


def _tail(column: pl.Expr, q: float) -> pl.Expr:
    enough = column.count() >= SAMPLES_FOR_QUANTILE[q]
    return pl.when(enough).then(column.quantile(q, interpolation="linear"))
