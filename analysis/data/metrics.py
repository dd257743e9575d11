"""The registry of metrics: what each is called, what it means, and how one run measures it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from analysis.data import program_metrics

LEGS = ("gather", "broadcast")
TASK_METRICS = ("accuracy", "perplexity")
ALL_BURSTS = "round_latency_s.burst_mean"
GATHER_BURSTS = "gather_latency_s.burst_mean"
IMPAIRED = "impaired_latency_s."  # followed by a kind of impairment


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric and how one run measures it.

    Attributes:
        name: its path in `summary.json`.
        label: its name in tables, without the unit.
        unit: `s`, `bytes`, `share`, `per_s` or `count`.
        meaning: its exact definition, for the report.
        value: an aggregation of one run's rows of `log`; null where the run has no value.
        log: the rows that it is computed from, one of those that `measure` makes.
        whole_log: whether a log that lost rounds gives no value at all.
        absent: why an arm may have no value, for a footnote.
        optional: whether tables leave it out where no arm has a value.
    """

    name: str
    label: str
    unit: str
    meaning: str
    value: pl.Expr
    log: str = "rounds"
    whole_log: bool = False
    absent: str = "not in the logs of this arm's runs"
    optional: bool = False


def _sum(column: pl.Expr) -> pl.Expr:
    """A sum that is null, not 0, over nothing."""
    return pl.when(column.count() > 0).then(column.sum())


def _loss(leg: str) -> pl.Expr:
    on_leg = pl.col("leg") == leg
    received = pl.col("chunks_received").filter(on_leg).sum()
    return 1 - received / _sum(pl.col("chunk_count").filter(on_leg))


_FEWEST_FOR_P99 = 100
_LATENCY, _ITERATION = pl.col("latency_s"), pl.col("iteration_s")
_HIT = pl.col("impairments").list.len() > 0
_CALM = pl.col("impairments").list.len() == 0
_TARGET = pl.col("target")
_REACHED = (pl.col("accuracy") >= _TARGET) | (pl.col("perplexity") <= _TARGET)
_NOT_HIT = "no round of an ok run was hit by an impairment"
_ERROR = "L2 norm of (gathered - lossless mean) / that of the lossless mean, mean over rounds"
_COSINE = "of the angle between it and the lossless mean, mean over rounds"
_AFTER_BROADCAST = "the same after the broadcast, mean over workers and rounds"
_NOT_REACHED = "no run of this arm reached the target"


def _latency(name: str, label: str, meaning: str, value: pl.Expr, **further: Any) -> Metric:
    """A metric of the round latency; `further` holds other fields of `Metric`."""
    name, label = f"round_latency_s.{name}", f"Round latency, {label}"
    return Metric(name=name, label=label, unit="s", meaning=meaning, value=value, **further)


def _percentile(percent: int, fewest: int) -> pl.Expr:
    """A percentile of a run's latencies; none with fewer rounds: one is to lie beyond it."""
    return pl.when(_LATENCY.count() >= fewest).then(
        _LATENCY.quantile(percent / 100, interpolation="linear")
    )


def _quantile(percent: int, fewest: int) -> Metric:
    value = _percentile(percent, fewest)
    meaning = f"{percent}th percentile of a run's rounds"
    absent = f"fewer than {fewest} rounds per run"
    return _latency(f"p{percent}", f"p{percent}", meaning, value, absent=absent)


