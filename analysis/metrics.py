"""What one run measured: one row per ok run, one column per metric; null where it has no value.

A metric's name is its path in `summary.json`, with dots. Tail quantiles are those of one run's
rounds and are null where that run has too few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analysis.load import FACTOR_PREFIX, Results, factor_text
from analysis.statistics import SAMPLES_FOR_QUANTILE

ALL_BURSTS = "round_latency_s.burst_mean"
IMPAIRED = "impaired_latency_s."  # followed by a kind of impairment


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric's label, unit (`s`, `bytes`, `share`, `per_s`, `count`) and exact meaning."""

    name: str
    label: str
    unit: str
    meaning: str


METRICS = tuple(
    Metric(name=name, label=label, unit=unit, meaning=meaning)
    for name, label, unit, meaning in (
        (
            "round_latency_s.burst_mean",
            "Round latency, burst rounds",
            "s",
            "gather + broadcast, mean over the rounds in which an impairment was active",
        ),
        (
            "round_latency_s.calm_mean",
            "Round latency, calm rounds",
            "s",
            "mean over the rounds without an impairment",
        ),
        ("round_latency_s.mean", "Round latency, mean", "s", "mean over all rounds of a run"),
        ("round_latency_s.p50", "Round latency, median", "s", "median over all rounds of a run"),
        ("round_latency_s.p95", "Round latency, p95", "s", "95th percentile of a run's rounds"),
        ("round_latency_s.p99", "Round latency, p99", "s", "99th percentile of a run's rounds"),
        ("round_latency_s.max", "Round latency, maximum", "s", "the slowest round of a run"),
        (
            "training_time_s",
            "Training time",
            "s",
            "sum of all iterations: compute, gather and broadcast, without evaluation",
        ),
        ("rounds_per_s", "Rounds per second", "per_s", "rounds / training time"),
        (
            "accuracy",
            "Final test accuracy",
            "share",
            "mean over the workers' replicas at the last evaluation",
        ),
        (
            "realised_loss.gather",
            "Realised loss, gather",
            "share",
            "share of chunks that receivers had not got when they stopped",
        ),
        (
            "realised_loss.broadcast",
            "Realised loss, broadcast",
            "share",
            "share of chunks that receivers had not got when they stopped",
        ),
        (
            "passes_per_transfer",
            "Passes per transfer",
            "count",
            "sweeps of a sender over the chunks still missing, mean over transfers",
        ),
        ("bytes_sent", "Bytes sent", "bytes", "by all senders in a whole run, repeats included"),
        (
            "communication_share",
            "Share of time in communication",
            "share",
            "round latency / iteration time, summed over a run",
        ),
        (
            "burst_tolerance.gather",
            "Tolerance in burst rounds, gather",
            "share",
            "mean of the loss that was allowed in the rounds in which an impairment was active",
        ),
        (
            "burst_tolerance.broadcast",
            "Tolerance in burst rounds, broadcast",
            "share",
            "mean of the loss that was allowed in the rounds in which an impairment was active",
        ),
        ("critical_share", "Share of critical rounds", "share", "rounds with the low tolerance"),
        (
            "packets_dropped",
            "Packets dropped by impairments",
            "count",
            "as the controller counted them in a whole run",
        ),
    )
)
_BY_NAME = {metric.name: metric for metric in METRICS}


def describe(name: str) -> Metric:
    """A metric by its name.

    Raises:
        KeyError: there is no such metric.
    """
    if name.startswith(IMPAIRED):
        kind = name.removeprefix(IMPAIRED)
        return Metric(
            name=name,
            label=f"Round latency, rounds hit by {kind}",
            unit="s",
            meaning=f"mean over the rounds hit by an impairment of kind {kind}",
        )
    return _BY_NAME[name]


def names(frame: pl.DataFrame) -> list[str]:
    """The metrics among the columns of `per_run`'s frame, in the registry's order."""
    kinds = sorted(name for name in frame.columns if name.startswith(IMPAIRED))
    return [metric.name for metric in METRICS if metric.name in frame.columns] + kinds


def expand(rows: Sequence[str], arms: Mapping[str, Any]) -> list[str]:
    """A table's metrics: `IMPAIRED` becomes one per kind of impairment, if there are several.

    `arms` is that section of a summary.
    """
    prefix = IMPAIRED.rstrip(".")
    kinds = sorted({kind for cell in arms.values() for kind in cell.get(prefix, {})})
    found: list[str] = []
    for name in rows:
        if name != IMPAIRED:
            found.append(name)
        elif len(kinds) > 1:
            found.extend(IMPAIRED + kind for kind in kinds)
    return found


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
        _accuracy(results.training),
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
        pl.col("critical").cast(pl.Float64).mean().alias("critical_share"),
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


def _accuracy(training: pl.DataFrame) -> pl.DataFrame:
    evaluated = training.filter(pl.col("accuracy").is_not_null())
    last = pl.col("round") == pl.col("round").max()
    return evaluated.group_by("run_key").agg(pl.col("accuracy").filter(last).mean())


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
