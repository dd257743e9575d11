"""What the sender of a transfer knows: which chunks wait, which datagrams are in flight or lost.

Datagrams are identified by send index, which tells the copies of a chunk apart.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.wire import SEND_INDEX_MODULUS

_IN_FLIGHT, _ARRIVED, _LOST = 1, 2, 3
# Older datagrams are forgotten, because no ACK can name them any more.
_KEPT = SEND_INDEX_MODULUS
_ROWS = 1 << 10
_ONE = np.int32(1)  # `ufunc.at` is fast where both types are the same

Chunks = NDArray[np.int64]


def _ascending(chunks: Chunks) -> bool:
    return bool((chunks[1:] > chunks[:-1]).all())


class Arrivals(NamedTuple):
    """What an ACK adds."""

    datagrams: int  # how many arrivals are new
    newest: int  # their largest send index, -1 for none
    overtaken: int  # how many of them had been declared lost
    extent: int  # by how many datagrams the worst of those was overtaken
    chunks: Chunks  # chunks that are newly known to be at the receiver


class Scoreboard:
    """The state of all datagrams of a transfer."""

    def __init__(self, chunk_count: int) -> None:
        self.next = 0  # the send index of the next datagram, equal to the number sent
        self.in_flight = 0  # how many have neither arrived nor been declared lost
        self.largest = -1  # the largest send index that is known to have arrived, -1 for none
        self.arrived = np.zeros(chunk_count, dtype=np.bool_)
        self.copies = np.zeros(chunk_count, dtype=np.int32)
        self.losses = np.zeros(chunk_count, dtype=np.int32)
        self.last_sent = np.full(chunk_count, -1, dtype=np.int64)
        self._base = 0  # the send index of row 0
        self._oldest = 0  # nothing before this is in flight
        self._chunk = np.empty(_ROWS, dtype=np.int64)
        self._sent_s = np.empty(_ROWS, dtype=np.float64)
        self._fate = np.zeros(_ROWS, dtype=np.uint8)

    def record(self, chunks: Chunks, now_s: float) -> None:
        count = len(chunks)
        self._make_room(count)
        rows = slice(self.next - self._base, self.next - self._base + count)
        self._chunk[rows] = chunks
        self._sent_s[rows] = now_s
        self._fate[rows] = _IN_FLIGHT
        np.add.at(self.copies, chunks, _ONE)
        self.last_sent[chunks] = np.arange(self.next, self.next + count)
        self.next += count
        self.in_flight += count

    def _make_room(self, count: int) -> None:
        used = self.next - self._base
        if used + count <= len(self._fate):
            return
        forgotten = max(0, min(self._oldest, self.next - _KEPT) - self._base)
        rows = len(self._fate)
        if forgotten < rows // 2:
            rows = max(2 * rows, used + count)
        kept = slice(forgotten, used)
        for name in ("_chunk", "_sent_s", "_fate"):
            old = getattr(self, name)
            new = np.zeros(rows, dtype=old.dtype)
            new[: used - forgotten] = old[kept]
            setattr(self, name, new)
        self._base += forgotten

    def index(self, stamp: int) -> int:
        """The latest send index before `next` with these lower bits; negative for none."""
        return self.next - 1 - (self.next - 1 - stamp) % SEND_INDEX_MODULUS

    def sent_s(self, index: int) -> float | None:
        """When a datagram was sent; None when that is no longer known."""
        known = self._base <= index < self.next
        return float(self._sent_s[index - self._base]) if known else None

    def arrive(self, indices: NDArray[np.int64]) -> Arrivals:
        """Records arrivals by ascending send index; ignores unknown indices."""
        rows = indices[(indices >= self._base) & (indices < self.next)] - self._base
        fates = self._fate[rows]
        flying, late = rows[fates == _IN_FLIGHT], rows[fates == _LOST]
        np.subtract.at(self.copies, self._chunk[flying], _ONE)
        self.in_flight -= len(flying)
        news = np.concatenate((late, flying)) if len(late) else flying
        self._fate[news] = _ARRIVED
        newest = int(news.max()) + self._base if len(news) else -1
        self.largest = max(self.largest, newest)
        chunks = self._chunk[news]
        chunks = chunks[~self.arrived[chunks]]
        if not _ascending(chunks):
            chunks = np.unique(chunks)
        self.arrived[chunks] = True
        self._advance()
        extent = self.largest - self._base - int(late[0]) if len(late) else 0
        return Arrivals(len(news), newest, len(late), extent, chunks)

    def give_up(
        self, *, sent_by: int, ahead: int, sent_before_s: float
    ) -> tuple[int, float | None, Chunks]:
        """Declares datagrams lost that should have arrived by now."""
        low, high = self._oldest - self._base, sent_by - self._base
        if high <= low:
            return 0, None, self._chunk[:0]
        flying = np.flatnonzero(self._fate[low:high] == _IN_FLIGHT) + low
        overtaken = flying <= self.largest - self._base - ahead
        lost = flying[overtaken | (self._sent_s[flying] <= sent_before_s)]
        if not len(lost):
            return 0, None, self._chunk[:0]
        self._fate[lost] = _LOST
        self.in_flight -= len(lost)
        chunks = self._chunk[lost]
        np.subtract.at(self.copies, chunks, _ONE)
        np.add.at(self.losses, chunks, _ONE)
        gone = chunks[~self.arrived[chunks] & (self.copies[chunks] == 0)]
        newest_s = float(self._sent_s[lost[-1]])
        self._advance()
        if len(gone) > 1:
            gone = gone[np.sort(np.unique(gone, return_index=True)[1])]
        return len(lost), newest_s, gone

    def oldest_sent_s(self, sent_by: int) -> float | None:
        """When the oldest datagram in flight was sent, if its index is below `sent_by`."""
        return self.sent_s(self._oldest) if self._oldest < sent_by else None

    def _advance(self) -> None:
        if not self.in_flight:
            self._oldest = self.next
            return
        rows = self._fate[self._oldest - self._base : self.next - self._base]
        self._oldest += int((rows == _IN_FLIGHT).argmax())


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
    """The chunks of a transfer of which no copy is in flight or at the receiver."""

    def __init__(
        self, chunks: NDArray[np.int64], *, lost_first: bool, at_first: int | None = None
    ) -> None:
        """`chunks` wait, in this order. With `lost_first`, lost chunks go first, else last."""
        self._all = chunks
        self._fresh, self._kept = chunks[:at_first], chunks[len(chunks[:at_first]) :]
        self._cursor = 0
        self._lost = ChunkQueue()
        self._lost_first = lost_first
        self.waiting = len(self._fresh)  # how many there are

    @property
    def keeps(self) -> bool:
        """Whether there are some that do not wait yet."""
        return len(self._kept) > 0

    def release(self) -> None:
        """Those wait, too, that did not at first."""
        self._fresh = np.concatenate((self._fresh[self._cursor :], self._kept))
        self._cursor, self._kept = 0, self._kept[:0]
        self.waiting = len(self._fresh) + len(self._lost)

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

    def take(self, chunks: NDArray[np.int64]) -> None:
        """Removes these, wherever they wait; those that do not wait stay away."""
        taken = np.zeros(len(self._all), dtype=np.bool_)
        taken[chunks] = True
        fresh = self._fresh[self._cursor :]
        self._fresh, self._cursor = fresh[~taken[fresh]], 0
        self._kept = self._kept[~taken[self._kept]]
        self._lost.remove(taken)
        self.waiting = len(self._fresh) + len(self._lost)

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
        self._fresh, self._cursor, self._kept = self._all, 0, self._all[:0]
        self.waiting = len(self._fresh)
