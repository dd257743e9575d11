"""Authenticating batches by the compiled library: one call each."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from testbed.transport.native.hot_path import address_of
from testbed.transport.native.loading import LIBRARY

TAG_BYTES = 16
_PERSON_BYTES = 16


class _Sealing(ctypes.Structure):
    """struct sealing."""

    _fields_ = [
        ("ours", ctypes.c_uint64 * 8),
        ("theirs", ctypes.c_uint64 * 8),
        ("rows", ctypes.c_void_p),
        ("rows_room", ctypes.c_int64),
        ("frame_bytes", ctypes.c_int64),
    ]


class Tagging:
    """Puts tags behind datagrams, and looks at those of the other side."""

    def __init__(self, key: bytes, *, ours: bytes, theirs: bytes) -> None:
        """The two names are hashed with each side's datagrams; at most 16 bytes each."""
        assert LIBRARY is not None
        self._it = _Sealing()
        self.address = ctypes.addressof(self._it)  # of its struct sealing
        for state, person in ((self._it.ours, ours), (self._it.theirs, theirs)):
            LIBRARY.take_key(state, key, len(key), person.ljust(_PERSON_BYTES, b"\0"))
        self._rows = np.empty((0, 0), dtype=np.uint8)
        self._seal, self._open = LIBRARY.seal_rows, LIBRARY.open_rows

    def reserve(self, count: int, size: int) -> None:
        """Makes room for so many datagrams of `size` bytes, and says that they have it."""
        if len(self._rows) < count or self._it.frame_bytes != size:
            self._rows = np.empty((count, size + TAG_BYTES), dtype=np.uint8)
            self._it.rows, self._it.frame_bytes = address_of(self._rows), size
            self._it.rows_room = self._rows.nbytes

    def seal(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Datagrams with their tags, valid until the next call."""
        count, size = frames.shape
        self.reserve(count, size)
        frames = np.ascontiguousarray(frames)
        refused = self._seal(self.address, address_of(frames), count)
        assert not refused
        return self._rows[:count]

    def good(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of these have the other side's tag: shape (len(rows),)."""
        count, whole = rows.shape
        self.reserve(0, whole - TAG_BYTES)
        rows = np.ascontiguousarray(rows)
        good = np.empty(count, dtype=np.bool_)
        self._open(self.address, address_of(rows), count, address_of(good))
        return good
