"""The event loop: one exchange per peer, all in one thread, until each is done.

An *exchange* is one peer's part of a `send` or `receive`. It knows its data socket; the loop knows
the control connections, the waiting, and when a peer must be given up.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from testbed.transport.control import ControlMessage, MessageType
from testbed.transport.errors import PeerLost, ProtocolError
from testbed.transport.links import ControlLink
from testbed.transport.transfer_report import TransferReport
from testbed.transport.waiting import Waiter

_FOR_TRANSFERS = (
    MessageType.PROBE,
    MessageType.BITMAP,
    MessageType.LATE_BITMAP,
    MessageType.REPORT,
    MessageType.STOP,
)


class Exchange(ABC):
    """One peer's part of a transfer that is in progress."""

    transfer: int

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether this side needs nothing more from the peer."""

    @abstractmethod
    def work(self, now_s: float) -> None:
        """Does what is due without waiting: called after every event and every deadline."""

    def on_readable(self, now_s: float) -> None:  # noqa: B027 - only for those who read
        """`reading` has something."""

    @abstractmethod
    def on_message(self, message: ControlMessage, now_s: float) -> None:
        """Takes a control message for this transfer; ProtocolError when it makes no sense."""

    @abstractmethod
    def poll_messages(self) -> list[ControlMessage]:
        """The control messages to send now."""

    def next_deadline_s(self, now_s: float) -> float | None:
        """When `work` is due; None for not before the next event."""
        return None

    @property
    def reading(self) -> Any | None:
        """The data socket, while it should be watched for arrivals."""
        return None

    @property
    def writing(self) -> Any | None:
        """The data socket, while it is full and should be watched for room."""
        return None

    @property
    @abstractmethod
    def owed_since_s(self) -> float | None:
        """Since when the peer has owed something that did not come; None if it owes nothing."""

    @abstractmethod
    def report(self) -> TransferReport:
        """The account, once done."""


class Loop:
    """Drives exchanges over the control links of one endpoint."""

    def __init__(
        self,
        links: Mapping[str, ControlLink],
        *,
        peer_timeout_s: float,
        counters: Counter[str],
        keep_going: bool = False,
    ) -> None:
        """With `keep_going` a lost peer is noted in `lost`, and the others' exchanges go on."""
        self._links = dict(links)
        self._keep_going = keep_going
        self.lost: dict[str, str] = {}
        self._peer_timeout_s = peer_timeout_s
        self._counters = counters
        self._waiter = Waiter()
        self._finished = dict.fromkeys(links, -1)  # the latest transfer with each peer

    def run(self, exchanges: Mapping[str, Exchange]) -> None:
        """Returns when all exchanges are done and all their messages are on their way.

        Raises PeerLost for the first peer that is gone while it still owes something, or, when
        the others go on, once nobody is left.
        """
        left = dict(exchanges)

        def begin() -> None:
            for name, exchange in left.items():
                for message in self._links[name].take_early():
                    self._dispatch(name, message, exchange, time.monotonic())

        def finish() -> None:
            self._until(
                lambda: all(exchange.done for exchange in left.values()),
                left,
                lambda name: left[name].owed_since_s if name in left else None,
            )

        self._outlive(begin, left)
        self._outlive(finish, left)
        for name, exchange in left.items():
            self._finished[name] = exchange.transfer

    def check_transfer(self, name: str, transfer: int) -> None:
        """Raises ValueError unless the transfer is later than all before with this peer."""
        if transfer <= self._finished[name]:
            raise ValueError(
                f"transfer {transfer} with {name} comes after {self._finished[name]}; "
                "numbers must ascend"
            )

    def announcement(self, name: str) -> bytes:
        """The next announcement of a peer, waiting for it; PeerLost when it does not come."""
        link = self._links[name]
        began_s = time.monotonic()
        self._until(lambda: bool(link.announcements), {}, lambda _: began_s)
        return link.take_announcement()

    def flush(self) -> None:
        """Returns when all messages are on their way; PeerLost when one cannot be."""

        def finish() -> None:
            self._until(lambda: True, {}, lambda _: None)
            for link in self._links.values():
                link.require_writable()

        self._outlive(finish, {})

    def close(self) -> None:
        """Frees the selector."""
        self._waiter.close()

    def _outlive(self, step: Callable[[], None], exchanges: dict[str, Exchange]) -> None:
        """Does a step, again without each peer that is lost in it, if the others are to go on."""
        while True:
            try:
                step()
                return
            except PeerLost as loss:
                if not self._keep_going or loss.peer not in self._links:
                    raise
                self.lost[loss.peer] = loss.reason
                del self._links[loss.peer]
                exchanges.pop(loss.peer, None)
                if not self._links:
                    raise

    def _until(
        self,
        finished: Callable[[], bool],
        exchanges: Mapping[str, Exchange],
        owed_since_s: Callable[[str], float | None],
    ) -> None:
        links = self._links
        while True:
            now_s = time.monotonic()
            for name, exchange in exchanges.items():
                exchange.work(now_s)
                links[name].send(exchange.poll_messages())
                if not exchange.done:
                    links[name].require()
            unsent = [link for link in links.values() if link.has_unsent]
            if finished() and not unsent:
                return
            wake_s = now_s + self._peer_timeout_s
            for name, link in links.items():
                wake_s = min(wake_s, self._patience_s(link, owed_since_s(name), now_s))
            for exchange in exchanges.values():
                deadline_s = exchange.next_deadline_s(now_s)
                wake_s = min(wake_s, math.inf if deadline_s is None else deadline_s)
            self._wait(exchanges, unsent, wake_s - time.monotonic())

    def _patience_s(self, link: ControlLink, owed_since_s: float | None, now_s: float) -> float:
        """Until when to wait for a peer; PeerLost when that is over or it is gone."""
        if owed_since_s is None:
            return math.inf
        link.require()
        until_s = max(owed_since_s, link.heard_s) + self._peer_timeout_s
        if now_s >= until_s:
            raise PeerLost(link.peer, f"silent for {self._peer_timeout_s:g} s")
        return until_s

    def _wait(
        self, exchanges: Mapping[str, Exchange], unsent: list[ControlLink], timeout_s: float
    ) -> None:
        active = exchanges.values()
        # A connection that has ended is readable for ever.
        alive = [link for link in self._links.values() if link.closed is None]
        readable = [exchange.reading for exchange in active if exchange.reading is not None]
        writable = [exchange.writing for exchange in active if exchange.writing is not None]
        ready, roomy = self._waiter.wait(
            readable=[*alive, *readable], writable=[*unsent, *writable], timeout_s=timeout_s
        )
        now_s = time.monotonic()
        for exchange in active:
            if exchange.reading is not None and exchange.reading in ready:
                exchange.on_readable(now_s)
        for name, link in self._links.items():
            if link in roomy:
                link.flush()
            if link in ready:
                for message in link.read(now_s):
                    self._dispatch(name, message, exchanges.get(name), now_s)

    def _dispatch(
        self, name: str, message: ControlMessage, exchange: Exchange | None, now_s: float
    ) -> None:
        """Hands a message to whom it concerns, now or later."""
        link = self._links[name]
        if message.type is MessageType.ANNOUNCE:
            link.keep_announcement(message.body)
        elif message.type not in _FOR_TRANSFERS:
            raise PeerLost(name, f"it broke the protocol: {message.type.name} after joining")
        elif exchange is not None and message.transfer == exchange.transfer:
            try:
                exchange.on_message(message, now_s)
            except ProtocolError as error:
                raise PeerLost(name, f"it broke the protocol: {error}") from error
        elif message.transfer > self._finished[name] and (
            exchange is None or message.transfer > exchange.transfer
        ):
            link.keep(message)
        elif message.type is MessageType.PROBE:
            link.send([ControlMessage(MessageType.STOP, message.transfer)])
        elif message.type is not MessageType.STOP:  # a STOP may well come twice
            self._counters["stale-control"] += 1
