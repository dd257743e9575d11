"""Control streams: TCP connections, plain or under TLS, that never block.

Beside them the listeners that accept them, and the sockets of control messages in datagrams.
"""

import contextlib
import errno
import fcntl
import hashlib
import hmac
import math
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from testbed.shared.input_error import shown
from testbed.transport.connection import Connection
from testbed.transport.control_datagrams import LONGEST_BYTES
from testbed.transport.errors import ProtocolError
from testbed.transport.joining import MAX_NEWCOMERS, Newcomer, UnknownSenderError
from testbed.transport.messages import KEY_BYTES, Hello
from testbed.transport.net.addresses import Host, SocketAddress, in_words
from testbed.transport.net.tls import TAG_BYTES, Keyed, Tls, TlsError

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
_INFO_BYTES = 256
# Of struct tcp_info of uapi/linux/tcp.h, which only ever appends fields: segments sent,
# the least round trip in us; segments with data in and out; bytes sent, and those sent again.
_INFO = struct.Struct("=136xI8xI2I40x2Q")
# What is read of a peer's datagrams at a time, so that other peers are served in between.
_DATAGRAMS_PER_CALL = 64
_CONTROL_BYTES = 1 << 11
_LONGEST_BYTES = LONGEST_BYTES + TAG_BYTES
_SIDES = (b"server", b"worker")


class Stream:
    def __init__(self, connection: socket.socket, tls: Tls | None = None) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed: str | None = None  # why it has ended; None while it is open
        self.drained = True  # whether the latest `read` left nothing unread
        self._connection = connection
        self._tls = tls
        self._unsent = bytearray()
        self._unsent_s = math.inf  # since when some wait
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
        return self._connection.fileno()

    @property
    def identity(self) -> str | None:
        """The peer's name by its certificate; None without TLS, or before it has proven it."""
        return None if self._tls is None else self._tls.identity

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def write(self, data: bytes) -> None:
        """Sends what the connection takes now; later `flush` calls send the rest."""
        self._push(data if self._tls is None else self._tls.write(data))

    def _push(self, data: bytes) -> None:
        if not data or self._broken is not None:
            return
        self._unsent += data
        self.flush()
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            self._stall()
        elif self._unsent:
            self._unsent_s = min(self._unsent_s, time.monotonic())

    def _stall(self) -> None:
        self._break("it does not read what it is sent")
        self.closed = self._broken

    def _break(self, reason: str) -> None:
        self._unsent.clear()
        self._unsent_s = math.inf
        self._broken = reason

    @property
    def until_s(self) -> float:
        return self._unsent_s + self._timeout_s

    def expire(self, now_s: float) -> None:
        """Ends the stream when some bytes have waited for the peer to read for too long."""
        if now_s >= self.until_s:
            self._stall()

    def flush(self) -> None:
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                # Data that the peer sent before can still be read, so only `read` sets `closed`.
                self._break(_reason(error))
                return
            del self._unsent[:sent]
        self._unsent_s = math.inf

    def read(self, most_bytes: int = _MOST_BYTES) -> bytes:
        """Reads what has arrived, up to a limit; sets `closed` where that is the end."""
        data = bytearray()
        self.drained = True
        left = min(most_bytes, _MOST_BYTES)
        try:
            while left:
                limit_bytes = min(left, _READ_BYTES)
                piece = self._connection.recv(limit_bytes)
                if not piece:
                    self.closed = self.closed or "the connection was closed"
                    break
                data += piece if self._tls is None else self._tls.feed(piece)
                left -= len(piece)
                if len(piece) < limit_bytes:
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
        return bytes(data)

    def finish(self) -> None:
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
    def ends(self) -> tuple[SocketAddress, SocketAddress]:
        return self._connection.getsockname(), self._connection.getpeername()


def limit_segments(connection: socket.socket) -> None:
    """Makes segments fit what IPv6 demands of any path: TCP finds no hole in an MTU by itself."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)


def connected(local: Host, address: SocketAddress, timeout_s: float) -> socket.socket:
    """Connects from one of this side's ports; OSError where that fails or takes too long."""
    connection = socket.socket(local.family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        limit_segments(connection)
        connection.bind(local.at(0))
        connection.connect(address)
        if connection.getsockname() == connection.getpeername():
            # Nobody listens there and the kernel connected the socket to itself.
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
    """Reads TCP_INFO; OSError when the kernel is older than 4.19 and lacks the byte counts."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO.size:
        raise OSError("TCP_INFO of this kernel has no bytes_sent")
    return _INFO.unpack_from(info)


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Reads how much of what was written, and the stream's end, the peer's kernel lacks."""
    return struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]


