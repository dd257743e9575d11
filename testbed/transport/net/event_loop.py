"""Drives the transfers with all peers in one thread until each is done.

A `PeerTransfer` is one peer's part of a `send` or `receive` and knows its data socket. The loop
knows the control connections, waits, and decides when to give up a peer.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from testbed.transport.core.errors import PeerLost, ProtocolError
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.reports import TransferReport
from testbed.transport.net.control_connection import ControlConnection
from testbed.transport.net.socket_waiter import Waiter

_FOR_TRANSFERS = (
    MessageType.PROBE,
    MessageType.BITMAP,
    MessageType.LATE_BITMAP,
    MessageType.ACK,
    MessageType.STOP,
)


class PeerTransfer(ABC):
    """One peer's part of a transfer that is in progress."""

    transfer: int

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether this side needs nothing more from the peer."""

    @abstractmethod
    def work(self, now_s: float) -> None:
        """Does what is due, without waiting. Called after every event and every deadline."""

    def on_readable(self, now_s: float) -> None:  # noqa: B027 - only readers override it
        """Called when the socket `reading` has data."""

    @abstractmethod
    def on_message(self, message: ControlMessage, now_s: float) -> None:
        """Takes a control message for this transfer; ProtocolError when it makes no sense."""

    @abstractmethod
    def poll_messages(self) -> list[ControlMessage]:
        """The control messages to send now."""

    def next_deadline_s(self, now_s: float) -> float | None:
        """When `work` is due next; None: not before the next event."""
        return None

    @property
    def reading(self) -> Any | None:
        """The data socket while the loop should wait for arrivals on it."""
        return None

    @property
    def writing(self) -> Any | None:
        """The data socket while it is full and the loop should wait for room in it."""
        return None

    @property
    @abstractmethod
    def owed_since_s(self) -> float | None:
        """Since when the peer has owed an answer or data; None if it owes nothing."""

    @abstractmethod
    def report(self) -> TransferReport:
        """The report on this transfer, once `done`."""


class Loop:
    """Runs the transfers of one endpoint."""

    def __init__(
        self,
        control: Mapping[str, ControlConnection],
        *,
        peer_timeout_s: float,
        counters: Counter[str],
        keep_going: bool = False,
    ) -> None:
        """With `keep_going`, notes a lost peer in `lost` and goes on with the others."""
        self._control = dict(control)
        self._keep_going = keep_going
        self.lost: dict[str, str] = {}
        self._peer_timeout_s = peer_timeout_s
        self._counters = counters
        self._waiter = Waiter()
        self._finished = dict.fromkeys(control, -1)  # the latest transfer with each peer

    def run(self, peer_transfers: Mapping[str, PeerTransfer]) -> None:
        """Returns when all transfers are done and all their messages are on their way.

        Raises PeerLost for the first peer that is gone while it owes something; with `keep_going`
        only once no peer is left.
        """
        left = dict(peer_transfers)

        def begin() -> None:
            for name, peer_transfer in left.items():
                for message in self._control[name].take_early():
                    self._dispatch(name, message, peer_transfer, time.monotonic())

        def finish() -> None:
            self._until(
                lambda: all(peer_transfer.done for peer_transfer in left.values()),
                left,
                lambda name: left[name].owed_since_s if name in left else None,
            )

        self._outlive(begin, left)
        self._outlive(finish, left)
        for name, peer_transfer in left.items():
            self._finished[name] = peer_transfer.transfer

    def check_transfer(self, name: str, transfer: int) -> None:
        """Raises ValueError unless the number is above all earlier ones with this peer."""
        if transfer <= self._finished[name]:
            raise ValueError(
                f"transfer {transfer} with {name} comes after {self._finished[name]}; "
                "numbers must ascend"
            )

    def announcement(self, name: str) -> bytes:
        """Waits for a peer's next announcement and returns it; PeerLost when none comes."""
        connection = self._control[name]
        began_s = time.monotonic()
        self._until(lambda: bool(connection.announcements), {}, lambda _: began_s)
        return connection.take_announcement()

    def flush(self) -> None:
        """Returns when all messages are on their way; PeerLost when one cannot be sent."""

        def finish() -> None:
            self._until(lambda: True, {}, lambda _: None)
            for connection in self._control.values():
                connection.require_writable()

        self._outlive(finish, {})

    def close(self) -> None:
        """Frees the selector."""
        self._waiter.close()

    def _outlive(self, step: Callable[[], None], peer_transfers: dict[str, PeerTransfer]) -> None:
        """Repeats a step without the peers that it loses, if the others are to go on."""
        while True:
            try:
                step()
                return
            except PeerLost as loss:
                if not self._keep_going or loss.peer not in self._control:
                    raise
                self.lost[loss.peer] = loss.reason
                del self._control[loss.peer]
                peer_transfers.pop(loss.peer, None)
                if not self._control:
                    raise

    def _until(
        self,
        finished: Callable[[], bool],
        peer_transfers: Mapping[str, PeerTransfer],
        owed_since_s: Callable[[str], float | None],
    ) -> None:
        control = self._control
        while True:
            now_s = time.monotonic()
            for name, peer_transfer in peer_transfers.items():
                peer_transfer.work(now_s)
                control[name].send(peer_transfer.poll_messages())
                if not peer_transfer.done:
                    control[name].require()
            unsent = [connection for connection in control.values() if connection.has_unsent]
            if finished() and not unsent:
                return
            wake_s = now_s + self._peer_timeout_s
            for name, connection in control.items():
                wake_s = min(wake_s, self._patience_s(connection, owed_since_s(name), now_s))
            for peer_transfer in peer_transfers.values():
                deadline_s = peer_transfer.next_deadline_s(now_s)
                wake_s = min(wake_s, math.inf if deadline_s is None else deadline_s)
            self._wait(peer_transfers, unsent, wake_s - time.monotonic())

    def _patience_s(
        self, connection: ControlConnection, owed_since_s: float | None, now_s: float
    ) -> float:
        """When the patience with a peer ends; PeerLost when it has ended or the peer is gone."""
        if owed_since_s is None:
            return math.inf
        connection.require()
        until_s = max(owed_since_s, connection.heard_s) + self._peer_timeout_s
        if now_s >= until_s:
            raise PeerLost(connection.peer, f"silent for {self._peer_timeout_s:g} s")
        return until_s

    def _wait(
        self,
        peer_transfers: Mapping[str, PeerTransfer],
        unsent: list[ControlConnection],
        timeout_s: float,
    ) -> None:
        active = peer_transfers.values()
        # A selector reports a connection that has ended as readable for ever.
        alive = [connection for connection in self._control.values() if connection.closed is None]
        readable = [
            peer_transfer.reading for peer_transfer in active if peer_transfer.reading is not None
        ]
        writable = [
            peer_transfer.writing for peer_transfer in active if peer_transfer.writing is not None
        ]
        ready, roomy = self._waiter.wait(
            readable=[*alive, *readable], writable=[*unsent, *writable], timeout_s=timeout_s
        )
        now_s = time.monotonic()
        for peer_transfer in active:
            if peer_transfer.reading is not None and peer_transfer.reading in ready:
                peer_transfer.on_readable(now_s)
        for name, connection in self._control.items():
            if connection in roomy:
                connection.flush()
            if connection in ready:
                for message in connection.read(now_s):
                    self._dispatch(name, message, peer_transfers.get(name), now_s)

    def _dispatch(
        self, name: str, message: ControlMessage, peer_transfer: PeerTransfer | None, now_s: float
    ) -> None:
        """Hands a message to its transfer, or keeps it for a later one."""
        connection = self._control[name]
        if message.type is MessageType.ANNOUNCE:
            connection.keep_announcement(message.body)
        elif message.type not in _FOR_TRANSFERS:
            raise PeerLost(name, f"it broke the protocol: {message.type.name} after joining")
        elif peer_transfer is not None and message.transfer == peer_transfer.transfer:
            try:
                peer_transfer.on_message(message, now_s)
            except ProtocolError as error:
                raise PeerLost(name, f"it broke the protocol: {error}") from error
        elif message.transfer > self._finished[name] and (
            peer_transfer is None or message.transfer > peer_transfer.transfer
        ):
            connection.keep(message)
        elif message.type is MessageType.PROBE:
            connection.send([ControlMessage(MessageType.STOP, message.transfer)])
        elif message.type is not MessageType.STOP:  # a STOP may come twice
            self._counters["stale-control"] += 1
