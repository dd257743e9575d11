"""Reads a run's samples: what is not there is empty, since killed runs have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from analysis.data.frame_columns import FRAMES, SAMPLES
from analysis.data.logs import Schema, read_document

QUEUES, FLOWS, PROCESSES = (FRAMES[name].schema for name in SAMPLES)
_UNREADABLE = (
    "cannot be read, it is half-written or damaged; delete it to go on without these samples, or "
    "measure the run again"
)


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
    """Host -> processor seconds of all processes in it that were sampled, by the hosts' names."""
    of_each = processes(run).drop_nulls("host").group_by("host", "pid").agg(pl.col("cpu_s").max())
    used = of_each.group_by("host").agg(pl.col("cpu_s").sum()).sort("host")
    return dict(used.iter_rows())


def sampler(run: Path) -> dict[str, Any]:
    """`samples/sampler.json`: at what rate and at what cost was sampled."""
    return read_document(run / "samples" / "sampler.json", [])


def scan(run: Path, name: str) -> pl.LazyFrame | None:
    """A table with the columns of its schema, not read yet; None where the run has none."""
    path, schema = run / "samples" / f"{name}.parquet", FRAMES[name].schema
    if not path.exists():
        return None
    try:
        columns = pl.read_parquet_schema(path)
    except (OSError, pl.exceptions.PolarsError):
        raise ValueError(f"{path}: {_UNREADABLE}") from None
    if lacking := [each for each in schema if each not in columns]:
        raise ValueError(
            f"{path}: has no column {', '.join(lacking)}; these samples are of another version: "
            "read them with the version named in manifest.json's `commit`"
        )
    frame = pl.scan_parquet(path, glob=False)
    return frame.select(pl.col(each).cast(kind) for each, kind in schema.items())


def _table(run: Path, name: str, schema: Schema) -> pl.DataFrame:
    """A table with the columns of a schema; empty where it is missing or cannot be read."""
    try:
        frame = scan(run, name)
        return pl.DataFrame(schema=schema) if frame is None else frame.collect()
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=schema)
