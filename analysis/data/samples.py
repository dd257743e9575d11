"""Reads a run's samples: what is not there is empty, since older runs and killed ones have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data.frame_columns import FRAMES, SAMPLES
from analysis.data.records import Schema, read_document, section

QUEUES, FLOWS, PROCESSES = (FRAMES[name].schema for name in SAMPLES)
_NEWER = ("port", "peer_port", "acked_bytes", "pid", "host")


def queues(run: Path) -> pl.DataFrame:
    """`samples/queues.parquet`: a row per directed link and sample, counters since the start."""
    return _table(run, "queues", QUEUES)


def flows(run: Path) -> pl.DataFrame:
    """`samples/flows.parquet`: the congestion state of each sender."""
    return _table(run, "flows", FLOWS)


def processes(run: Path) -> pl.DataFrame:
    """`samples/processes.parquet`: processor time since the start, and resident memory."""
    return _table(run, "processes", PROCESSES)


def cpu_s_of_hosts(run: Path) -> dict[str, float]:
    """Host -> processor seconds of all processes in it that were sampled, by the hosts' names.

    The last value of each counts. So what a process used after its last sample is missing, and so
    are shells and what ended between two looks for new processes (see `sampling.processes`).
    """
    of_each = processes(run).drop_nulls("host").group_by("host", "pid").agg(pl.col("cpu_s").max())
    found = of_each.group_by("host").agg(pl.col("cpu_s").sum()).sort("host")
    return dict(found.iter_rows())


def share_use(run: Path) -> dict[str, dict[str, Any]]:
    """Host with a share of the processors -> what its control groups say (`conservation.json`)."""
    return section(read_document(run / "conservation.json", []), "host_cpu")


def sampler(run: Path) -> dict[str, Any]:
    """`samples/sampler.json`: at what rate and at what cost was sampled."""
    try:
        document = json.loads((run / "samples" / "sampler.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _table(run: Path, name: str, schema: Schema) -> pl.DataFrame:
    """A table with the columns of a schema; empty where it is missing or cannot be read.

    Columns that earlier versions did not have are null.
    """
    try:
        frame = pl.read_parquet(run / "samples" / f"{name}.parquet")
        newer = [each for each in _NEWER if each in schema and each not in frame.columns]
        frame = frame.with_columns(pl.lit(None).alias(each) for each in newer)
        return frame.select(pl.col(each).cast(kind) for each, kind in schema.items())
    except (OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=schema)
