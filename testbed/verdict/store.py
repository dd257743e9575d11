"""Stores samples on disk with bounded memory: chunks during the run, one parquet file at its end.

Chunks are in numpy's own format, which costs next to nothing. A killed run leaves whole ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from testbed.shared.run_directory import open_file

if TYPE_CHECKING:
    import polars as pl

CHUNKS = "chunks"  # folder below samples/


class ChunkedTable:
    """Rows of one structured type, in which a number may stand for several columns of names."""

    def __init__(self, folder: Path, name: str, dtype: Any, *, chunk_rows: int) -> None:
        self.name = name
        self.rows = 0
        self._folder = folder / CHUNKS
        self._folder.mkdir(parents=True, exist_ok=True)
        self._memory = np.zeros(chunk_rows, dtype=dtype)
        self._filled = 0
        self._chunks: list[Path] = []

    def take(self, count: int) -> NDArray[Any]:
        """The next `count` rows, which the caller fills in at once."""
        if self._filled + count > len(self._memory):
            self._write()
            if count > len(self._memory):
                self._memory = np.zeros(count, dtype=self._memory.dtype)
        rows = self._memory[self._filled : self._filled + count]
        self._filled += count
        self.rows += count
        return rows

    def _write(self) -> None:
        if not self._filled:
            return
        path = self._folder / f"{self.name}-{len(self._chunks):06d}.npy"
        temporary = path.with_name(f".{path.name}")
        with open_file(temporary, "wb") as file:
            np.save(file, self._memory[: self._filled], allow_pickle=False)
        temporary.replace(path)
        self._chunks.append(path)
        self._filled = 0

    def write(
        self,
        path: Path,
        number: str,
        names: Sequence[Mapping[str, object]],
        schema: Mapping[str, Any],
        *,
        further: Sequence[pl.LazyFrame] = (),
        last: bool = True,
    ) -> None:
        """Join all chunks and the frames of `further` into one parquet file of these columns."""
        # The column `number` of a row tells which of `names` belong to it.
        import polars as pl

        own = self._memory.dtype.names
        new = {name: kind for name, kind in schema.items() if name not in own}
        named = pl.DataFrame(names, new).with_row_index(number)

        def decode(frame: pl.DataFrame) -> pl.DataFrame:
            joined = frame.join(named, on=number, how="left", maintain_order="left")
            return joined.select(pl.col(name).cast(kind) for name, kind in schema.items())

        self._write()
        parts: list[pl.LazyFrame] = []
        made: list[Path] = []
        for chunk in self._chunks:
            rows = np.load(chunk, allow_pickle=False)
            part = chunk.with_suffix(".parquet")
            columns = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names}
            decode(pl.DataFrame(columns)).write_parquet(part)
            if last:
                chunk.unlink()
            made.append(part)
            parts.append(pl.scan_parquet(part))
        empty = {name: self._memory[name][:0] for name in self._memory.dtype.names}
        parts = [*parts, *further] or [decode(pl.DataFrame(empty)).lazy()]
        temporary = path.with_name(f".{path.name}")
        pl.concat(parts).sink_parquet(temporary)
        temporary.replace(path)
        for part in made:
            part.unlink()
