"""Queues of chunks that wait to be sent: chunks never sent, and lost chunks."""

import numpy as np
from numpy.typing import NDArray


class ChunkQueue:
    """A queue of chunk numbers, which are pushed and taken as whole arrays."""

    def __init__(self) -> None:
        self._chunks = np.empty(64, dtype=np.int64)
        self._first = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._first

    def push(self, chunks: NDArray[np.int64]) -> None:
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
        self._first += count

    def remove(self, unwanted: NDArray[np.bool_]) -> None:
        """Removes all chunks for which the mask, shape (chunk_count,), is True."""
        waiting = self._chunks[self._first : self._end]
        wanted = waiting[~unwanted[waiting]]
        self._end = self._first + len(wanted)
        self._chunks[self._first : self._end] = wanted


class SendQueue:
    """The chunks of a transfer of which no copy is in flight or at the receiver.

    Attributes:
        waiting: how many there are; an attribute, because senders read it ten times per batch.
    """

    def __init__(self, chunks: NDArray[np.int64], *, lost_first: bool) -> None:
        """All `chunks` wait, in this order. With `lost_first`, lost chunks go first, else last."""
        self._fresh = chunks
        self._cursor = 0
        self._lost = ChunkQueue()
        self._lost_first = lost_first
        self.waiting = len(chunks)

    def _shares(self, count: int) -> tuple[int, int]:
        """How many of the next `count` chunks were lost, and how many were never sent."""
        lost, fresh = len(self._lost), len(self._fresh) - self._cursor
        if self._lost_first:
            again = min(count, lost)
            return again, min(count - again, fresh)
        new = min(count, fresh)
        return min(count - new, lost), new

    def peek(self, count: int) -> NDArray[np.int64]:
        """The next chunks, at most `count`; valid until the next change."""
        again, new = self._shares(count)
        fresh = self._fresh[self._cursor : self._cursor + new]
        if not again:
            return fresh
        parts = (self._lost.peek(again), fresh)
        return np.concatenate(parts if self._lost_first else parts[::-1])

    def drop(self, count: int) -> None:
        again, new = self._shares(count)
        self._lost.drop(again)
        self._cursor += new
        self.waiting -= again + new

    def push_lost(self, chunks: NDArray[np.int64]) -> None:
        """Adds chunks whose last copies are lost."""
        self._lost.push(chunks)
        self.waiting += len(chunks)

    def remove(self, arrived: NDArray[np.bool_]) -> None:
        """Removes lost chunks that have arrived after all, those where the mask is True."""
        if before := len(self._lost):
            self._lost.remove(arrived)
            self.waiting -= before - len(self._lost)

    def restart(self) -> None:
        """Makes all chunks wait again."""
        self._lost = ChunkQueue()
        self._cursor = 0
        self.waiting = len(self._fresh)
