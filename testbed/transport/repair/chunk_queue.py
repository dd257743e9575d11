"""Chunks that wait to be sent again, first in, first out."""

import numpy as np
from numpy.typing import NDArray


class ChunkQueue:
    """A queue of chunk numbers that moves whole arrays."""

    def __init__(self) -> None:
        self._chunks = np.empty(64, dtype=np.int64)
        self._first = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._first

    def push(self, chunks: NDArray[np.int64]) -> None:
        """Puts chunks at the end."""
        end = self._end + len(chunks)
        if end > len(self._chunks):
            waiting = self._chunks[self._first : self._end]
            room = np.empty(max(64, 2 * (len(waiting) + len(chunks))), dtype=np.int64)
            room[: len(waiting)] = waiting
            self._chunks, self._first, self._end = room, 0, len(waiting)
            end = self._end + len(chunks)
        self._chunks[self._end : end] = chunks
        self._end = end

    def peek(self, count: int) -> NDArray[np.int64]:
        """The next chunks, at most `count`; valid until the next change."""
        return self._chunks[self._first : min(self._end, self._first + count)]

    def drop(self, count: int) -> None:
        """Takes the next `count` chunks out."""
        self._first += count

    def remove(self, unwanted: NDArray[np.bool_]) -> None:
        """Takes all chunks out for which the mask, shape (chunk_count,), is True."""
        waiting = self._chunks[self._first : self._end]
        wanted = waiting[~unwanted[waiting]]
        self._end = self._first + len(wanted)
        self._chunks[self._first : self._end] = wanted
