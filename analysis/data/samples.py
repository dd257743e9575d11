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


def scan(run: Path, name: str) -> pl.LazyFrame | None:
    """A table with the columns of its schema, not read yet; None where the run has none.

    Columns that earlier versions did not have are null.

    Raises:
        ValueError: it is half-written, or of another version: one line.
    """
    path, schema = run / "samples" / f"{name}.parquet", FRAMES[name].schema
    if not path.exists():
        return None
    try:
        found = pl.read_parquet_schema(path)
    except (OSError, pl.exceptions.PolarsError):
        raise ValueError(
            f"{path}: cannot be read, it is half-written or damaged; delete it to go on without "
            "these samples, or measure the run again"
        ) from None
    lacking = [each for each in schema if each not in found]
    if not set(lacking) <= set(_NEWER):
        raise ValueError(
            f"{path}: has no column {', '.join(lacking)}; these samples are of another version: "
            "read them with the version named in manifest.json's `commit`"
        )
    frame = pl.scan_parquet(path, glob=False)
    return frame.with_columns(pl.lit(None).alias(each) for each in lacking).select(
        pl.col(each).cast(kind) for each, kind in schema.items()
    )


def problems(run: Path, name: str) -> list[str]:
    """Why a table that is there cannot be read; empty where it can."""
    try:
        scan(run, name)
    except ValueError as error:
        return [str(error).replace(f"{run}/", "", 1)]
    return []


def _table(run: Path, name: str, schema: Schema) -> pl.DataFrame:
    """A table with the columns of a schema; empty where it is missing or cannot be read."""
    try:
        frame = scan(run, name)
        return pl.DataFrame(schema=schema) if frame is None else frame.collect()
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=schema)
