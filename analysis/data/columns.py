"""What a column of a frame is: its name, type, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a frame.

    Attributes:
        name: what it is called; a `_s` at its end says seconds, and so on.
        kind: the type of its values.
        unit: of its values; empty where they have none.
        meaning: what it holds, in words.
    """

    name: str
    kind: pl.DataType | type[pl.DataType]
    unit: str = ""
    meaning: str
