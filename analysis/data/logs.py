"""Reads run directories' files; what is missing or cut off becomes a remark, not an error."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analysis.data.evidence import (
    FACTOR_PREFIX,
    Run,
    factor_names,
    factor_text,
    is_of_script,
    kind_name,
    runs_programs,
    section,
)

SCHEMA = 1
Schema = Mapping[str, "Kind"]
Kind = pl.DataType | type[pl.DataType]
_UNITS = {"_s": "s", "_bps": "bit/s", "_bytes": "bytes", "_hz": "1/s"}
_KINDS: dict[str, Kind] = {
    "text": pl.String,
    "texts": pl.List(pl.String),
    "integer": pl.Int64,
    "float": pl.Float64,
    "boolean": pl.Boolean,
}
_OF_KIND: dict[Kind, Any] = {  # the types of JSON that a column takes
    pl.String: str,
    pl.List(pl.String): list,
    pl.Int64: int | float,
    pl.Float64: int | float,
    pl.Boolean: bool,
}


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    type: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class FrameColumns:
    """The columns of a frame, the file that they come from, and what a row stands for."""

    source: str
    row: str
    columns: Sequence[Column]

    @property
    def schema(self) -> dict[str, Kind]:
        return {column.name: _KINDS[column.type] for column in self.columns}


def unit_of(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _columns() -> dict[str, list[Column]]:
    columns: dict[str, list[Column]] = {}
    text = Path(__file__).with_name("frame_columns.csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        columns.setdefault(line.pop("frame"), []).append(Column(**line))
    return columns


_SOURCES = {
    "runs": ("status.json", "planned run, whatever its verdict"),
    "rounds": ("events/rounds.jsonl", "round"),
    "transfers": ("events/transfers-HOST.jsonl", "transfer and side"),
    "training": ("events/training-HOST.jsonl", "worker and round"),
    "impairments": ("events/impairments.jsonl", "begin or end of an impairment"),
    "effects": ("events/effects.jsonl", "measured round (`training.measure_every`)"),
    "queues": (
        "samples/queues.parquet",
        "end of a link and sample, about 100 a second; counters since the network was built",
    ),
    "flows": ("samples/flows.parquet", "sender and sample"),
    "processes": ("samples/processes.parquet", "process of the lab and sample, about 10 a second"),
}
_COLUMNS = _columns()
LABELS = _COLUMNS[""]
FRAMES = {
    name: FrameColumns(source=source, row=row, columns=_COLUMNS[name])
    for name, (source, row) in _SOURCES.items()
}
SAMPLES = ("queues", "flows", "processes")  # the frames of these, a file of each run
ROUNDS, TRANSFERS, TRAINING, IMPAIRMENTS = (
    FRAMES[name].schema for name in ("rounds", "transfers", "training", "impairments")
)


def read_document(path: Path, problems: list[str], *, needs_schema: bool = False) -> dict[str, Any]:
    """A JSON object; empty, with a remark in `problems`, where there is none to read."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(document, dict):
        problems.append(f"{path.name} is not a JSON object")
        return {}
    schema = document.get("schema", SCHEMA)
    if schema == SCHEMA:
        return document
    if needs_schema:
        raise ValueError(
            f"{path}: schema {schema!r}; valid: {SCHEMA}. These results are of another version of "
            f"the lab: run './lab run {path.parent.name} --out OTHER-DIR', or read them with the "
            "version named in a manifest.json's `commit` there"
        )
    problems.append(f"{path.name} has schema {schema!r}; this version reads {SCHEMA}")
    return {}


def congestion_controls(directory: Path) -> list[str]:
    names = set()
    for path in (directory / "events").glob("endpoint-*.jsonl"):
        try:
            records = [json.loads(line) for line in path.read_bytes().splitlines()]
            facts = [fact for record in records for fact in record["facts"].values()]
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue  # cut off, or of another version
        names |= {str(fact["congestion_control"]) for fact in facts if "congestion_control" in fact}
    return sorted(re.sub(r"[^:=,]*/", "", name) for name in names)


