"""The metrics of a run: `metrics.csv` says of each what it is and, in SQL, how it is computed.

To add a metric, and with it a row of the main table, add a line to `metrics.csv`. Its `value` is an
aggregation over one run's rows of the table that `log` names, one of `measure`.
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
    log: str  # the table that it is computed from
    value: str  # an SQL aggregation of a run's rows of `log`; null where the run has no value
    tables: str  # those of the report that show it, apart from that of a user's programs
    whole_log: bool  # a log that lost rounds gives no value
    optional: bool  # tables leave it out where no arm has a value
    meaning: str  # its exact definition, for the report
    absent: str  # why an arm may have no value, for a footnote

    @property
    def expression(self) -> pl.Expr:
        return pl.sql_expr(self.value).cast(pl.Float64).alias(self.name)


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
METRICS = tuple(metric for name, metric in REGISTRY.items() if "{}" not in name)
_OF_PROGRAMS = [name for name, metric in REGISTRY.items() if metric.log == "programs"]
SECTIONS = tuple(dict.fromkeys(name.partition(".")[0] for name in _OF_PROGRAMS))


def in_table(table: str) -> list[str]:
    """List the metrics that a table shows; those of `IMPAIRED`'s kinds come in its place."""
    return [
        name.removesuffix("{}")
        for name, metric in REGISTRY.items()
        if table in metric.tables.split()
    ]


def is_metric(name: str) -> bool:
    return _pattern(name)[0] in REGISTRY


def is_tail_quantile(name: str) -> bool:
    """Tell a 95th or 99th percentile, or a ratio of one, from other metrics."""
    return "p9" in name.rpartition(".")[2]


def metric_names(frame: pl.DataFrame) -> list[str]:
    kinds = sorted(name for name in frame.columns if name.startswith(IMPAIRED))
    of_programs = [name for name in frame.columns if _pattern(name)[0] in _OF_PROGRAMS]
    present = [metric.name for metric in METRICS if metric.name in frame.columns]
    if of_programs:
        present = [name for name in present if frame[name].count()]
    return [*present, *of_programs, *kinds]


def order(name: str) -> tuple[int, str]:
    """A sort key of programs' metrics: by quantity, then by name."""
    pattern, subject = _pattern(name)
    return _OF_PROGRAMS.index(pattern), subject


def describe(name: str) -> Metric:
    pattern, subject = _pattern(name)
    metric = REGISTRY[pattern]
    if not subject:
        return metric
    return replace(
        metric,
        name=name,
        label=metric.label.format(subject.replace("->", " \u2192 ")),
        value=metric.value.format(subject.replace("'", "''")),
        meaning=metric.meaning.format(subject),
    )


def _pattern(name: str) -> tuple[str, str]:
    """Split a metric's name into its name in the registry and what stands there for `{}`."""
    if name in REGISTRY:
        return name, ""
    if name.startswith(IMPAIRED):
        return f"{IMPAIRED}{{}}", name.removeprefix(IMPAIRED)
    section, _, rest = name.partition(".")
    subject, _, quantity = rest.rpartition(".")
    return f"{section}.{{}}.{quantity}", subject
