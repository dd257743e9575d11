"""Reads a run's samples: what is not there is empty, since older runs and killed ones have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

QUEUES = {
    "t_s": pl.Float64,
    "link": pl.String,
    "from": pl.String,
    "backlog_bytes": pl.Int64,
    "backlog_packets": pl.Int64,
    "sent_bytes": pl.Int64,
    "sent_packets": pl.Int64,
    "drops": pl.Int64,
}
FLOWS = {
    "t_s": pl.Float64,
    "host": pl.String,
    "peer": pl.String,
    "leg": pl.String,
    "kind": pl.String,
    "cwnd_bytes": pl.Float64,
    "rtt_s": pl.Float64,
    "rate_bps": pl.Float64,
    "retransmits": pl.Float64,
}
PROCESSES = {
    "t_s": pl.Float64,
    "name": pl.String,
    "cpu_s": pl.Float64,
    "rss_bytes": pl.Int64,
}


def queues(run: Path) -> pl.DataFrame:
    """`samples/queues.parquet`: a row per directed link and sample, counters since the start."""
    return _table(run, "queues", QUEUES)


def flows(run: Path) -> pl.DataFrame:
    """`samples/flows.parquet`: the congestion state of each sender."""
    return _table(run, "flows", FLOWS)


def processes(run: Path) -> pl.DataFrame:
    """`samples/processes.parquet`: processor time since the start, and resident memory."""
    return _table(run, "processes", PROCESSES)


def sampler(run: Path) -> dict[str, Any]:
    """`samples/sampler.json`: at what rate and at what cost was sampled."""
    try:
        document = json.loads((run / "samples" / "sampler.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _table(run: Path, name: str, schema: dict[str, Any]) -> pl.DataFrame:
    """A table with the columns of a schema; empty where it is missing or cannot be read."""
    try:
        frame = pl.read_parquet(run / "samples" / f"{name}.parquet")
        return frame.select(pl.col(each).cast(kind) for each, kind in schema.items())
    except (OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=schema)
