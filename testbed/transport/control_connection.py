"""One control connection: messages out, messages in, and whether the peer is still there."""

import contextlib
import errno
import fcntl
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Iterable

from testbed.transport.control_messages import ControlMessage, ControlParser
from testbed.transport.errors import PeerLost, ProtocolError

_READ_BYTES = 1 << 16
# Messages that wait for the method that wants them; a well-behaved peer has a handful.
_MAX_EARLY = 4096
_MAX_EARLY_BYTES = 8 << 20
# What waits for a peer to read; one that reads at all is never this far behind.
_MAX_UNSENT_BYTES = 8 << 20
# In these parts of the peer's timeout the kernel asks whether an idle peer's host is there.
_KEEPALIVE_PARTS = 4
_POLL_S = 1e-3


class ControlConnection:
    """A joined peer's connection, non-blocking.

    Attributes:
        peer: its name.
        early: messages for a later transfer than the one in progress.
        announcements: bodies of announcements that nobody has asked for yet.
        heard_s: when the peer was last heard of, by control or by data.
        closed: why the connection has ended, None while it has not.
    """

    def __init__(self, *, peer: str, connection: socket.socket, parser: ControlParser) -> None:
        """`connection` is connected; `parser` is where its stream stands."""
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
        """Lets the kernel end the connection when the peer's host does not answer for so long.

        That notices a dead host or a path that swallows everything even while nothing is owed,
        such as during a long pass. A process that is merely stopped is not noticed: its kernel
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
        """Whether the link wants to know when it is writable."""
        return bool(self._unsent)

    def send(self, messages: Iterable[ControlMessage]) -> None:
        """Sends now what the connection takes, and the rest with later `flush` calls."""
        if self._broken is None:
            for message in messages:
                self._unsent += message.encode()
            self.flush()
            if len(self._unsent) > _MAX_UNSENT_BYTES:
                self._unsent.clear()
                self._broken = self.closed = "it does not read what it is sent"

    def flush(self) -> None:
        """Tries again to send what is left; a broken connection shows in `closed`."""
        while self._unsent:
            try:
                sent = self._connection.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                # What the peer sent before is still to be read, so only `read` sets `closed`.
                self._unsent.clear()
                self._broken = _reason(error)
                return
            del self._unsent[:sent]

    def read(self, now_s: float) -> list[ControlMessage]:
        """The messages that have arrived; also after the connection has ended."""
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
        """Keeps a message that came too early for the transfer in progress."""
        self._count_kept(len(self.early), len(message.body))
        self.early.append(message)

    def take_early(self) -> list[ControlMessage]:
        """The messages that were kept, in order; they are not kept any longer."""
        messages = list(self.early)
        self.early.clear()
        self._kept_bytes -= sum(len(message.body) for message in messages)
        return messages

    def keep_announcement(self, body: bytes) -> None:
        """Keeps an announcement until it is asked for."""
        self._count_kept(len(self.announcements), len(body))
        self.announcements.append(body)

    def take_announcement(self) -> bytes:
        """The first announcement that nobody has asked for yet."""
        body = self.announcements.popleft()
        self._kept_bytes -= len(body)
        return body

    def _count_kept(self, messages: int, more_bytes: int) -> None:
        """Raises PeerLost when a peer says more than anybody will ever want to hear."""
        self._kept_bytes += more_bytes
        if messages >= _MAX_EARLY or self._kept_bytes > _MAX_EARLY_BYTES:
            raise PeerLost(self.peer, "it sends control messages that nobody waits for")

    def require(self) -> None:
        """Raises PeerLost when the connection has ended."""
        if self.closed is not None:
            raise PeerLost(self.peer, self.closed)

    def require_writable(self) -> None:
        """Raises PeerLost when nothing can be sent any more."""
        self.require()
        if self._broken is not None:
            raise PeerLost(self.peer, self._broken)

    def finish(self) -> None:
        """Says that nothing more will be sent; to be followed by `close`."""
        with contextlib.suppress(OSError):  # it is gone already
            self.flush()
            self._connection.shutdown(socket.SHUT_WR)

    def close(self, until_s: float) -> None:
        """Ends the connection in a way that lets the peer read all that was sent.

        Closing with unread data resets the connection, which would destroy our last message if
        it were still on its way; so its acknowledgement is awaited, `until_s` at the latest.
        """
        with contextlib.suppress(OSError):
            while self._unacknowledged() and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        self._connection.close()
        self.closed = self.closed or "this side closed the connection"

    def _unacknowledged(self) -> int:
        """How many bytes, with the end of the stream, the peer's kernel does not have yet."""
        if self._broken is not None:
            return 0
        return struct.unpack("=i", fcntl.ioctl(self._connection, termios.TIOCOUTQ, bytes(4)))[0]


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "the connection was reset"
    return f"the connection failed: {error.strerror}"
