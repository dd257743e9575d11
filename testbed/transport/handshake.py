"""The handshake by which workers join the server: HELLO, then WELCOME or REFUSED.

A worker connects and sends HELLO. The server checks session, name, address and layout, and answers
WELCOME. Any other connection is counted and closed; it does not delay the expected workers. The
server listens only until all workers have joined.

Threat model. The session identifier (32 random bits per run) tells runs apart and keeps out
strangers who can only guess it. It is not secret from anyone who can read the traffic, and nothing
is encrypted. A stranger must guess the session and send from a peer's address before anything it
sends is believed:

* on a listening port, each guess costs the stranger a TCP connection, which is closed unanswered;
* on a data port, datagrams with another session, address or port are counted and dropped. Nothing
  is ever answered there, because a receiver answers over the joined peer's TCP connection. So the
  transport cannot be used to amplify traffic towards a victim.

Someone who reads the traffic can forge data, which then ends up in the payload, but cannot make a
process fail or grow without bound. A joined peer is trusted with its own data only: its messages
are checked, memory kept for it is bounded, and an invalid message ends the transfer with an error
that names the peer. On networks that strangers can reach, run this transport through a tunnel
(WireGuard, IPsec).
"""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from testbed.transport.control_messages import (
    HEADER_BYTES,
    MAX_REASON_BYTES,
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
)
from testbed.transport.errors import PeerLost, ProtocolError
from testbed.transport.socket_waiter import Waiter

HELLO_WITHIN_S = 5.0
_MAX_NEWCOMERS = 64
_RETRY_S = 0.05
_SERVER = "server"
_HELLO_LIMITS = body_limits(1)[MessageType.HELLO]
# A HELLO's session follows its header; a wrong one ends the reading early.
_SESSION_AT = HEADER_BYTES
_SESSION_BYTES = 4


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


class Listener:
    """A listening port and the workers that are expected there.

    Attributes:
        arrived: name -> connection and HELLO of the workers that have joined.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        expected: Iterable[str],
        answer: Callable[[Hello], Welcome],
        new_socket: Callable[[], socket.socket] = _new_socket,
    ) -> None:
        """Listens at once; OSError when the port is taken.

        `answer` makes the WELCOME, or raises ProtocolError when the worker cannot take part.
        Connections inherit the options of what `new_socket` makes.
        """
        self.expected = frozenset(expected)
        self.answer = answer
        self.arrived: dict[str, tuple[socket.socket, Hello]] = {}
        self._listener = new_socket()
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((address, port))
            self._listener.listen(128)
            self._listener.setblocking(False)
        except OSError as error:
            self._listener.close()
            raise OSError(error.errno, f"cannot listen on {address}:{port}: {error}") from None

    @property
    def missing(self) -> list[str]:
        """The workers that have not joined yet."""
        return sorted(self.expected - self.arrived.keys())

    def fileno(self) -> int:
        """For a selector."""
        return self._listener.fileno()

    def accept(self) -> tuple[socket.socket, str] | None:
        """The next connection and its address, None when there is none now."""
        try:
            connection, (address, _) = self._listener.accept()
        except OSError:  # none waits, or it was closed again
            return None
        connection.setblocking(False)
        return connection, address

    def close(self) -> None:
        """Stops listening; the connections stay."""
        self._listener.close()


@dataclass(eq=False)
class _Newcomer:
    """A connection that has not sent a complete HELLO yet."""

    connection: socket.socket
    address: str
    listener: Listener
    until_s: float
    head: bytes = b""
    parser: ControlParser = field(
        default_factory=lambda: ControlParser({MessageType.HELLO: _HELLO_LIMITS})
    )

    def fileno(self) -> int:
        return self.connection.fileno()


def accept_peers(
    listeners: list[Listener],
    *,
    session: int,
    addresses: Mapping[str, str],
    timeout_s: float,
    counters: Counter[str],
) -> None:
    """Accepts connections until all workers have joined; counts strangers in `counters`.

    Closes the listeners. Raises PeerLost naming the workers that did not join within `timeout_s`,
    and ProtocolError when a listener's `answer` does.
    """
    deadline_s = time.monotonic() + timeout_s
    newcomers: list[_Newcomer] = []
    waiter = Waiter()
    try:
        while any(listener.missing for listener in listeners):
            now_s = time.monotonic()
            if now_s >= deadline_s:
                missing = next(listener.missing for listener in listeners if listener.missing)
                raise PeerLost(", ".join(missing), f"did not join within {timeout_s:g} s")
            ends_s = min([deadline_s, *(newcomer.until_s for newcomer in newcomers)])
            ready, _ = waiter.wait(
                readable=[*listeners, *newcomers], writable=[], timeout_s=ends_s - now_s
            )
            now_s = time.monotonic()
            for listener in listeners:
                while listener in ready and (came := listener.accept()) is not None:
                    connection, address = came
                    newcomers.append(
                        _Newcomer(connection, address, listener, now_s + HELLO_WITHIN_S)
                    )
            for newcomer in list(newcomers):
                verdict: str | None = None
                if newcomer in ready:
                    verdict = _read_hello(newcomer, session, addresses)
                elif newcomer.until_s <= now_s:
                    verdict = "silent"
                elif len(newcomers) > _MAX_NEWCOMERS:
                    verdict = "crowded-out"  # the oldest first
                if verdict is None:
                    continue
                newcomers.remove(newcomer)
                if verdict != "joined":
                    counters[f"stranger-{verdict}"] += 1
                    newcomer.connection.close()
    finally:
        counters["stranger-unfinished"] += len(newcomers)
        waiter.close()
        for newcomer in newcomers:
            newcomer.connection.close()
        for listener in listeners:
            listener.close()


def _read_hello(newcomer: _Newcomer, session: int, addresses: Mapping[str, str]) -> str | None:
    """Reads a newcomer's HELLO: returns None for incomplete, "joined", or why it is a stranger."""
    try:
        data = newcomer.connection.recv(1 << 16)
        messages = newcomer.parser.feed(data)
        if not messages:
            # A stranger without the session must not fill memory with a long HELLO.
            newcomer.head = (newcomer.head + data)[: _SESSION_AT + _SESSION_BYTES]
            named = newcomer.head[_SESSION_AT:]
            if len(named) == _SESSION_BYTES and int.from_bytes(named, "big") != session:
                return "wrong-session"
            return None if data else "silent"
        hello = Hello.parse(messages[0].body)
    except BlockingIOError:
        return None
    except OSError:
        return "reset"
    except ProtocolError:
        return "garbage"
    if len(messages) > 1 or newcomer.parser.pending_bytes:
        return "garbage"  # a real peer waits for the WELCOME before it sends more
    if hello.session != session:
        return "wrong-session"
    if hello.name not in newcomer.listener.expected:
        return "unknown-name"
    if newcomer.address != addresses[hello.name]:
        return "unknown-address"
    if hello.name in newcomer.listener.arrived:
        return "twice"
    try:
        answer = newcomer.listener.answer(hello).message()
    except ProtocolError as error:
        # The limit may cut a character in two; the reader replaces it.
        reason = str(error).encode()[:MAX_REASON_BYTES]
        _say(newcomer.connection, ControlMessage(MessageType.REFUSED, body=reason))
        raise ProtocolError(f"{hello.name} cannot join: {error}") from None
    if not _say(newcomer.connection, answer):
        return "reset"
    newcomer.listener.arrived[hello.name] = newcomer.connection, hello
    return "joined"


