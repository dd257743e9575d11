"""Listening ports, and the connections of which no complete HELLO has come yet."""

import math
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from testbed.shared.input_error import shown
from testbed.transport.errors import ProtocolError
from testbed.transport.joining import MAX_NEWCOMERS, Newcomer, UnknownSenderError
from testbed.transport.messages import Hello
from testbed.transport.net.addresses import SocketAddress, in_words
from testbed.transport.net.stream import Stream
from testbed.transport.net.tls import Tls


def listen(
    address: SocketAddress, prepare: Callable[[socket.socket], None] = lambda listener: None
) -> socket.socket:
    """A listening socket that never blocks; OSError when the port is taken."""
    family = socket.AF_INET if len(address) == 2 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        prepare(listener)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except BaseException as error:
        listener.close()
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot listen on {in_words(address)}: {error}") from None
        raise
    return listener


@dataclass(eq=False)
class Arrival:
    """A connection whose HELLO has not been judged yet."""

    connection: socket.socket
    stream: Stream
    address: SocketAddress
    newcomer: Newcomer

    def fileno(self) -> int:
        return self.stream.fileno()


# Takes a complete HELLO, and with it the connection, unless it raises UnknownSenderError (for one
# that is turned away without an answer), ProtocolError or OSError.
Judge = Callable[[Hello, Arrival], None]


class Rejections:
    """Counts the connections that were closed before they joined; the last of each reason."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._last: dict[str, str] = {}

    def add(self, why: str, arrival: Arrival, name: str | None = None) -> None:
        self._counters[f"stranger-{why}"] += 1
        who = arrival.address[0] if name is None else f"{shown(name)} from {arrival.address[0]}"
        reason = arrival.stream.closed
        self._last[why] = who if reason is None else f"{who}: {reason}"

    def __str__(self) -> str:
        each = (
            f"{self._counters[f'stranger-{why}']} {why} (the last: {last})"
            for why, last in self._last.items()
        )
        return ", ".join(each)


class Listener:
    """A listening port; unknown senders are counted and closed, and hold nobody up."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        session: int,
        judge: Judge,
        rejections: Rejections,
        tls: Callable[[], Tls | None] = lambda: None,
    ) -> None:
        self.arrivals: list[Arrival] = []
        self._socket = listening
        self._session = session
        self._judge = judge
        self._rejections = rejections
        self._tls = tls

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def until_s(self) -> float:
        """When `expire` is due; math.inf for never."""
        return self.arrivals[0].newcomer.until_s if self.arrivals else math.inf

    def accept(self, now_s: float) -> None:
        """Accepts connections, up to a limit."""
        for _ in range(MAX_NEWCOMERS):
            try:
                connection, address = self._socket.accept()
            except OSError:  # none waits, or it was closed again
                return
            stream = Stream(connection, self._tls())
            newcomer = Newcomer(self._session, now_s)
            self.arrivals.append(Arrival(connection, stream, address, newcomer))
            if len(self.arrivals) > MAX_NEWCOMERS:
                self._reject(self.arrivals[0], "crowded-out")

    def read(self, arrival: Arrival) -> None:
        """Reads a newcomer's HELLO."""
        data = arrival.stream.read()
        try:
            if not data and arrival.stream.closed is None:
                return  # TLS has not come to the HELLO yet
            hello = arrival.newcomer.feed(data)
            if hello is None:
                if arrival.stream.closed is not None:
                    raise UnknownSenderError("reset")
                return
            self._judge(hello, arrival)
            self.arrivals.remove(arrival)
        except UnknownSenderError as error:
            self._reject(arrival, str(error), error.name)
        except ProtocolError:
            self._reject(arrival, "refused")
        except OSError:
            self._reject(arrival, "reset")

    def expire(self, now_s: float) -> None:
        """Closes connections whose time is over."""
        while self.until_s <= now_s:
            self._reject(self.arrivals[0], "silent")

    def _reject(self, arrival: Arrival, why: str, name: str | None = None) -> None:
        self._rejections.add(why, arrival, name)
        self.arrivals.remove(arrival)
        arrival.stream.close()

    def close(self) -> None:
        """Stops listening."""
        while self.arrivals:
            self._reject(self.arrivals[0], "unfinished")
        self._socket.close()
