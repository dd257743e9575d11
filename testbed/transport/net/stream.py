"""The control stream of one peer: a TCP connection, plain or under TLS, that never blocks."""

import contextlib
import errno
import fcntl
import math
import socket
import struct
import termios
import time

from testbed.transport.net.addresses import Host, SocketAddress
from testbed.transport.net.tls import Tls, TlsError

_READ_BYTES = 1 << 16
_MOST_BYTES = 4 * _READ_BYTES
# The most bytes that may wait for a peer to read; one that reads at all is never so far behind.
_MAX_UNSENT_BYTES = 8 << 20
# With the headers of IPv6 and TCP below 1280 bytes.
_SEGMENT_BYTES = 1200
# The kernel probes an idle peer's host this many times within the peer's timeout.
_KEEPALIVE_PARTS = 4
# The most that the kernel takes.
_MAX_KEEPALIVE_S = 32767
_MAX_INT = 2**31 - 1
_POLL_S = 1e-3
_UNREAD = "it does not read what it is sent"
_INFO_BYTES = 256
_UNMEASURED = 0xFFFFFFFF
# Of struct tcp_info of uapi/linux/tcp.h, which only ever appends fields: segments sent,
# the least round trip in us; segments with data in and out; bytes sent, and those sent again.
_INFO = struct.Struct("=136xI8xI2I40x2Q")


class Stream:
    """A connected stream."""

    def __init__(self, connection: socket.socket, tls: Tls | None = None) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed: str | None = None  # why it has ended; None while it is open
        self.drained = True  # whether the latest `read` left nothing unread
        self.written_bytes = self.read_bytes = 0
        self.taken_bytes = 0  # what TCP was to send for those written
        self._connection = connection
        self._tls = tls
        self._unsent = bytearray()
        self._unsent_s = math.inf  # since when some are left
        self._timeout_s = math.inf
        self._broken: str | None = None
        if tls is not None:
            self._push(tls.outgoing())

    def set_timeout(self, timeout_s: float) -> None:
        """Tells the kernel to end the connection when the peer's host is silent for `timeout_s`."""
        self._timeout_s = timeout_s
        part_s = min(max(1, round(timeout_s / _KEEPALIVE_PARTS)), _MAX_KEEPALIVE_S)
        for option, value in (
            (socket.TCP_KEEPIDLE, part_s),
            (socket.TCP_KEEPINTVL, part_s),
            (socket.TCP_KEEPCNT, _KEEPALIVE_PARTS - 1),
            (socket.TCP_USER_TIMEOUT, min(max(1, round(timeout_s * 1000)), _MAX_INT)),
        ):
            self._connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        """For a selector."""
        return self._connection.fileno()

    @property
    def identity(self) -> str | None:
        """The peer's name by its certificate; None without TLS, or before it has proven it."""
        return None if self._tls is None else self._tls.identity

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait until the connection is writable."""
        return bool(self._unsent)

    def write(self, data: bytes) -> None:
        """Sends what the connection takes now; later `flush` calls send the rest."""
        self.written_bytes += len(data)
        self._push(data if self._tls is None else self._tls.write(data))

    def _push(self, data: bytes) -> None:
        if not data or self._broken is not None:
            return
        self._unsent += data
        self.taken_bytes += len(data)
        self.flush()
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            self._give_up()
        elif self._unsent:
            self._unsent_s = min(self._unsent_s, time.monotonic())

    def _give_up(self) -> None:
        self._clear()
        self._broken = self.closed = _UNREAD

    def _clear(self) -> None:
        self._unsent.clear()
        self._unsent_s = math.inf

    @property
    def until_s(self) -> float:
        """When `expire` is due; math.inf for never."""
        return self._unsent_s + self._timeout_s

    def expire(self, now_s: float) -> None:
        """Ends the stream when some bytes have waited for the peer to read for too long."""
        if now_s >= self.until_s:
            self._give_up()

    def flush(self) -> None:
        """Tries again to send the rest."""
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                # Data that the peer sent before can still be read, so only `read` sets `closed`.
                self._clear()
                self._broken = _reason(error)
                return
            del self._unsent[:sent]
        self._unsent_s = math.inf

    def read(self, most_bytes: int = _MOST_BYTES) -> bytes:
        """What has arrived, up to a limit; sets `closed` where that is the end."""
        data = bytearray()
        self.drained = True
        left = min(most_bytes, _MOST_BYTES)
        try:
            while left:
                asked = min(left, _READ_BYTES)
                piece = self._connection.recv(asked)
                if not piece:
                    self.closed = self.closed or "the connection was closed"
                    break
                data += piece if self._tls is None else self._tls.feed(piece)
                left -= len(piece)
                if len(piece) < asked:
                    break
            else:
                self.drained = False
        except BlockingIOError:
            pass
        except OSError as error:
            self.closed = self.closed or _reason(error)
        except TlsError as error:
            self.closed = self.closed or str(error)
        if self._tls is not None:
            self._push(self._tls.outgoing())
        self.read_bytes += len(data)
        return bytes(data)

    def finish(self) -> None:
        """Shuts down the sending direction; call `close` afterwards."""
        with contextlib.suppress(OSError):  # the connection is gone already
            self.flush()
            self._connection.shutdown(socket.SHUT_WR)

    def close(self, until_s: float = 0.0) -> None:
        """Closes the connection after the peer has had a chance to read all that was sent."""
        with contextlib.suppress(OSError, ValueError):  # closed already
            # The peer's kernel may still get what it lacks.
            while self._broken is None and unacknowledged_bytes(self._connection):
                if time.monotonic() >= until_s:
                    break
                time.sleep(_POLL_S)
        self._connection.close()
        self.closed = self.closed or "this side closed the connection"

    @property
    def acknowledged_bytes(self) -> int:
        """How many of `taken_bytes` the peer's kernel has got; OSError where it has ended."""
        return self.taken_bytes - len(self._unsent) - unacknowledged_bytes(self._connection)

    @property
    def ends(self) -> tuple[SocketAddress, SocketAddress]:
        """This side's address, and the peer's."""
        return self._connection.getsockname(), self._connection.getpeername()

    @property
    def round_trip_s(self) -> float:
        """The least that the path took so far, in seconds; 0.1 before it was measured."""
        least_us = tcp_info(self._connection)[1]
        return 0.1 if least_us == _UNMEASURED else least_us / 1e6


def limit_segments(connection: socket.socket) -> None:
    """Segments fit what IPv6 demands of any path: TCP finds no hole in an MTU by itself."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)


def connected(local: Host, address: SocketAddress, timeout_s: float) -> socket.socket:
    """A connection from one of this side's ports; OSError where there is none in time."""
    connection = socket.socket(local.family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        limit_segments(connection)
        connection.bind(local.at(0))
        connection.connect(address)
        if connection.getsockname() == connection.getpeername():
            # No one listens there and the kernel connected the socket to itself.
            raise ConnectionRefusedError(0, "Connection refused")
    except BaseException:
        connection.close()
        raise
    return connection


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "the connection was reset"
    return f"the connection failed: {error.strerror}"


def tcp_info(connection: socket.socket) -> tuple[int, ...]:
    """TCP_INFO; OSError when the kernel is older than 4.19 and lacks the byte counts."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO.size:
        raise OSError("TCP_INFO of this kernel has no bytes_sent")
    return _INFO.unpack_from(info)


def unacknowledged_bytes(connection: socket.socket) -> int:
    """How much of what was written, the stream's end included, the peer's kernel has not got."""
    return struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]
