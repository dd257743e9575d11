"""The endpoint that training uses: sends payloads to peers and receives payloads from them."""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from testbed.transport.connection import Connection, ConnectionState
from testbed.transport.errors import PeerLost, TransportError
from testbed.transport.events import (
    Announced,
    Event,
    Joined,
    PeerGone,
    TransferDone,
    TransferReport,
)
from testbed.transport.joining import SERVER
from testbed.transport.messages import MAX_ANNOUNCEMENT_BYTES
from testbed.transport.net.carriers import DataSockets
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.driver import Driver, Link
from testbed.transport.net.membership import Membership
from testbed.transport.tolerance import Fixed, StopRuleFactory

Buffers = Mapping[str, NDArray[np.uint8]]  # by peer


@dataclass(eq=False)
class Handle:
    """A transfer with one or several peers that was posted."""

    transfer: int  # its number
    sending: bool  # whether this side sends
    peers: Collection[str]
    _wait: Callable[["Handle"], None]
    # Of those peers with which it has ended; and those that were lost before, each with the reason.
    reports: dict[str, TransferReport] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.peers = frozenset(self.peers)  # a mapping would hold its buffers
        self._awaited = set(self.peers)

    @property
    def done(self) -> bool:
        """True once it has ended with every peer, in one way or the other."""
        return not self._awaited

    def wait(self) -> dict[str, TransferReport]:
        """Returns the reports once it has ended with all peers.

        Raises PeerLost for one that is gone; with `survive_peers` only if all are.
        """
        self._wait(self)
        return dict(self.reports)

    def end(self, peer: str, outcome: TransferReport | str) -> None:
        if peer in self._awaited:
            self._awaited.remove(peer)
            if isinstance(outcome, str):
                self.failed[peer] = outcome
            else:
                self.reports[peer] = outcome


# What unread announcements may occupy, and what one does besides its bytes.
_MAX_ANNOUNCED_BYTES = 8 << 20
_KEPT_BYTES = 2048
# A child lets go of its parent's: else a killed peer would seem to live as long as its children.
_held: WeakSet["Endpoint"] = WeakSet()


def _abandon_all() -> None:
    for endpoint in list(_held):
        endpoint.abandon()
    _held.clear()


os.register_at_fork(after_in_child=_abandon_all)


