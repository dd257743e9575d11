"""The registry of metrics: `metrics.csv` says what each is, `_VALUES` how one run measures it.

A `{}` in a name stands for a kind of impairment, or for a user's program, flow, host or link.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

LEGS = ("gather", "broadcast")
TASK_METRICS = ("accuracy", "perplexity")
ALL_BURSTS = "round_latency_s.burst_mean"
GATHER_BURSTS = "gather_latency_s.burst_mean"
IMPAIRED = "impaired_latency_s."  # followed by a kind of impairment
TOLERANCE_VARIED = "tolerance_varied"  # a column of the runs' rows that is no metric


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a run: a line of `metrics.csv`."""

    name: str  # its path in `summary.json`
    label: str  # its name in tables, without the unit
    unit: str  # `s`, `bytes`, `bps`, `share`, `per_s` or `count`
    tables: str  # those of the report that show it, apart from that of a user's programs
    log: str  # the rows that it is computed from, of those that `measure` makes
    whole_log: bool  # a log that lost rounds gives no value
    optional: bool  # tables leave it out where no arm has a value
    meaning: str  # its exact definition, for the report
    absent: str  # why an arm may have no value, for a footnote

    @property
    def value(self) -> pl.Expr:
        """An aggregation of one run's rows of `log`; null where the run has no value."""
        if self.name.startswith(IMPAIRED):
            kind = self.name.removeprefix(IMPAIRED)
            return _LATENCY.filter(pl.col("kind") == kind).mean()
        return _VALUES[self.name]


def _sum(column: pl.Expr) -> pl.Expr:
    """A sum that is null, not 0, over nothing."""
    return pl.when(column.count() > 0).then(column.sum())


def _loss(leg: str) -> pl.Expr:
    on_leg = pl.col("leg") == leg
    received = pl.col("chunks_received").filter(on_leg).sum()
    return 1 - received / _sum(pl.col("chunk_count").filter(on_leg))


def _percentile(percent: int, fewest: int) -> pl.Expr:
    """A percentile of a run's latencies; none with fewer rounds: one is to lie beyond it."""
    return pl.when(_LATENCY.count() >= fewest).then(
        _LATENCY.quantile(percent / 100, interpolation="linear")
    )


_LATENCY, _ITERATION = pl.col("latency_s"), pl.col("iteration_s")
_HIT = pl.col("impairments").list.len() > 0
_CALM = pl.col("impairments").list.len() == 0
_TARGET = pl.col("target")
_REACHED = (pl.col("accuracy") >= _TARGET) | (pl.col("perplexity") <= _TARGET)
_VALUES = {
    ALL_BURSTS: _LATENCY.filter(_HIT).mean(),
    GATHER_BURSTS: pl.col("gather_s").filter(_HIT).mean(),
    "round_latency_s.calm_mean": _LATENCY.filter(_CALM).mean(),
    "round_latency_s.mean": _LATENCY.mean(),
    "round_latency_s.p50": _LATENCY.median(),
    "round_latency_s.p95": _percentile(95, 20),
    "round_latency_s.p99": _percentile(99, 100),
    "round_latency_s.p99_over_p50": _percentile(99, 100) / _LATENCY.median(),
    "round_latency_s.max": _LATENCY.max(),
    "training_time_s": _sum(_ITERATION),
    # Scripts for torchrun log no iterations: 0 / 0 would be no number.
    "rounds_per_s": pl.when(_ITERATION.count() > 0).then(_ITERATION.count() / _ITERATION.sum()),
    "accuracy": pl.col("accuracy").last(),
    "perplexity": pl.col("perplexity").last(),
    "time_to_target_s": pl.col("elapsed_s").filter(_REACHED).first(),
    "rounds_to_target": pl.col("round").filter(_REACHED).first() + 1.0,  # logs count from 0
    "target_reached": pl.when(_TARGET.count() > 0).then(_REACHED.any().cast(pl.Float64)),
    **{f"realised_loss.{leg}": _loss(leg) for leg in LEGS},
    "passes_per_transfer": pl.col("passes").mean(),
    "bytes_sent": _sum(pl.col("bytes_sent")).cast(pl.Float64),
    "communication_share": _sum(_LATENCY) / _sum(_ITERATION),
    "compute_to_communication": (_sum(_ITERATION) - _sum(_LATENCY)) / _sum(_LATENCY),
    "pace_overrun_share": (pl.col("compute_overrun_s") > 0).cast(pl.Float64).mean(),
    **{
        f"{name}.{stage}": pl.col(f"{name}.{stage}").mean()
        for name in ("relative_error", "cosine")
        for stage in ("gathered", "applied")
    },
    "replica_divergence": pl.col("divergence").drop_nulls().last(),
    "workers_lost": pl.col("workers_lost").list.len().max().cast(pl.Float64),
    **{f"burst_tolerance.{leg}": pl.col(f"tolerance_{leg}").filter(_HIT).mean() for leg in LEGS},
    "critical_share": pl.col("critical").cast(pl.Float64).mean(),
    "packets_dropped": _sum(pl.col("dropped")).cast(pl.Float64),
}


def _read() -> dict[str, Metric]:
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    registry = {}
    for line in csv.DictReader(text.splitlines()):
        absent = line.pop("absent") or "not in the logs of this arm's runs"
        whole_log, optional = (bool(line.pop(name)) for name in ("whole_log", "optional"))
        metric = Metric(**line, whole_log=whole_log, optional=optional, absent=absent)
        registry[metric.name] = metric
    return registry


REGISTRY = _read()
METRICS = tuple(each for name, each in REGISTRY.items() if "{}" not in name)
_OF_PROGRAMS = [name for name, each in REGISTRY.items() if each.log == "programs"]
SECTIONS = tuple(dict.fromkeys(name.partition(".")[0] for name in _OF_PROGRAMS))


def in_table(table: str) -> list[str]:
    """The metrics that a table shows (a column of the registry); of `IMPAIRED` the kinds follow."""
    return [
        name.removesuffix("{}") for name, each in REGISTRY.items() if table in each.tables.split()
    ]


def is_metric(name: str) -> bool:
    """Whether a column of the runs' rows is a metric."""
    return _divided(name)[0] in REGISTRY


def is_tail_quantile(name: str) -> bool:
    """Whether a metric is a 95th or 99th percentile, or a ratio of one."""
    return "p9" in name.rpartition(".")[2]


def is_of_programs(name: str) -> bool:
    """Whether a metric is one of a user's own programs."""
    return _divided(name)[0] in _OF_PROGRAMS


def order(name: str) -> tuple[int, str]:
    """A sort key of programs' metrics: by quantity, then by name."""
    pattern, who = _divided(name)
    return _OF_PROGRAMS.index(pattern), who


def describe(name: str) -> Metric:
    """A metric by its name."""
    pattern, who = _divided(name)
    metric = REGISTRY[pattern]
    if not who:
        return metric
    label = metric.label.format(who.replace("->", " \u2192 "))
    return replace(metric, name=name, label=label, meaning=metric.meaning.format(who))


def _divided(name: str) -> tuple[str, str]:
    """The name in the registry, and what stands there for `{}`."""
    if name in REGISTRY:
        return name, ""
    if name.startswith(IMPAIRED):
        return f"{IMPAIRED}{{}}", name.removeprefix(IMPAIRED)
    section, _, rest = name.partition(".")
    who, _, quantity = rest.rpartition(".")
    return f"{section}.{{}}.{quantity}", who
