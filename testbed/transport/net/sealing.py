"""What is appended to every datagram so that the receiver can tell that it is intact, or genuine.

`crc`: CRC-32C (RFC 3720) of header and chunk: finds accidents, no attacker; needs google-crc32c.
`mac`: 16 bytes of BLAKE2b (RFC 7693) with the worker's key and the sender's side.
"""

import ctypes
import hashlib
from abc import ABC, abstractmethod
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.messages import KEY_BYTES
from testbed.transport.native.hot_path import LIBRARY, address_of, structure

TRAILER_BYTES = {"none": 0, "crc": 4, "mac": 16}
_SIDES = (b"server", b"worker")
_PERSON_BYTES = 16


class Seal(ABC):
    """Appends a trailer to datagrams and takes it off again."""

    kind: str
    fault: str  # how `open` counts what it drops

    def __init__(self) -> None:
        self.trailer_bytes = TRAILER_BYTES[self.kind]
        self._rows = np.zeros((0, 0), dtype=np.uint8)

    @abstractmethod
    def _trailers(self, rows: NDArray[np.uint8], size: int, *, sent: bool) -> NDArray[np.uint8]:
        """The trailers of datagrams of `size` bytes, of this side if `sent`, else of the other."""

    def seal(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Datagrams with their trailers, valid until the next call."""
        count, size = frames.shape
        if len(self._rows) < count:
            self._rows = np.zeros((count, size + self.trailer_bytes), dtype=np.uint8)
        rows = self._rows[:count]
        rows[:, :size] = frames
        rows[:, size:] = self._trailers(rows, size, sent=True)
        return rows

    def _good(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of the datagrams have the other side's trailer."""
        size = rows.shape[1] - self.trailer_bytes
        right = self._trailers(rows, size, sent=False)
        # All bytes are compared, however early two differ.
        good: NDArray[np.bool_] = (rows[:, size:] == right).all(axis=1)
        return good

    def open(self, rows: NDArray[np.uint8], counters: Counter[str]) -> NDArray[np.uint8]:
        """The datagrams that are good, without their trailers; counts the others."""
        good = self._good(rows)
        frames = rows[:, : rows.shape[1] - self.trailer_bytes]
        if good.all():
            return frames
        counters[self.fault] += int(len(good) - np.count_nonzero(good))
        return frames[good]


class Checksum(Seal):
    """CRC-32C in network order; a datagram that does not match is "corrupt"."""

    kind = "crc"
    fault = "corrupt"

    def __init__(self) -> None:
        """ValueError where the package that computes it is missing."""
        super().__init__()
        try:
            from google_crc32c import value
        except ImportError:
            raise ValueError(
                "checksums need the package google-crc32c; install it with this package's extra "
                "[crc], or do without them"
            ) from None
        self._value = value

    def _trailers(self, rows: NDArray[np.uint8], size: int, *, sent: bool) -> NDArray[np.uint8]:
        data, whole, value = rows.tobytes(), rows.shape[1], self._value
        each = (value(data[at : at + size]) for at in range(0, len(data), whole))
        return np.fromiter(each, dtype=">u4", count=len(rows)).view(np.uint8).reshape(-1, 4)


class Keyed:
    """BLAKE2b with a key: this side's trailers, and the other's."""

    def __init__(self, key: bytes, sides: tuple[bytes, bytes], *, is_server: bool) -> None:
        """`sides` tells the server's from the worker's."""
        states = [
            hashlib.blake2b(key=key, digest_size=TRAILER_BYTES["mac"], person=person)
            for person in sides
        ]
        self._ours, self._theirs = states if is_server else reversed(states)

    def trailer(self, datagram: bytes | memoryview, *, sent: bool) -> bytes:
        """What this side appends if it `sent` the datagram, or else the other."""
        state = (self._ours if sent else self._theirs).copy()
        state.update(datagram)
        return state.digest()


class Authentication(Seal):
    """Keyed BLAKE2b by hashlib; a datagram that does not match is "forged"."""

    kind = "mac"
    fault = "forged"

    def __init__(self, key: bytes, *, is_server: bool) -> None:
        super().__init__()
        self._keyed = Keyed(key, _SIDES, is_server=is_server)

    def _trailers(self, rows: NDArray[np.uint8], size: int, *, sent: bool) -> NDArray[np.uint8]:
        data, whole = rows.reshape(-1).data, rows.shape[1]
        each = (data[at : at + size] for at in range(0, len(data), whole))
        trailers = b"".join(self._keyed.trailer(datagram, sent=sent) for datagram in each)
        return np.frombuffer(trailers, dtype=np.uint8).reshape(-1, self.trailer_bytes)


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
        self._it = _Sealing()
        self.address = ctypes.addressof(self._it)  # of its struct sealing
        sides = _SIDES if is_server else _SIDES[::-1]
        for state, person in zip((self._it.ours, self._it.theirs), sides, strict=True):
            LIBRARY.take_key(state, key, len(key), person.ljust(_PERSON_BYTES, b"\0"))
        self._seal, self._open = LIBRARY.seal_rows, LIBRARY.open_rows

    def reserve(self, count: int, size: int) -> None:
        """Makes room for so many datagrams of `size` bytes, and says that they have it."""
        if len(self._rows) < count or self._it.frame_bytes != size:
            self._rows = np.empty((count, size + self.trailer_bytes), dtype=np.uint8)
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
        self.reserve(0, whole - self.trailer_bytes)
        rows = np.ascontiguousarray(rows)
        good = np.empty(count, dtype=np.bool_)
        self._open(self.address, address_of(rows), count, address_of(good))
        return good


def seal(kind: str, key: bytes, *, is_server: bool) -> Seal | None:
    """The seal of one connection; None where nothing is appended."""
    if kind == "mac":
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes; valid: {KEY_BYTES}")
        authentication = Authentication if LIBRARY is None else CompiledAuthentication
        return authentication(key, is_server=is_server)
    return Checksum() if kind == "crc" else None
