"""Appends an optional CRC-32C to every datagram, for paths whose UDP checksum cannot be trusted.

It is off by default, because UDP's 16-bit checksum is always there and costs nothing where the
interface computes it. Four bytes follow the chunk: the CRC-32C (Castagnoli, as in iSCSI, RFC 3720)
of header and chunk, in network order. Both sides must use it or neither, because the datagram sizes
differ.
"""

import socket

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from testbed.transport.udp_socket import BUFFER_BYTES, UdpSocket

TRAILER_BYTES = 4


def _checksums(frames: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The checksum of each row, shape (k,)."""
    size = frames.shape[1]
    data = frames.tobytes()
    value = google_crc32c.value
    return np.fromiter(
        (value(data[at : at + size]) for at in range(0, len(data), size)),
        dtype=np.uint32,
        count=len(frames),
    )


class ChecksummedUdpSocket(UdpSocket):
    """A UdpSocket that appends checksums and drops datagrams that do not match ("corrupt")."""

    def __init__(
        self,
        *,
        address: str,
        port: int,
        datagram_bytes: int,
        buffer_bytes: int = BUFFER_BYTES,
        segmentation: bool = True,
        opened: socket.socket | None = None,
    ) -> None:
        """`datagram_bytes` excludes the checksum, as do the frames of `send` and `receive`."""
        super().__init__(
            address=address,
            port=port,
            datagram_bytes=datagram_bytes + TRAILER_BYTES,
            buffer_bytes=buffer_bytes,
            segmentation=segmentation,
            opened=opened,
        )
        self._longer = np.zeros((0, datagram_bytes + TRAILER_BYTES), dtype=np.uint8)

    def send(self, frames: NDArray[np.uint8]) -> int:
        count = len(frames)
        if len(self._longer) < count:
            self._longer = np.zeros((count, self._longer.shape[1]), dtype=np.uint8)
        rows = self._longer[:count]
        rows[:, :-TRAILER_BYTES] = frames
        rows[:, -TRAILER_BYTES:].view(">u4")[:, 0] = _checksums(frames)
        return super().send(rows)

    def receive(self) -> tuple[NDArray[np.uint8], bool]:
        rows, drained = super().receive()
        if not len(rows):
            return rows[:, :-TRAILER_BYTES], drained
        frames = np.ascontiguousarray(rows[:, :-TRAILER_BYTES])
        intact = rows[:, -TRAILER_BYTES:].view(">u4")[:, 0] == _checksums(frames)
        if not intact.all():
            self.counters["corrupt"] += int(len(intact) - np.count_nonzero(intact))
            frames = frames[intact]
        return frames, drained
