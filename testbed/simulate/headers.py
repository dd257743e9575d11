"""Datagrams of which only the headers exist, for transfers whose content nobody reads.

They look like others: an array with one datagram a row. But each row begins HEADER_BYTES after the
one before, so the bytes behind a header are those of the next datagrams. No buffer is read, and
none is written.
"""

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from testbed.transport.core.hot_path import (
    ASK_FIRST,
    ASK_LAST,
    NUMPY,
    Composer,
    HotPath,
    NumpyPlacement,
)
from testbed.transport.core.wire import ACK_REQUESTED, HEADER_BYTES, SEND_INDEX_MODULUS

_WORDS = HEADER_BYTES // 4


def as_frames(heads: NDArray[np.uint8], chunk_bytes: int) -> NDArray[np.uint8]:
    """Datagrams with these headers, shape (count, HEADER_BYTES + chunk_bytes)."""
    count = len(heads)
    memory = np.empty(count * HEADER_BYTES + chunk_bytes, np.uint8)
    memory[: count * HEADER_BYTES].reshape(count, HEADER_BYTES)[:] = heads
    return as_strided(memory, (count, HEADER_BYTES + chunk_bytes), (HEADER_BYTES, 1))


def room(count: int, chunk_bytes: int) -> NDArray[np.uint8]:
    """Memory for so many."""
    return as_frames(np.zeros((count, HEADER_BYTES), np.uint8), chunk_bytes)


def kept(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy of what there is of datagrams, shape (count, datagram bytes or HEADER_BYTES)."""
    alone = frames.strides[0] == HEADER_BYTES
    return frames[:, :HEADER_BYTES].copy() if alone else frames.copy()


class HeaderComposer(Composer):
    """Writes headers into the memory of `room`."""

    def compose(self, chunks: NDArray[np.int64], first: int, *, ask: int) -> bool:
        layout, count = self.layout, len(chunks)
        if chunks.min() < 0 or chunks.max() >= layout.chunk_count:
            return False
        stamps = np.arange(first, first + count, dtype=np.uint32) & (SEND_INDEX_MODULUS - 1)
        if ask & ASK_FIRST:
            stamps[0] |= ACK_REQUESTED
        if ask & ASK_LAST:
            stamps[-1] |= ACK_REQUESTED
        words = as_strided(self.frames[:, :4].view(">u4"), (count, _WORDS), (HEADER_BYTES, 4))
        words[:, 0] = self.session
        words[:, 1] = chunks
        words[:, 2] = self.transfer
        words[:, 3] = (layout.chunk_lengths[chunks].astype(np.uint32) << 16) | stamps
        return True


class HeaderPlacement(NumpyPlacement):
    """Notes which chunks arrive, and writes nothing."""

    def _place(self, batch: NDArray[np.void]) -> NDArray[np.int64]:
        chunks = batch["sequence"].astype(np.int64)
        new = chunks[~self.received[chunks]]
        self.received[new] = True
        if int(np.count_nonzero(self.received)) - self.received_count < len(new):
            new = new[np.sort(np.unique(new, return_index=True)[1])]
        self.received_count += len(new)
        if duplicates := len(chunks) - len(new):
            self.ignored["duplicate"] += duplicates
        return new

    def move(self, rows: NDArray[np.uint8]) -> None:
        self.rows = rows


HEADERS_ALONE = HotPath(HeaderComposer, HeaderPlacement, NUMPY.transfer_of, compiled=False)