class Endpoint:
    """One side's transfers. Not thread-safe, but for `wake`.

    Transfers have ascending numbers in each direction, such as `Leg.GATHER.transfer(round)`; both
    sides use the same number. Data moves only while a method that waits is running: `send`,
    `receive`, `announce`, `await_announcement`, `poll`, or a handle's `wait`. In a process that is
    forked from the one that made it, it is not open.

    When a peer dies, the methods that need it raise PeerLost, which names it; with
    `survive_peers` only when the last peer is gone. A worker that was lost may join again while
    the server waits for anything; it then leaves `lost`.
    """

    def __init__(self, config: EndpointConfig, sockets: DataSockets | None = None) -> None:
        self._config = config
        self._counters: Counter[str] = Counter()
        self._announcements: deque[bytes] = deque()
        self._announced_bytes = 0  # that they occupy
        self._handles: list[Handle] = []  # posted, and neither awaited nor returned by `poll`
        self._gone: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._driver = Driver(self._on_event)
        self._membership = Membership(config, self._driver, self._counters, self._on_event, sockets)
        self._open = False
        _held.add(self)

    def open(self) -> None:
        """Joins the peers: the server waits for all workers, a worker connects to the server.

        Raises PeerLost naming who did not come within connect_timeout_s, ProtocolError when a
        peer has another layout or congestion control, ValueError for a control that the kernel
        does not have, a chunk larger than the interface's MTU, or addresses beyond this system
        without credentials, OSError when an address or port cannot be used.
        """
        if self._open:
            return
        try:
            self._membership.open()
        except BaseException:
            self.close()
            raise
        self._open = True

    def send(self, transfer: int, payloads: Buffers) -> dict[str, TransferReport]:
        """Sends to several peers at once; returns when each has answered STOP.

        `payloads` maps peers to buffers of the layout; several peers may share one buffer.
        """
        return self.post_send(transfer, payloads).wait()

    def receive(
        self, transfer: int, tolerance: float | StopRuleFactory, into: Buffers
    ) -> dict[str, TransferReport]:
        """Receives from several peers at once; returns when enough has arrived from each.

        `tolerance` is the fraction that may be missing, or a rule from
        `policy.stop_rule(critical)`. `into` maps peers to buffers of the layout. Chunks that did
        not arrive leave their part of the buffer untouched; the report's `received` tells which.
        """
        return self.post_receive(transfer, tolerance, into).wait()

    def post_send(self, transfer: int, payloads: Buffers) -> Handle:
        """Begins to send; the payloads must not change before the handle is done.

        Raises ValueError, and nothing is sent, for an unknown peer, a number that does not ascend,
        or more transfers than may be in flight.
        """
        arrangers: dict[int, Any] | None = {} if len(payloads) > 1 else None

        def begin(connection: Connection, now_s: float) -> None:
            connection.post_send(transfer, payloads[connection.peer], now_s, arrangers)

        return self._post(transfer, payloads, begin, sending=True)

    def post_receive(
        self, transfer: int, tolerance: float | StopRuleFactory, into: Buffers
    ) -> Handle:
        """Begins to receive; the buffers belong to the transfer until the handle is done."""
        make = tolerance if callable(tolerance) else Fixed(tolerance).stop_rule(critical=False)
        layout = self._config.layout_of(transfer)

        def begin(connection: Connection, now_s: float) -> None:
            connection.post_receive(transfer, make(layout), into[connection.peer], now_s)

        return self._post(transfer, into, begin, sending=False)

    def _post(
        self,
        transfer: int,
        buffers: Buffers,
        begin: Callable[[Connection, float], None],
        *,
        sending: bool,
    ) -> Handle:
        self._require_open()
        for peer, buffer in buffers.items():
            if peer not in self._config.peers:
                raise ValueError(f"unknown peer {peer!r}; valid: {', '.join(self._config.peers)}")
            self._config.layout_of(transfer).rows(buffer, written=not sending)
        self.await_start()
        links = self._present()
        for peer in buffers.keys() & links.keys():
            connection = links[peer].connection
            (connection.outgoing if sending else connection.incoming).check(transfer)
        handle = Handle(transfer, sending, buffers, self._await)
        now_s = time.monotonic()
        for peer in buffers:
            if peer in links:
                begin(links[peer].connection, now_s)
            elif peer in self._gone:
                handle.end(peer, self._gone[peer])
                continue
            self._driver.notify(peer)  # if it has just ended, to hear why
        self._handles.append(handle)  # nothing that was refused is awaited
        return handle

    def _present(self) -> dict[str, Link]:
        return {name: link for name, link in self._driver.links.items() if link.present}

    def poll(self, timeout_s: float = 0.0, *, unless_begun: int | None = None) -> list[Handle]:
        """Moves data until a handle ends, `wake` is called, `begun(unless_begun)`, or `timeout_s`.

        Returns the handles that have ended, each once, and not when `wait` has been called.
        """
        self._require_open()

        def ended() -> list[Handle]:
            return [handle for handle in self._handles if handle.done]

        def finished() -> bool:
            begun = unless_begun is not None and self.begun(unless_begun)
            return bool(ended()) or self._driver.alarm.is_set or begun

        def peers() -> set[str]:
            return {peer for handle in ended() for peer in handle.peers}

        self._driver.run(finished, time.monotonic() + timeout_s, peers, until_alarm=True)
        self._driver.alarm.clear()
        returned = ended()
        for handle in returned:
            self._handles.remove(handle)
            self._lost |= handle.failed
        return returned

    @property
    def here(self) -> frozenset[str]:
        """The peers that have joined and are not gone."""
        return frozenset(self._present())

    def begun(self, transfer: int) -> bool:
        """Says whether any peer has begun to send a transfer that was not posted here."""
        return any(link.connection.incoming.begun(transfer) for link in self._present().values())

    def wake(self) -> None:
        """Makes `poll` return, this time or the next; any thread may call it, at any time."""
        self._driver.alarm.set()

    def _await(self, handle: Handle) -> None:
        strict = not (self._config.is_server and self._config.survive_peers)

        def finished() -> bool:
            return handle.done or (strict and bool(handle.failed))

        if not handle.done or handle in self._handles:
            self._require_open()
            self._driver.run(finished, peers=lambda: handle.peers)
        if handle in self._handles:
            self._handles.remove(handle)
        if handle.failed and (strict or not handle.reports):
            raise PeerLost(*next(iter(handle.failed.items())))
        self._lost |= handle.failed

    @property
    def lost(self) -> dict[str, str]:
        """Peers that are gone, each with the reason, where this side goes on without them."""
        self._require_open()
        return {peer: why for peer, why in self._lost.items() if peer in self._gone}

    def announce(self, body: bytes) -> None:
        """Server only: sends every worker a message of at most 65536 bytes, reliably."""
        self._require_open()
        if not self._config.is_server:
            raise TransportError("only the server announces")
        if len(body) > MAX_ANNOUNCEMENT_BYTES:
            raise ValueError(
                f"an announcement of {len(body)} bytes; valid: at most {MAX_ANNOUNCEMENT_BYTES}"
            )
        for name, link in self._present().items():
            link.connection.announce(body)
            self._driver.notify(name)
        self._driver.run(lambda: True)
        if self._gone and (not self._config.survive_peers or not self._present()):
            raise PeerLost(*next(iter(self._gone.items())))
        self._lost |= self._gone

    def await_announcement(self) -> bytes:
        """Worker only: waits for the server's next announcement and returns it.

        Waits as long as the server lives: it must answer at least once in peer_timeout_s.
        """
        self._require_open()
        if self._config.is_server:
            raise TransportError("the server makes the announcements")
        self.await_start()
        link = self._driver.links.get(SERVER)
        if link is not None and not self._announcements:
            link.connection.await_announcement(time.monotonic())
            self._driver.notify(SERVER)
        self._driver.run(lambda: bool(self._announcements or self._gone))
        if not self._announcements:
            raise PeerLost(SERVER, self._gone[SERVER])
        body = self._announcements.popleft()
        self._announced_bytes -= len(body) + _KEPT_BYTES
        return body

    def counters(self) -> dict[str, int]:
        """Counts the connections and datagrams that were ignored since `open`, by reason."""
        total = self._counters + self._membership.counters()
        for link in self._driver.links.values():
            total += link.connection.counters
        return dict(total)

    def facts(self) -> dict[str, Any]:
        """Says what the kernel granted, and counts the datagrams of control messages."""
        return self._membership.facts()

    def close(self) -> None:
        """Ends all connections. What was sent before still arrives. May be called again."""
        self._open = False
        self._driver.close()
        self._membership.close()

    def abandon(self) -> None:
        """Closes a forked process's copy: the endpoint is its parent's, and not open here."""
        self._open = False
        self._driver.abandon()
        self._membership.close()

    def __enter__(self) -> "Endpoint":
        self.open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if not self._open:
            raise TransportError("the endpoint is not open")

    def await_start(self) -> None:
        """Lets a worker wait until all have joined, where it may close without a transfer."""
        link = self._driver.links.get(SERVER)
        if link is None or link.connection.state is not ConnectionState.WAITING:
            return

        def started() -> bool:
            return link.connection.state is not ConnectionState.WAITING

        within_s = self._config.connect_timeout_s + self._config.peer_timeout_s
        if not self._driver.run(started, time.monotonic() + within_s):
            raise PeerLost(SERVER, f"has not said within {within_s:g} s that all have joined")

    def _on_event(self, peer: str, event: Event) -> None:
        if isinstance(event, TransferDone):
            for handle in self._handles:
                if (handle.transfer, handle.sending) == (event.transfer, event.sending):
                    handle.end(peer, event.report)
        elif isinstance(event, PeerGone):
            self._counters += self._driver.links[peer].connection.counters
            self._driver.end(peer)
            self._gone[peer] = event.reason
            for handle in self._handles:
                handle.end(peer, event.reason)
        elif isinstance(event, Announced):
            self._announcements.append(event.body)
            self._announced_bytes += len(event.body) + _KEPT_BYTES
            if self._announced_bytes > _MAX_ANNOUNCED_BYTES:
                self._driver.links[peer].connection.end("it announces without end")
        elif isinstance(event, Joined):
            self._gone.pop(peer, None)
            self._lost.pop(peer, None)
        self._membership.on_event(peer, event)


def open_endpoint(config: EndpointConfig, sockets: DataSockets | None = None) -> Endpoint:
    """Opens an endpoint and returns it joined; `sockets`: its data sockets, if opened before."""
    endpoint = Endpoint(config, sockets)
    endpoint.open()
    return endpoint
