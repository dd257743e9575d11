"""Datagrams of which only the headers exist, for transfers whose contents nobody reads.

Each row of their array begins HEADER_BYTES after the one before, so the bytes behind a header are
those of the next ones. It takes the compiled library; without it datagrams are whole.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.fast_path import FastPath
from testbed.transport.native.fast_path import FAST_PATH, CompiledComposer, CompiledPlacement
from testbed.transport.wire import HEADER_BYTES


def as_frames(heads: NDArray[np.uint8], chunk_bytes: int) -> NDArray[np.uint8]:
    """Datagrams with these headers, shape (count, HEADER_BYTES + chunk_bytes)."""
    count = len(heads)
    memory = np.empty(count * HEADER_BYTES + chunk_bytes, np.uint8)
    memory[: count * HEADER_BYTES] = heads.reshape(-1)
    shape = (count, HEADER_BYTES + chunk_bytes)
    return np.ndarray(shape, np.uint8, memory, strides=(HEADER_BYTES, 1))


def room(count: int, chunk_bytes: int) -> NDArray[np.uint8]:
    """Memory for so many."""
    return as_frames(np.zeros((count, HEADER_BYTES), np.uint8), chunk_bytes)


def kept(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy of what there is of datagrams, shape (count, datagram bytes or HEADER_BYTES)."""
    alone = frames.strides[0] == HEADER_BYTES
    return frames[:, :HEADER_BYTES].copy() if alone else frames.copy()


class HeaderComposer(CompiledComposer):
    """Writes headers into the memory of `room`."""

    def __init__(self, *, frames: NDArray[np.uint8], **transfer: Any) -> None:
        super().__init__(frames=frames[:, :HEADER_BYTES], **transfer)
        self.frames = frames
        self._it.rows = None


class HeaderPlacement(CompiledPlacement):
    """Notes which chunks arrive, and writes nothing."""

    def _set_rows(self, rows: NDArray[np.uint8]) -> None:
        self._it.rows = None

    def move(self, rows: NDArray[np.uint8]) -> None:
        self.rows = rows


HEADERS_ALONE: FastPath | None = None
if FAST_PATH.compiled:
    HEADERS_ALONE = FAST_PATH._replace(composer=HeaderComposer, placement=HeaderPlacement)