def read_lines(path: Path, schema: Schema, problems: list[str]) -> pl.DataFrame:
    """A JSON-lines log as a frame with the columns of `schema`; what a record lacks is null."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        problems.append(f"events/{path.name} is missing")
        return pl.DataFrame(schema=schema)
    except OSError as error:
        problems.append(f"events/{path.name} cannot be read: {error.strerror}")
        return pl.DataFrame(schema=schema)
    with contextlib.suppress(pl.exceptions.PolarsError):  # the fast way
        frame = pl.read_ndjson(content, schema=dict(schema))
        is_whole = content.endswith(b"\n") and frame.height == content.count(b"\n")
        finite = frame.select(pl.all_horizontal(pl.col(pl.Float64).is_finite().all())).item()
        if is_whole and finite is not False and not frame["round"].null_count():
            return frame
    return _line_by_line(path, content, schema, problems)


def _line_by_line(path: Path, content: bytes, schema: Schema, problems: list[str]) -> pl.DataFrame:
    """Read a log with broken lines, numbers that are not finite, or values of wrong types."""
    rows: list[dict[str, Any]] = []
    broken: list[int] = []
    nonfinite: list[int] = []

    def finite(text: str) -> float | None:
        value = float(text)
        if math.isfinite(value):
            return value
        nonfinite.append(number)
        return None

    lines = content.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, parse_float=finite, parse_constant=finite)
            if type(record["round"]) is not int:
                raise ValueError("not a record with a round")
        except (ValueError, LookupError, TypeError):
            broken.append(number)
            continue
        row = {}
        for name, kind in schema.items():
            value = record.get(name)
            if isinstance(value, dict):
                value = json.dumps(value)  # as the fast way has it
            fits = isinstance(value, _OF_KIND[kind] | None)
            if fits and kind == pl.Int64:
                fits = value is None or -(2**63) <= value < 2**63
            if not fits:
                valid = "a number" if kind in (pl.Float64, pl.Int64) else str(kind).lower()
                raise ValueError(
                    f"{path}, line {number}: {name} {value!r}; valid: {valid}, or null"
                )
            row[name] = value
        rows.append(row)
    if broken == [len(lines)] and not content.endswith(b"\n"):
        problems.append(f"events/{path.name}: last line (line {len(lines)}) is cut off")
    elif broken:
        problems.append(f"events/{path.name}: {len(broken)} broken lines left out {_few(broken)}")
    if nonfinite:
        words = "NaN or infinity, taken for no value"
        problems.append(f"events/{path.name}: {words} {_few(list(dict.fromkeys(nonfinite)))}")
    return pl.DataFrame(rows, schema=dict(schema), strict=False, orient="row")


def _few(lines: list[int]) -> str:
    return f"({', '.join(map(str, lines[:5]))}{', ...' if len(lines) > 5 else ''})"


def read(runs: Sequence[Run], log: str) -> pl.DataFrame:
    """A log of some runs, `run_key` first; a log that is damaged or missing becomes a remark."""
    source, schema = FRAMES[log].source, FRAMES[log].schema
    pattern = Path(source.replace("HOST", "*")).name
    frames = [pl.DataFrame(schema={"run_key": pl.String, **schema})]
    for run in runs:
        assert run.directory is not None
        events = run.directory / "events"
        problems: list[str] = []
        for path in sorted(events.glob(pattern)) or [events / pattern]:
            frame = read_lines(path, schema, problems)
            frames.append(frame.select(pl.lit(run.key).alias("run_key"), pl.all()))
        if _is_expected(log, run.config):
            remark(run, problems)
    frame = pl.concat(frames)
    if log == "rounds":
        _remark_on_missing_rounds(runs, frame)
    if log == "impairments":
        kinds = pl.col("kind").map_elements(kind_name, return_dtype=pl.String)
        frame = frame.with_columns(kinds)
    return frame


def labelled(frame: pl.DataFrame, runs: Sequence[Run]) -> pl.DataFrame:
    """The rows with the columns of `labels` first; rows of other runs are left out."""
    return labels(runs).join(frame, on="run_key", how="inner", maintain_order="right")


def labels(runs: Sequence[Run]) -> pl.DataFrame:
    factors = factor_names(runs)
    names = ["run_key", "arm", "seed", *(FACTOR_PREFIX + name for name in factors)]
    rows = [
        (run.key, run.arm, run.seed, *(factor_text(run.factors.get(name)) for name in factors))
        for run in runs
    ]
    types: dict[str, Any] = dict.fromkeys(names, pl.String) | {"seed": pl.Int64}
    return pl.DataFrame(rows, schema=types, orient="row")


def remark(run: Run, problems: Sequence[str]) -> None:
    """Add what is wrong with a run's files, once: a log may be read again."""
    run.problems.extend(problem for problem in problems if problem not in run.problems)


def _is_expected(log: str, config: dict[str, Any]) -> bool:
    if log == "impairments":
        return bool(config.get("impairments"))
    if is_of_script(config):
        return False
    if runs_programs(config):
        # Whether programs announce rounds is up to them, unless the experiment states how many.
        return log == "rounds" and bool(config.get("rounds"))
    return log != "effects" or bool(section(config, "training").get("measure_every"))


def _remark_on_missing_rounds(runs: Sequence[Run], rounds: pl.DataFrame) -> None:
    counts = dict(rounds.group_by("run_key").len().iter_rows())
    for run in runs:
        planned, logged = run.config.get("rounds"), counts.get(run.key, 0)
        if is_of_script(run.config):
            continue
        if isinstance(planned, int) and logged != planned:
            lacks = "maximum"
            if not runs_programs(run.config):
                lacks = "training time, bytes or maximum"
            remark(run, [f"{logged} of {planned} rounds in rounds.jsonl: it has no {lacks}"])


def samples(run: Path, name: str) -> pl.DataFrame:
    with contextlib.suppress(OSError, ValueError, pl.exceptions.PolarsError):
        if (frame := scan_samples(run, name)) is not None:
            return frame.collect()
    return pl.DataFrame(schema=FRAMES[name].schema)


def cpu_s_of_hosts(run: Path) -> dict[str, float]:
    sampled = samples(run, "processes")
    of_process = sampled.drop_nulls("host").group_by("host", "pid").agg(pl.col("cpu_s").max())
    used = of_process.group_by("host").agg(pl.col("cpu_s").sum()).sort("host")
    return dict(used.iter_rows())


def sampler(run: Path) -> dict[str, Any]:
    return read_document(run / "samples" / "sampler.json", [])


_UNREADABLE = (
    "cannot be read, it is half-written or damaged; delete it to go on without these samples, or "
    "measure the run again"
)


def scan_samples(run: Path, name: str) -> pl.LazyFrame | None:
    path, schema = run / "samples" / f"{name}.parquet", FRAMES[name].schema
    if not path.exists():
        return None
    try:
        columns = pl.read_parquet_schema(path)
    except (OSError, pl.exceptions.PolarsError):
        raise ValueError(f"{path}: {_UNREADABLE}") from None
    if lacking := [name for name in schema if name not in columns]:
        raise ValueError(
            f"{path}: has no column {', '.join(lacking)}; these samples are of another version: "
            "read them with the version named in manifest.json's `commit`"
        )
    frame = pl.scan_parquet(path, glob=False)
    return frame.select(pl.col(name).cast(kind) for name, kind in schema.items())
