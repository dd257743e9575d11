"""The registry of what is measured: each quantity's label, unit, direction and exact meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

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
            "perplexity",
            "Final test perplexity (lower is better)",
            "count",
            "mean over the workers' replicas at the last evaluation; 1 would be perfect",
        ),
        (
            "time_to_target_s",
            "Training time to the target",
            "s",
            "without evaluation, until the replicas' mean first reached `training.target`; only "
            "runs that reached it",
        ),
        (
            "rounds_to_target",
            "Rounds to the target",
            "count",
            "until the replicas' mean first reached `training.target`; only runs that reached it",
        ),
        (
            "target_reached",
            "Runs that reached the target",
            "share",
            "of the runs that have a `training.target`",
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
            "compute_to_communication",
            "Computing over communicating",
            "count",
            "time of an iteration outside gather and broadcast / time in them, summed over a run",
        ),
        (
            "pace_overrun_share",
            "Iterations slower than their pace",
            "share",
            "of the workers' iterations, where `training.pace` gives a time: beyond it",
        ),
        (
            "relative_error.gathered",
            "Relative error of the gathered gradient",
            "share",
            "L2 norm of (gathered - lossless mean) / that of the lossless mean, mean over rounds",
        ),
        (
            "relative_error.applied",
            "Relative error of the applied gradient",
            "share",
            "the same after the broadcast, mean over workers and rounds",
        ),
        (
            "cosine.gathered",
            "Cosine of the gathered gradient",
            "count",
            "of the angle between it and the lossless mean, mean over rounds",
        ),
        (
            "cosine.applied",
            "Cosine of the applied gradient",
            "count",
            "the same after the broadcast, mean over workers and rounds",
        ),
        (
            "replica_divergence",
            "Divergence of the replicas, at the end",
            "share",
            "root mean square distance of the workers' weights from their mean / the mean's norm",
        ),
        (
            "workers_lost",
            "Workers lost",
            "count",
            "gone at the end of a run that went on without them",
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
