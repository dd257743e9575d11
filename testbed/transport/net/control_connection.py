"""The control connection to one peer: sends and receives messages and notices when it ends."""

import contextlib
import errno
import fcntl
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Iterable

from testbed.transport.core.errors import PeerLost, ProtocolError
from testbed.transport.core.messages import ControlMessage, ControlParser

_READ_BYTES = 1 << 16
# The most messages that may wait for a later transfer; a well-behaved peer sends a handful.
_MAX_EARLY = 4096
_MAX_EARLY_BYTES = 8 << 20
# The most bytes that may wait for a peer to read; one that reads at all is never so far behind.
_MAX_UNSENT_BYTES = 8 << 20
# The kernel probes an idle peer's host this many times within the peer's timeout.
_KEEPALIVE_PARTS = 4
_POLL_S = 1e-3


class ControlConnection:
    """The non-blocking connection of a joined peer.

    Attributes:
        peer: its name.
        early: messages for a later transfer than the one in progress.
        announcements: bodies of announcements that have not been taken yet.
        heard_s: when the peer last sent control messages or data.
        closed: why the connection has ended; None while it is open.
    """

    def __init__(self, *, peer: str, connection: socket.socket, parser: ControlParser) -> None:
        """`connection` is connected; `parser` has consumed what was read from it so far."""
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = peer
        self.early: deque[ControlMessage] = deque()
        self.announcements: deque[bytes] = deque()
        self.heard_s = time.monotonic()
        self.closed: str | None = None
        self._connection = connection
        self._parser = parser
        self._unsent = bytearray()
        self._kept_bytes = 0
        self._broken: str | None = None

    def give_up_after(self, timeout_s: float) -> None:
        """Tells the kernel to end the connection when the peer's host is silent for `timeout_s`.

        This detects a dead host or a broken path even while the peer owes nothing, such as during
        a long pass. It does not detect a process that is merely stopped, because the peer's kernel
        goes on answering.
        """
        part_s = max(1, round(timeout_s / _KEEPALIVE_PARTS))
        for option, value in (
            (socket.TCP_KEEPIDLE, part_s),
            (socket.TCP_KEEPINTVL, part_s),
            (socket.TCP_KEEPCNT, _KEEPALIVE_PARTS - 1),
            (socket.TCP_USER_TIMEOUT, max(1, round(timeout_s * 1000))),
        ):
            self._connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        """For a selector."""
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait until the connection is writable."""
        return bool(self._unsent)

    def send(self, messages: Iterable[ControlMessage]) -> None:
        """Sends what the connection takes now; later `flush` calls send the rest."""
        if self._broken is None:
            for message in messages:
                self._unsent += message.encode()
            self.flush()
            if len(self._unsent) > _MAX_UNSENT_BYTES:
                self._unsent.clear()
                self._broken = self.closed = "it does not read what it is sent"

    def flush(self) -> None:
        """Tries again to send the rest; `closed` tells when the connection has broken."""
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                # Data that the peer sent before can still be read, so only `read` sets `closed`.
                self._unsent.clear()
                self._broken = _reason(error)
                return
            del self._unsent[:sent]

    def read(self, now_s: float) -> list[ControlMessage]:
        """Returns the messages that have arrived, also after the connection has ended."""
        messages: list[ControlMessage] = []
        while True:
            try:
                data = self._connection.recv(_READ_BYTES)
                if not data:
                    self.closed = self.closed or "the connection was closed"
                    return messages
                self.heard_s = now_s
                messages += self._parser.feed(data)
            except BlockingIOError:
                return messages
            except OSError as error:
                self.closed = self.closed or _reason(error)
                return messages
            except ProtocolError as error:
                self.closed = f"it broke the protocol: {error}"
                return messages

    def keep(self, message: ControlMessage) -> None:
        self._count_kept(len(self.early), len(message.body))
        self.early.append(message)

    def take_early(self) -> list[ControlMessage]:
        """Removes and returns the kept messages, in order."""
        messages = list(self.early)
        self.early.clear()
        self._kept_bytes -= sum(len(message.body) for message in messages)
        return messages

    def keep_announcement(self, body: bytes) -> None:
        """Keeps an announcement until it is taken."""
        self._count_kept(len(self.announcements), len(body))
        self.announcements.append(body)

    def take_announcement(self) -> bytes:
        """Removes and returns the oldest announcement."""
        body = self.announcements.popleft()
        self._kept_bytes -= len(body)
        return body

    def _count_kept(self, messages: int, more_bytes: int) -> None:
        """Raises PeerLost when a peer sends far more than will ever be read."""
        self._kept_bytes += more_bytes
        if messages >= _MAX_EARLY or self._kept_bytes > _MAX_EARLY_BYTES:
            raise PeerLost(self.peer, "it sends control messages that are never read")

    def require(self) -> None:
        if self.closed is not None:
            raise PeerLost(self.peer, self.closed)

    def require_writable(self) -> None:
        """Raises PeerLost when the connection can no longer send."""
        self.require()
        if self._broken is not None:
            raise PeerLost(self.peer, self._broken)

    def finish(self) -> None:
        """Shuts down the sending direction; call `close` afterwards."""
        with contextlib.suppress(OSError):  # the connection is gone already
            self.flush()
            self._connection.shutdown(socket.SHUT_WR)

    def close(self, until_s: float) -> None:
        """Closes the connection after the peer has had a chance to read all that was sent.

        Closing a socket with unread data resets the connection, which would destroy a last message
        that is still on its way. So this waits for its acknowledgement, until `until_s` at most.
        """
        with contextlib.suppress(OSError):
            while self._unacknowledged() and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        self._connection.close()
        self.closed = self.closed or "this side closed the connection"

    def _unacknowledged(self) -> int:
        """How many bytes, the end of the stream included, the peer's kernel does not have yet."""
        if self._broken is not None:
            return 0
        return struct.unpack("=i", fcntl.ioctl(self._connection, termios.TIOCOUTQ, bytes(4)))[0]


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "the connection was reset"
    return f"the connection failed: {error.strerror}"
