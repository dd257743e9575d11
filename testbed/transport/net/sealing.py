"""What is appended to every datagram so that the receiver can tell that it is intact, or genuine.

`crc`: the CRC-32C (Castagnoli, as in iSCSI, RFC 3720) of header and chunk, for paths whose UDP
checksum, 16 bits, cannot be trusted. It finds accidents, no attacker. Needs the package
google-crc32c.

`mac`: 16 bytes of keyed BLAKE2b (RFC 7693) over header and chunk. Only who has the connection's
key, which the server makes for each worker and sends over TLS, can make a datagram that counts. The
sender's side is part of what is hashed, so that a datagram cannot be sent back to its sender.

Both sides must append the same, since the sizes of the datagrams differ.
"""

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections import Counter

import numpy as np
from numpy.typing import NDArray

TRAILER_BYTES = {"none": 0, "crc": 4, "mac": 16}
KEY_BYTES = 32


class Seal(ABC):
    """Appends a trailer to datagrams and takes it off again."""

    kind: str
    fault: str  # how `open` counts what it drops

    def __init__(self) -> None:
        self.trailer_bytes = TRAILER_BYTES[self.kind]
        self._longer = np.zeros((0, 0), dtype=np.uint8)

    @abstractmethod
    def _sent(self, data: memoryview) -> bytes:
        """The trailer of a datagram that this side sends."""

    def _arrived(self, data: memoryview) -> bytes:
        """The trailer that the other side's datagram must have."""
        return self._sent(data)

    def seal(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Datagrams with their trailers, valid until the next call."""
        count, size = frames.shape
        whole = size + self.trailer_bytes
        if len(self._longer) < count:
            self._longer = np.zeros((count, whole), dtype=np.uint8)
        rows = self._longer[:count]
        rows[:, :size] = frames
        flat = rows.reshape(-1).data
        make = self._sent
        trailers = [make(flat[at : at + size]) for at in range(0, count * whole, whole)]
        rows[:, size:] = np.frombuffer(b"".join(trailers), dtype=np.uint8).reshape(count, -1)
        return rows

    def open(self, rows: NDArray[np.uint8], counters: Counter[str]) -> NDArray[np.uint8]:
        """The datagrams that are good, without their trailers; counts the others."""
        count, whole = rows.shape
        size = whole - self.trailer_bytes
        flat = rows.reshape(-1).data
        make = self._arrived
        expected = [make(flat[at : at + size]) for at in range(0, count * whole, whole)]
        frames = rows[:, :size]
        if hmac.compare_digest(b"".join(expected), rows[:, size:].tobytes()):
            return frames
        good = np.array(
            [
                hmac.compare_digest(trailer, flat[at + size : at + whole])
                for trailer, at in zip(expected, range(0, count * whole, whole), strict=True)
            ]
        )
        counters[self.fault] += int(count - np.count_nonzero(good))
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

    def _sent(self, data: memoryview) -> bytes:
        return int(self._value(bytes(data))).to_bytes(4, "big")


class Authentication(Seal):
    """Keyed BLAKE2b; a datagram that does not match is "forged"."""

    kind = "mac"
    fault = "forged"

    def __init__(self, key: bytes, *, is_server: bool) -> None:
        super().__init__()
        sides = [
            hashlib.blake2b(key=key, digest_size=self.trailer_bytes, person=person)
            for person in (b"server", b"worker")
        ]
        self._ours, self._theirs = sides if is_server else reversed(sides)

    def _sent(self, data: memoryview) -> bytes:
        state = self._ours.copy()
        state.update(data)
        return state.digest()

    def _arrived(self, data: memoryview) -> bytes:
        state = self._theirs.copy()
        state.update(data)
        return state.digest()


def seal(kind: str, key: bytes, *, is_server: bool) -> Seal | None:
    """The seal of one connection; None where nothing is appended."""
    if kind == "mac":
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key of {len(key)} bytes; valid: {KEY_BYTES}")
        return Authentication(key, is_server=is_server)
    return Checksum() if kind == "crc" else None
