"""Keeps what was measured of runs in `.measures/`, until any of their files or the code changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data import logs, measure
from analysis.data.evidence import Run
from analysis.data.run_directories import CONFIG

FOLDER = ".measures"
_INDEX = "index.json"

Tables = dict[str, pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The tables of some runs, by name; `marks` says which files they are of, by the run's key."""

    tables: Tables
    marks: dict[str, str]
    new: list[str]


def of_runs(folder: Path, runs: Sequence[Run]) -> Measured:
    """The tables of an experiment's ok runs: kept ones where they are still true, else new ones."""
    marks = {run.key: _mark(run) for run in runs}
    kept, tables = _read(folder / FOLDER)
    fresh = {key for key, mark in kept.items() if marks.get(key) == mark}
    parts = [{name: _of(frame, fresh) for name, frame in tables.items()}] if fresh else []
    _remark(runs, parts)
    missing = [run for run in runs if run.key not in fresh]
    parts += [measure.measure(batch) for batch in logs.batches(missing)] or (
        [] if parts else [measure.measure([])]
    )
    joined = {
        name: pl.concat([part[name] for part in parts], how="diagonal") for name in measure.TABLES
    }
    return Measured(tables=joined, marks=marks, new=[run.key for run in missing])


def keep(folder: Path, measured: Measured) -> None:
    """Write the tables, in place of older ones, where any is new; whole or not at all."""
    place = folder / FOLDER
    if (folder / CONFIG).is_file():
        return
    if not measured.new and set(_index(place).get("runs", {})) == set(measured.marks):
        return
    place.mkdir(exist_ok=True)
    names = {name: f"{name}-{secrets.token_hex(4)}.parquet" for name in measure.TABLES}
    try:
        for name, frame in measured.tables.items():
            frame.write_parquet(place / names[name], compression="zstd", compression_level=1)
        sizes = {name: [file, (place / file).stat().st_size] for name, file in names.items()}
        index = {"code": _code(), "tables": sizes, "runs": measured.marks}
        new = place / f".{_INDEX}.new"
        new.write_text(json.dumps(index), encoding="utf-8")
        new.replace(place / _INDEX)
    finally:  # what no index names is of no use: the older tables, or those that failed
        used = {file for file, _ in _index(place).get("tables", {}).values()} | {_INDEX}
        for path in place.iterdir():
            if path.name not in used:
                path.unlink()


def _of(frame: pl.DataFrame, keys: set[str]) -> pl.DataFrame:
    return frame.filter(pl.col("run_key").is_in(keys))


def _remark(runs: Sequence[Run], parts: Sequence[Tables]) -> None:
    """Say again what was wrong with the logs of the runs whose tables were kept."""
    by_key = {run.key: run for run in runs}
    for part in parts:
        for key, problem in part["problems"].iter_rows():
            logs.remark(by_key[key], [problem])


def _index(place: Path) -> dict[str, Any]:
    """What the index says; empty where there is none that this code has written."""
    try:
        found = json.loads((place / _INDEX).read_bytes())
        return dict(found) if found["code"] == _code() else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _read(place: Path) -> tuple[dict[str, str], Tables]:
    """The marks and the tables that are kept; nothing where not all of them are whole."""
    index = _index(place)
    with contextlib.suppress(OSError, pl.exceptions.PolarsError, LookupError, TypeError):
        tables = {}
        for name in measure.TABLES:
            file, size = index["tables"][name]
            if (place / file).stat().st_size != size:
                return {}, {}
            tables[name] = pl.read_parquet(place / file)
        return dict(index["runs"]), tables
    return {}, {}


def _mark(run: Run) -> str:
    """What tells whether any file that is measured has changed: names, sizes and times."""
    assert run.directory is not None
    found = []
    for folder in (run.directory, run.directory / "events", run.directory / "samples"):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".json", ".jsonl", ".parquet")):
                    facts = entry.stat()
                    found.append(f"{entry.name} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.blake2b("\n".join(sorted(found)).encode(), digest_size=16).hexdigest()


@cache
def _code() -> str:
    """What tells one version of the measuring code, and of the library under it, from another."""
    digest = hashlib.blake2b(pl.__version__.encode(), digest_size=16)
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.csv")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()
