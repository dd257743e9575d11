"""Reads and writes small CSV tables whose columns are known; a wrong cell is named, not guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

Column = pl.DataType | type[pl.DataType]


def write(path: Path, rows: pl.DataFrame) -> None:
    """A header and a line per row. What is null, or an empty text, is an empty cell."""
    texts = pl.col(pl.String)
    rows.with_columns(pl.when(texts != "").then(texts).name.keep()).write_csv(path)


def frame(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, Column]) -> pl.DataFrame:
    """A frame with these columns, of rows that may lack some of them."""
    return pl.DataFrame(list(rows), schema=dict(columns), strict=False)


def read(
    path: Path, columns: Mapping[str, Column], *, others: Column | None = None
) -> pl.DataFrame:
    """The rows of a table, typed; an empty cell is null."""
    try:
        texts = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else str(error).splitlines()[0]
        raise ValueError(f"{path}: {reason}; valid: rows as they were kept") from None
    if lacking := [name for name in columns if name not in texts.columns]:
        raise ValueError(f"{path}: no column {lacking[0]!r}; valid: {', '.join(columns)}, ...")
    unknown = [name for name in texts.columns if name not in columns]
    if unknown and others is None:
        raise ValueError(f"{path}: unknown column {unknown[0]!r}; valid: {', '.join(columns)}")
    types = dict.fromkeys(texts.columns, others or pl.String) | dict(columns)
    return texts.select(_typed(path, texts[name], types[name]) for name in texts.columns)


def _typed(path: Path, texts: pl.Series, kind: Column) -> pl.Series:
    if kind == pl.String:
        return texts
    if kind == pl.Boolean:
        known = {"true": True, "false": False}
        typed = texts.replace_strict(known, default=None, return_dtype=pl.Boolean)
        valid = "true, false or nothing"
    else:
        typed, valid = texts.cast(kind, strict=False), "a number or nothing"
        if kind == pl.Float64:
            typed = typed.set(~typed.is_finite(), None)
    wrong = (texts.is_not_null() & typed.is_null()).arg_true()
    if len(wrong):
        line, value = wrong[0] + 2, texts[wrong[0]]  # the header is line 1
        raise ValueError(f"{path}, line {line}: {texts.name} {value!r}; valid: {valid}")
    return typed
