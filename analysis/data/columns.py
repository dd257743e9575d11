"""What a column of a frame is: its name, type, unit and meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

Kind = pl.DataType | type[pl.DataType]
_UNITS = {"_s": "s", "_bps": "bit/s", "_bytes": "bytes", "_hz": "1/s"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a frame."""

    name: str
    kind: Kind
    meaning: str

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


def of_kind(kind: Kind, meanings: Mapping[str, str]) -> list[Column]:
    """Columns of one type, from the meaning of each."""
    return [Column(name=name, kind=kind, meaning=text) for name, text in meanings.items()]


def type_name(kind: Kind) -> str:
    """The type of a column of a frame that users get, in a word."""
    return {pl.String: "text", pl.Int64: "integer", pl.Float64: "float", pl.Boolean: "boolean"}[
        pl.String if isinstance(kind, pl.List) else kind  # type: ignore[index]
    ]


def flat(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame whose lists are texts, as files of comma-separated values and table programs need."""
    return frame.with_columns(pl.col(pl.List(pl.String)).list.join(", "))
