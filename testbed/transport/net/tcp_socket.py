"""What the kernel tells of a TCP connection: its counters, and its congestion control."""

import fcntl
import math
import operator
import socket
import struct
import termios
from pathlib import Path
from typing import NamedTuple

from testbed.transport.core.errors import ProtocolError

_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# Ethernet, IPv4 and TCP headers with the timestamp option, per segment.
SEGMENT_OVERHEAD_BYTES = 14 + 20 + 32
_INFO_BYTES = 256
_UNMEASURED = 0xFFFFFFFF
# Of struct tcp_info of uapi/linux/tcp.h, which only ever appends fields: segments sent,
# the least round trip in us; segments with data in and out; bytes sent, and those sent again.
_INFO = struct.Struct("=136xI8xI2I40x2Q")


class TcpCounts(NamedTuple):
    """Totals of one connection since its beginning; bytes are those of the stream."""

    segments_sent: int
    data_segments_received: int
    data_segments_sent: int
    bytes_sent: int
    bytes_retransmitted: int

    def since(self, before: "TcpCounts") -> "TcpCounts":
        return TcpCounts(*map(operator.sub, self, before))

    @property
    def wire_bytes_sent(self) -> int:
        """Wire bytes of data segments, with headers and retransmissions."""
        return self.bytes_sent + self.data_segments_sent * SEGMENT_OVERHEAD_BYTES

    @property
    def wire_bytes_acknowledging(self) -> int:
        """Wire bytes of segments sent without data."""
        return (self.segments_sent - self.data_segments_sent) * SEGMENT_OVERHEAD_BYTES


def _info(connection: socket.socket) -> tuple[int, ...]:
    """TCP_INFO; OSError when the kernel is older than 4.19 and lacks the byte counts."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO.size:
        raise OSError("TCP_INFO of this kernel has no bytes_sent")
    return _INFO.unpack_from(info)


def tcp_counts(connection: socket.socket) -> TcpCounts:
    """The kernel's counters; OSError when it is older than 4.19."""
    segments_sent, _, *counts = _info(connection)
    return TcpCounts(segments_sent, *counts)


def unacknowledged_bytes(connection: socket.socket) -> int:
    """How much of what was written, the stream's end included, the peer's kernel has not got."""
    return struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]


def least_round_trip_s(connection: socket.socket) -> float:
    """The shortest round trip so far, in seconds; 0.1 before one was measured."""
    least_us = _info(connection)[1]
    return 0.1 if least_us == _UNMEASURED else least_us / 1e6


class DataSocket:
    """A peer's data connection, with the kernel's counters at the end of the last transfer."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.read_s = self.moved_s = -math.inf  # when data were last read
        self._sent = tcp_counts(connection)
        # So far each side has received one segment, the other's handshake message. The kernel's
        # count is not read, because a fast peer's first payload may have begun to arrive.
        self._received = self._sent._replace(data_segments_received=1)
        self._unacknowledged = 0

    def look(self, now_s: float) -> None:
        """Notes whether data have moved since the last call."""
        before, self._unacknowledged = self._unacknowledged, unacknowledged_bytes(self.socket)
        if self._unacknowledged != before:
            self.moved_s = now_s

    def count_sent(self) -> TcpCounts:
        """The counters that sending added since the last call."""
        now, before = tcp_counts(self.socket), self._sent
        self._sent = now
        return now.since(before)

    def count_received(self) -> TcpCounts:
        """The counters that receiving added since the last call."""
        now, before = tcp_counts(self.socket), self._received
        self._received = now
        return now.since(before)


def available_congestion_controls() -> list[str]:
    """The algorithms that the kernel offers; empty when it does not say."""
    try:
        return _AVAILABLE.read_text().split()
    except OSError:
        return []


def set_congestion_control(connection: socket.socket, name: str) -> None:
    """Sets the algorithm of one socket (and of what it accepts) and reads it back."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except PermissionError:
        return
    except OSError as error:
        raise ValueError(
            f"the kernel refuses TCP congestion control {name!r} ({error.strerror}); "
            f"available: {' '.join(available_congestion_controls()) or 'unknown'}"
        ) from None
    actual = get_congestion_control(connection)
    if actual != name:
        raise ValueError(f"TCP congestion control is {actual!r} although {name!r} was set")


def get_congestion_control(connection: socket.socket) -> str:
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return raw.partition(b"\0")[0].decode()


def check_congestion_control(connection: socket.socket, name: str) -> None:
    """Raises ProtocolError when a connection has another algorithm than `name`."""
    actual = get_congestion_control(connection)
    if actual != name:
        raise ProtocolError(
            f"TCP congestion control is {actual!r} instead of {name!r}: this process may not set "
            "it, or the route has another"
        )
