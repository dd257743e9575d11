"""The registry of columns: every frame that results have, with its source and its columns.

The readers take their types from `frame_columns.csv`, and the data dictionary
(docs/reference/events.md and samples.md) and the reference of the frames take the meanings.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

Kind = pl.DataType | type[pl.DataType]
_UNITS = {"_s": "s", "_bps": "bit/s", "_bytes": "bytes", "_hz": "1/s"}
_KINDS: dict[str, Kind] = {
    "text": pl.String,
    "texts": pl.List(pl.String),
    "integer": pl.Int64,
    "float": pl.Float64,
    "boolean": pl.Boolean,
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a frame; users get lists of texts as one text."""

    name: str
    type: str
    meaning: str

    @property
    def kind(self) -> Kind:
        """The type that its reader gives it."""
        return _KINDS[self.type]

    @property
    def unit(self) -> str:
        """The unit of its values, which its name ends with; empty where they have none."""
        return unit_of(self.name)


@dataclass(frozen=True, kw_only=True)
class FrameColumns:
    """The columns of a frame."""

    source: str
    row: str
    columns: Sequence[Column]

    @property
    def schema(self) -> dict[str, Kind]:
        """The type of each column by its name."""
        return {each.name: each.kind for each in self.columns}


def unit_of(name: str) -> str:
    """The unit that a name ends with; empty where it names none."""
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _columns() -> dict[str, list[Column]]:
    """The columns of each frame; those that lead every frame have no frame's name."""
    columns: dict[str, list[Column]] = {}
    text = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        columns.setdefault(line.pop("frame"), []).append(Column(**line))
    return columns


_SOURCES = {  # and what a row is of
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