def listen(listener: socket.socket, address: SocketAddress) -> None:
    """Makes a socket listen and never block; OSError when the port is taken."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {in_words(address)}: {error}") from None


@dataclass(eq=False)
class Arrival:
    connection: socket.socket
    stream: Stream
    address: SocketAddress
    newcomer: Newcomer

    def fileno(self) -> int:
        return self.stream.fileno()


# Takes a complete HELLO, and with it the connection, unless it raises UnknownSenderError (for one
# that is turned away without an answer), ProtocolError or OSError.
Judge = Callable[[Hello, Arrival], None]


@dataclass(eq=False)
class Rejections:
    """Counts the connections that were closed before they joined; the last of each reason."""

    counters: Counter[str]
    _last: dict[str, str] = field(default_factory=dict)

    def add(self, why: str, arrival: Arrival, name: str | None = None) -> None:
        self.counters[f"stranger-{why}"] += 1
        sender = arrival.address[0] if name is None else f"{shown(name)} from {arrival.address[0]}"
        reason = arrival.stream.closed
        self._last[why] = sender if reason is None else f"{sender}: {reason}"

    def __str__(self) -> str:
        return ", ".join(
            f"{self.counters[f'stranger-{why}']} {why} (the last: {last})"
            for why, last in self._last.items()
        )


@dataclass(eq=False)
class Listener:
    """A listening port, where unknown senders are counted and closed, and delay no other."""

    listening: socket.socket
    session: int
    judge: Judge
    rejections: Rejections
    tls: Callable[[], Tls | None] = lambda: None
    arrivals: list[Arrival] = field(default_factory=list)

    def fileno(self) -> int:
        return self.listening.fileno()

    @property
    def until_s(self) -> float:
        return self.arrivals[0].newcomer.until_s if self.arrivals else math.inf

    def accept(self, now_s: float) -> None:
        for _ in range(MAX_NEWCOMERS):
            try:
                connection, address = self.listening.accept()
            except OSError:  # none waits, or it was closed again
                return
            stream = Stream(connection, self.tls())
            newcomer = Newcomer(self.session, now_s)
            self.arrivals.append(Arrival(connection, stream, address, newcomer))
            if len(self.arrivals) > MAX_NEWCOMERS:
                self._reject(self.arrivals[0], "crowded-out")

    def read(self, arrival: Arrival) -> None:
        data = arrival.stream.read()
        try:
            if not data and arrival.stream.closed is None:
                return  # TLS has not delivered the HELLO yet
            hello = arrival.newcomer.feed(data)
            if hello is None:
                if arrival.stream.closed is not None:
                    raise UnknownSenderError("reset")
                return
            self.judge(hello, arrival)
            self.arrivals.remove(arrival)
        except UnknownSenderError as error:
            self._reject(arrival, str(error), error.name)
        except ProtocolError:
            self._reject(arrival, "refused")
        except OSError:
            self._reject(arrival, "reset")

    def expire(self, now_s: float) -> None:
        while self.until_s <= now_s:
            self._reject(self.arrivals[0], "silent")

    def _reject(self, arrival: Arrival, why: str, name: str | None = None) -> None:
        self.rejections.add(why, arrival, name)
        self.arrivals.remove(arrival)
        arrival.stream.close()

    def close(self) -> None:
        while self.arrivals:
            self._reject(self.arrivals[0], "unfinished")
        self.listening.close()


class ControlSocket:
    """Carries a connection's control messages in datagrams, between the ports of its stream."""

    def __init__(
        self, ends: tuple[SocketAddress, SocketAddress], *, key: bytes = b"", is_server: bool
    ) -> None:
        """Binds one of the `ends`; OSError where that is not possible."""
        # A key of its own. Without one, too: UDP's own 16 bits miss some accidents.
        own = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"control").digest()
        self._keyed = Keyed(own if key else b"", _SIDES, is_server=is_server)
        local, peer = ends
        family = socket.AF_INET if len(local) == 2 else socket.AF_INET6
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            if is_server:  # its sockets have one port, and a worker each
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(local)
            self._socket.connect(peer)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        """Hands over what has arrived, up to a limit."""
        left, pieces = _CONTROL_BYTES, list[bytes]()
        for _ in range(_DATAGRAMS_PER_CALL):
            try:
                datagram = self._socket.recv(_LONGEST_BYTES + 1)
            except ConnectionRefusedError:
                continue  # a former datagram found no socket there
            except OSError:
                break
            piece, tag = datagram[:-TAG_BYTES], datagram[-TAG_BYTES:]
            if hmac.compare_digest(tag, self._keyed.tag(piece, sent=False)):
                pieces.append(piece)
            else:
                connection.counters["control-forged"] += 1
            left -= len(datagram)
            if left <= 0:
                break
        connection.on_control_datagrams(pieces, now_s, waited=waited)

    def write(self, datagrams: Iterable[bytes]) -> None:
        for datagram in datagrams:
            # What the network does not take is lost, as it may be later on its way.
            with contextlib.suppress(OSError):
                self._socket.send(datagram + self._keyed.tag(datagram, sent=True))

    def close(self) -> None:
        self._socket.close()