METRICS = (
    _latency(
        "burst_mean",
        "burst rounds",
        "gather + broadcast, or the whole round where programs mark that; mean over the rounds in "
        "which an impairment was active",
        _LATENCY.filter(_HIT).mean(),
        absent=_NOT_HIT,
    ),
    Metric(
        name=GATHER_BURSTS,
        label="Gather, burst rounds",
        unit="s",
        meaning="mean of the gather leg over the rounds in which an impairment was active",
        value=pl.col("gather_s").filter(_HIT).mean(),
        absent="no round that was hit has a gather of its own in the logs",
        optional=True,  # programs may mark whole rounds
    ),
    _latency(
        "calm_mean",
        "calm rounds",
        "mean over the rounds without an impairment",
        _LATENCY.filter(_CALM).mean(),
    ),
    _latency("mean", "mean", "mean over all rounds of a run", _LATENCY.mean()),
    _latency("p50", "median", "median over all rounds of a run", _LATENCY.median()),
    _quantile(95, 20),
    _quantile(99, _FEWEST_FOR_P99),
    Metric(
        name="round_latency_s.p99_over_p50",
        label="Round latency, p99 / median",
        unit="count",
        meaning="how long the tail of a run's rounds is: 99th percentile / median",
        value=_percentile(99, _FEWEST_FOR_P99) / _LATENCY.median(),
        absent=f"fewer than {_FEWEST_FOR_P99} rounds per run",
        optional=True,
    ),
    _latency("max", "maximum", "the slowest round of a run", _LATENCY.max(), whole_log=True),
    Metric(
        name="training_time_s",
        label="Training time",
        unit="s",
        meaning="sum of all iterations: compute, gather and broadcast, without evaluation",
        value=_sum(_ITERATION),
        whole_log=True,
    ),
    Metric(
        name="rounds_per_s",
        label="Rounds per second",
        unit="per_s",
        meaning="rounds / training time",
        # Scripts for torchrun log no iterations: 0 / 0 would be no number.
        value=pl.when(_ITERATION.count() > 0).then(_ITERATION.count() / _ITERATION.sum()),
    ),
    Metric(
        name="accuracy",
        label="Final test accuracy",
        unit="share",
        meaning="mean over the workers' replicas at the last evaluation",
        log="evaluations",
        value=pl.col("accuracy").last(),
    ),
    Metric(
        name="perplexity",
        label="Final test perplexity (lower is better)",
        unit="count",
        meaning="mean over the workers' replicas at the last evaluation; 1 would be perfect",
        log="evaluations",
        value=pl.col("perplexity").last(),
        optional=True,
    ),
    Metric(
        name="time_to_target_s",
        label="Training time to the target",
        unit="s",
        meaning="without evaluation, until the replicas' mean first reached `training.target`; "
        "only runs that reached it",
        log="evaluations",
        value=pl.col("elapsed_s").filter(_REACHED).first(),
        absent=_NOT_REACHED,
        optional=True,
    ),
    Metric(
        name="rounds_to_target",
        label="Rounds to the target",
        unit="count",
        meaning="until the replicas' mean first reached `training.target`; only runs that "
        "reached it",
        log="evaluations",
        value=pl.col("round").filter(_REACHED).first() + 1.0,  # logs count from 0
        absent=_NOT_REACHED,
        optional=True,
    ),
    Metric(
        name="target_reached",
        label="Runs that reached the target",
        unit="share",
        meaning="of the runs that have a `training.target`",
        log="evaluations",
        value=pl.when(_TARGET.count() > 0).then(_REACHED.any().cast(pl.Float64)),
        optional=True,
    ),
    *(
        Metric(
            name=f"realised_loss.{leg}",
            label=f"Realised loss, {leg}",
            unit="share",
            meaning="share of chunks that receivers had not got when they stopped",
            log="receivers",
            value=_loss(leg),
            absent="no chunk counts were logged: a byte stream loses none",
        )
        for leg in LEGS
    ),
    Metric(
        name="passes_per_transfer",
        label="Passes per transfer",
        unit="count",
        meaning="sweeps of a sender over the chunks still missing, mean over transfers",
        log="senders",
        value=pl.col("passes").mean(),
        absent="this transport works without passes",
    ),
    Metric(
        name="bytes_sent",
        label="Bytes sent",
        unit="bytes",
        meaning="by all senders in a whole run, repeats included",
        log="senders",
        value=_sum(pl.col("bytes_sent")).cast(pl.Float64),
        whole_log=True,
    ),
    Metric(
        name="communication_share",
        label="Share of time in communication",
        unit="share",
        meaning="round latency / iteration time, summed over a run",
        value=_sum(_LATENCY) / _sum(_ITERATION),
    ),
    Metric(
        name="compute_to_communication",
        label="Computing over communicating",
        unit="count",
        meaning="time of an iteration outside gather and broadcast / time in them, summed over "
        "a run",
        value=(_sum(_ITERATION) - _sum(_LATENCY)) / _sum(_LATENCY),
    ),
    Metric(
        name="pace_overrun_share",
        label="Iterations slower than their pace",
        unit="share",
        meaning="of the workers' iterations, where `training.pace` gives a time: beyond it",
        log="paced_iterations",
        value=(pl.col("compute_overrun_s") > 0).cast(pl.Float64).mean(),
        optional=True,
    ),
    *(
        Metric(
            name=name,
            label=f"{label} of the {name.partition('.')[2]} gradient",
            unit=unit,
            meaning=meaning,
            log="effects",
            value=pl.col(name).mean(),
            optional=True,
        )
        for name, label, unit, meaning in (
            ("relative_error.gathered", "Relative error", "share", _ERROR),
            ("relative_error.applied", "Relative error", "share", _AFTER_BROADCAST),
            ("cosine.gathered", "Cosine", "count", _COSINE),
            ("cosine.applied", "Cosine", "count", _AFTER_BROADCAST),
        )
    ),
    Metric(
        name="replica_divergence",
        label="Divergence of the replicas, at the end",
        unit="share",
        meaning="root mean square distance of the workers' weights from their mean / the mean's "
        "norm",
        log="effects",
        value=pl.col("divergence").drop_nulls().last(),
        optional=True,
    ),
    Metric(
        name="workers_lost",
        label="Workers lost",
        unit="count",
        meaning="gone at the same time, at most, of a run that went on without them",
        value=pl.col("workers_lost").list.len().max().cast(pl.Float64),
    ),
    *(
        Metric(
            name=f"burst_tolerance.{leg}",
            label=f"Tolerance in burst rounds, {leg}",
            unit="share",
            meaning="mean of the loss that was allowed in the rounds in which an impairment was "
            "active",
            value=pl.col(f"tolerance_{leg}").filter(_HIT).mean(),
            absent=_NOT_HIT,
        )
        for leg in LEGS
    ),
    Metric(
        name="critical_share",
        label="Share of critical rounds",
        unit="share",
        meaning="rounds with the low tolerance",
        value=pl.col("critical").cast(pl.Float64).mean(),
    ),
    Metric(
        name="packets_dropped",
        label="Packets dropped by impairments",
        unit="count",
        meaning="as the controller counted them in a whole run",
        log="impairment_ends",
        value=_sum(pl.col("dropped")).cast(pl.Float64),
        absent="the controller reported no count",
    ),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


def is_metric(name: str) -> bool:
    """Whether a column of the runs' rows is a metric."""
    of_kind = name.startswith(IMPAIRED) or program_metrics.fields(name) is not None
    return of_kind or name in _BY_NAME


def describe(name: str) -> Metric:
    """A metric by its name."""
    if name.startswith(IMPAIRED):
        kind = name.removeprefix(IMPAIRED)
        return Metric(
            name=name,
            label=f"Round latency, rounds hit by {kind}",
            unit="s",
            meaning=f"mean over the rounds hit by an impairment of kind {kind}",
            log="impaired_rounds",
            value=_LATENCY.filter(pl.col("kind") == kind).mean(),
        )
    if (found := program_metrics.fields(name)) is not None:
        return Metric(**found, value=pl.col(name))
    return _BY_NAME[name]