def _say(connection: socket.socket, message: ControlMessage) -> bool:
    """Sends a message that is small enough for a new connection's empty buffer."""
    try:
        connection.sendall(message.encode())
    except OSError:
        return False
    return True


def connect_to_server(
    *,
    address: str,
    port: int,
    bind_address: str,
    hello: Hello,
    until_s: float,
    new_socket: Callable[[], socket.socket] = _new_socket,
) -> tuple[socket.socket, Welcome]:
    """Connects to one of the server's listeners, retrying until `until_s`.

    Raises PeerLost when no WELCOME comes, ProtocolError when the server refuses.
    """
    problem = "it was not tried"
    while (left_s := until_s - time.monotonic()) > 0:
        connection = new_socket()
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(left_s)
            connection.bind((bind_address, 0))
            connection.connect((address, port))
            if connection.getsockname() == connection.getpeername():
                # No one listens there and the kernel connected the socket to itself.
                raise ConnectionRefusedError(0, "Connection refused")
            connection.sendall(hello.message().encode())
            welcome = _await_welcome(connection)
        except OSError as error:
            problem = error.strerror or "no answer in time"
        except BaseException:
            connection.close()
            raise
        else:
            if welcome is not None and welcome.session == hello.session:
                return connection, welcome
            problem = "the connection was closed without a WELCOME; is it another run's server?"
        connection.close()
        time.sleep(max(0.0, min(_RETRY_S, until_s - time.monotonic())))
    raise PeerLost(_SERVER, f"could not join it at {address}:{port}: {problem}")


def _await_welcome(connection: socket.socket) -> Welcome | None:
    """Waits for the server's answer; returns None when the connection ends without one."""
    limits = body_limits(1)
    parser = ControlParser(
        {kind: limits[kind] for kind in (MessageType.WELCOME, MessageType.REFUSED)}
    )
    while True:
        # Other messages may follow the WELCOME at once; their bytes must stay in the socket.
        data = connection.recv(parser.missing_bytes)
        if not data:
            return None
        for message in parser.feed(data):
            if message.type is MessageType.REFUSED:
                reason = message.body.decode(errors="replace")
                raise ProtocolError(f"the server refused: {reason}")
            return Welcome.parse(message.body)
