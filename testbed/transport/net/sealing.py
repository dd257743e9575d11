"""Tags behind datagrams, by which the receiver can tell that they are genuine and intact.

16 bytes of keyed BLAKE2b (RFC 7693), with the worker's key and the sender's side.
"""

import ctypes
import hashlib
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from testbed.transport.messages import KEY_BYTES
from testbed.transport.native.hot_path import LIBRARY, address_of, structure

TAG_BYTES = 16
_SIDES = (b"server", b"worker")
_PERSON_BYTES = 16


class Keyed:
    """BLAKE2b with a key: this side's tags, and the other's."""

    def __init__(self, key: bytes, sides: tuple[bytes, bytes], *, is_server: bool) -> None:
        """`sides` tells the server's from the worker's."""
        states = [hashlib.blake2b(key=key, digest_size=TAG_BYTES, person=side) for side in sides]
        self._ours, self._theirs = states if is_server else reversed(states)

    def tag(self, datagram: bytes | memoryview, *, sent: bool) -> bytes:
        """What this side appends if it `sent` the datagram, or else the other."""
        state = (self._ours if sent else self._theirs).copy()
        state.update(datagram)
        return state.digest()


class Authentication:
    """Appends tags to datagrams and takes them off again, by hashlib."""

    def __init__(self, key: bytes, *, is_server: bool) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes; valid: {KEY_BYTES}")
        self._keyed = Keyed(key, _SIDES, is_server=is_server)

    def seal(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Datagrams with their tags, valid until the next call."""
        return np.hstack([frames, self._tags(frames, sent=True)])

    def open(self, rows: NDArray[np.uint8], counters: Counter[str]) -> NDArray[np.uint8]:
        """The datagrams that are good, without their tags; counts the others as "forged"."""
        good = self._good(rows)
        frames = rows[:, :-TAG_BYTES]
        if good.all():
            return frames
        counters["forged"] += int(len(good) - np.count_nonzero(good))
        return frames[good]

    def _good(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of the datagrams have the other side's tag."""
        # All bytes are compared, however early two differ.
        tags = self._tags(rows[:, :-TAG_BYTES], sent=False)
        good: NDArray[np.bool_] = (rows[:, -TAG_BYTES:] == tags).all(axis=1)
        return good

    def _tags(self, frames: NDArray[np.uint8], *, sent: bool) -> NDArray[np.uint8]:
        tags = b"".join(self._keyed.tag(row.data, sent=sent) for row in frames)
        return np.frombuffer(tags, dtype=np.uint8).reshape(-1, TAG_BYTES)


class _Sealing(ctypes.Structure):
    """struct sealing."""

    _fields_ = structure(
        (ctypes.c_uint64 * 8, "ours theirs"),
        (ctypes.c_void_p, "rows"),
        (ctypes.c_int64, "rows_room frame_bytes"),
    )


class CompiledAuthentication(Authentication):
    """The same in C, by one call for a batch."""

    def __init__(self, key: bytes, *, is_server: bool) -> None:
        super().__init__(key, is_server=is_server)
        assert LIBRARY is not None
        self._it, self._rows = _Sealing(), np.zeros((0, 0), dtype=np.uint8)
        self.address = ctypes.addressof(self._it)  # of its struct sealing
        sides = _SIDES if is_server else _SIDES[::-1]
        for state, person in zip((self._it.ours, self._it.theirs), sides, strict=True):
            LIBRARY.take_key(state, key, len(key), person.ljust(_PERSON_BYTES, b"\0"))
        self._seal, self._open = LIBRARY.seal_rows, LIBRARY.open_rows

    def reserve(self, count: int, size: int) -> None:
        """Makes room for so many datagrams of `size` bytes, and says that they have it."""
        if len(self._rows) < count or self._it.frame_bytes != size:
            self._rows = np.empty((count, size + TAG_BYTES), dtype=np.uint8)
            self._it.rows, self._it.frame_bytes = address_of(self._rows), size
            self._it.rows_room = self._rows.nbytes

    def seal(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        count, size = frames.shape
        self.reserve(count, size)
        frames = np.ascontiguousarray(frames)
        refused = self._seal(self.address, address_of(frames), count)
        assert not refused
        return self._rows[:count]

    def _good(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        count, whole = rows.shape
        self.reserve(0, whole - TAG_BYTES)
        rows = np.ascontiguousarray(rows)
        good = np.empty(count, dtype=np.bool_)
        self._open(self.address, address_of(rows), count, address_of(good))
        return good


def authentication(key: bytes, *, is_server: bool) -> Authentication:
    """The tags of one connection's datagrams; ValueError for a key of another size."""
    kind = Authentication if LIBRARY is None else CompiledAuthentication
    return kind(key, is_server=is_server)
