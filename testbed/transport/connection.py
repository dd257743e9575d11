"""Everything between "bytes arrived at time t" and "send these bytes, wake me at t'", for one peer.

`docs/concepts/connection.md` explains it; `net.driver` drives it. Datagrams are handed over before
what came later on the control stream; what `control()` says goes before the data that are offered.
`waited=True`: input lay in a socket for an unknown time, and gives no sample of the round trip.
"""

import math
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.control_datagrams import DatagramStream
from testbed.transport.errors import ProtocolError
from testbed.transport.events import Announced, Event, Joined, PeerGone, Started
from testbed.transport.fast_path import Arrivals, ReceivePlan, SendPlan
from testbed.transport.messages import (
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
    reason_message,
)
from testbed.transport.receiver import Incoming
from testbed.transport.sender import Outgoing
from testbed.transport.sending_path import SendingPath
from testbed.transport.settings import BOTH_HOLD, SILENT, ConnectionSettings, Timeout
from testbed.transport.tolerance import StopRule


class ConnectionState(Enum):
    JOINING = auto()  # worker: the HELLO awaits its answer
    WAITING = auto()  # others have not joined yet
    OPEN = auto()
    LOST = auto()  # closed, broken or given up


_ANSWERS = frozenset(
    {
        MessageType.BITMAP,
        MessageType.LATE_BITMAP,
        MessageType.ACK,
        MessageType.STOP,
        MessageType.HOLD,
    }
)
_FROM_SERVERS = frozenset(
    {MessageType.WELCOME, MessageType.REFUSED, MessageType.READY, MessageType.ANNOUNCE}
)
# What may go in datagrams, and of these what needs no reply at once: one follows, or it is one.
_IN_DATAGRAMS = _ANSWERS | {MessageType.PROBE, MessageType.ENERGY, MessageType.ANNOUNCE}
_UNHURRIED = frozenset(
    {MessageType.BITMAP, MessageType.LATE_BITMAP, MessageType.ACK, MessageType.ENERGY}
)
_PINGS = 4  # so often in its timeout a peer that lets this side wait is asked whether it lives


class Liveness:
    """The times of one peer, from the begin of its connection."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._interval_s = timeout_s / _PINGS
        self.heard_s = self._pinged_s = now_s
        self.away_s = now_s + self._interval_s
        self._asked_s = -math.inf  # when it was asked first since it was heard
        self.awaiting_s: float | None = None  # since when an announcement of it is awaited

    def on_activity(self, now_s: float) -> float:
        away_s = max(0.0, now_s - self.away_s)
        self.away_s = now_s + self._interval_s
        return away_s

    def ping_s(self, *, held: bool) -> float:
        """Returns when to ask whether it lives: it `held` a transfer, or is awaited."""
        if not held and self.awaiting_s is None:
            return math.inf
        return max(self.heard_s, self._pinged_s) + self._interval_s

    def pinged(self, now_s: float) -> None:
        if self._pinged_s <= self.heard_s:
            self._asked_s = now_s
        self._pinged_s = now_s

    @property
    def silent_s(self) -> float:
        """Since then it is silent, which counts only if it was asked in time."""
        return max(self.heard_s, self._asked_s - self._interval_s)


class Connection:
    """One peer, as this side sees it."""

    def __init__(
        self,
        *,
        peer: str,
        settings: ConnectionSettings,
        path: SendingPath | None,
        now_s: float,
        hello: Hello | None = None,
        welcome: Welcome | None = None,
    ) -> None:
        """A worker's side gives its `hello`, the server's its `welcome`; that is said first."""
        first = hello or welcome
        assert first is not None
        self.peer = peer  # its name
        self.lost: str | None = None  # why the connection has ended; None before
        self.counters: Counter[str] = Counter()  # what was ignored, by reason
        self.state = ConnectionState.JOINING if hello else ConnectionState.WAITING
        self._settings = settings
        self._events: list[Event] = []
        self.outgoing, self.incoming = self._directions(path)  # the transfers of each direction
        unexpected = {MessageType.HELLO} if hello else {MessageType.HELLO, *_FROM_SERVERS}
        limits = body_limits(settings.largest_layout.chunk_count)
        for kind in unexpected:
            del limits[kind]
        self._datagrams: DatagramStream | None = None
        if settings.control_datagrams:
            self._datagrams = DatagramStream(settings.session, self.counters)
            in_datagrams = {kind: limits.pop(kind) for kind in _IN_DATAGRAMS & limits.keys()}
            self._datagram_parser = ControlParser(in_datagrams)
        else:
            del limits[MessageType.PIECE]
        self._parser = ControlParser(limits)
        self._asked: set[int] = set()  # transfers with a PROBE in what has come at once
        self._outbox = bytearray()
        self._liveness = Liveness(settings.peer_timeout_s, now_s)
        self._queue_control([first.message()])

    def _directions(self, path: SendingPath | None) -> tuple[Outgoing, Incoming]:
        assert path is not None
        common = (self._events, self.counters)
        return (
            Outgoing(self.peer, self._settings, path, *common),
            Incoming(self.peer, self._settings, *common, path),
        )

    def _advance(self, before: ConnectionState, after: ConnectionState, why: MessageType) -> None:
        if self.state is not before:
            raise ProtocolError(f"{why.name} is not possible while {self.state.name}")
        self.state = after

    def start(self, now_s: float) -> None:
        """Server: all have joined, and this worker may begin."""
        self._advance(ConnectionState.WAITING, ConnectionState.OPEN, MessageType.READY)
        self._liveness.heard_s = now_s
        self._queue_control([ControlMessage(MessageType.READY)])

    def announce(self, body: bytes) -> None:
        self._queue_control([ControlMessage(MessageType.ANNOUNCE, body=body)])

    def await_announcement(self, now_s: float) -> None:
        """Worker: until the next one comes, the server must be alive."""
        self._liveness.awaiting_s = now_s

    def post_send(
        self,
        transfer: int,
        payload: NDArray[np.uint8],
        now_s: float,
        arrangers: dict[int, Any] | None = None,
    ) -> None:
        """Begins to send a payload, which must not change before its TransferDone."""
        self._on_activity(now_s)
        self.outgoing.post(transfer, payload, now_s, arrangers)

    def post_receive(
        self, transfer: int, rule: StopRule, into: NDArray[np.uint8], now_s: float
    ) -> None:
        """Begins to receive into a buffer, which belongs to the transfer until its TransferDone."""
        self._on_activity(now_s)
        try:
            self.incoming.post(transfer, rule, into, now_s)
        except ProtocolError as error:
            self.on_broken(error)

    def on_datagrams(
        self, frames: NDArray[np.uint8], now_s: float, *, waited: bool = False
    ) -> None:
        """Takes datagrams, one per row: shape (k, HEADER_BYTES + chunk_bytes), contiguous rows."""
        if not len(frames) or self.lost is not None:
            return
        self._on_activity(now_s)
        open_ = self.state is ConnectionState.OPEN
        if self.incoming.on_datagrams(frames, now_s, waited=waited, may_be_early=open_):
            self._liveness.heard_s = now_s  # by valid data alone: a forger keeps no dead peer alive

    def coalesce_s(self, most_s: float = math.inf, *, measured: bool = False) -> float:
        """Returns for how long the next datagrams may lie unread in their socket."""
        return 0.0 if self.lost is not None else self.incoming.coalesce_s(most_s, measured=measured)

    def receive_plan(
        self, most_s: float = math.inf, *, measured: bool = False
    ) -> ReceivePlan | None:
        if self.lost is not None:
            return None
        return self.incoming.receive_plan(most_s, measured=measured)

    def on_plan_received(self, arrivals: Arrivals, now_s: float, *, waited: bool) -> None:
        self._liveness.heard_s = now_s
        self.incoming.on_plan_received(arrivals, now_s, waited=waited)

    def on_control(self, data: bytes, now_s: float, *, waited: bool = False) -> None:
        """Takes the next bytes of the control stream, in pieces of any size."""
        if self.lost is not None:
            return
        self._on_activity(now_s)
        self._liveness.heard_s = now_s
        self._asked.clear()
        self._feed(self._parser, data, now_s, waited)

    def on_control_datagrams(
        self, datagrams: Iterable[bytes], now_s: float, *, waited: bool = False
    ) -> None:
        """Takes datagrams of control messages that are known to be the peer's."""
        if self.lost is None:
            self._on_activity(now_s)
            self._asked.clear()
            self._take_pieces(datagrams, now_s, waited, by_tcp=False)

    def _take_pieces(
        self, pieces: Iterable[bytes], now_s: float, waited: bool, *, by_tcp: bool
    ) -> None:
        assert self._datagrams is not None
        new, late = b"", False
        for piece in pieces:
            if more := self._datagrams.take(piece, now_s, waited=waited, by_tcp=by_tcp):
                new, late = new + more, late or self._datagrams.late
        if new:
            self._liveness.heard_s = now_s
            self._feed(self._datagram_parser, new, now_s, late)

    def _feed(self, parser: ControlParser, data: bytes, now_s: float, waited: bool) -> None:
        try:
            for message in parser.feed(data):
                under_way = message.transfer in self.incoming.receivers
                if message.type is MessageType.PROBE and under_way:
                    # Each needs a look at the whole transfer, and no sender asks again unanswered.
                    if message.transfer in self._asked:
                        raise ProtocolError("PROBE while another one awaits its answer")
                    self._asked.add(message.transfer)
                self._take(message, now_s, waited)
                if self.lost is not None:
                    return
        except ProtocolError as error:
            self.on_broken(error)

    @property
    def awaited_bytes(self) -> int:
        return self._parser.missing_bytes

    def _take(self, message: ControlMessage, now_s: float, waited: bool) -> None:
        kind = message.type
        if kind in (MessageType.PROBE, MessageType.ENERGY):
            self.incoming.on_message(message, now_s, waited=waited)
        elif kind in _ANSWERS:
            self.outgoing.on_message(message, now_s, waited=waited)
        elif kind is MessageType.PIECE:
            self._take_pieces([message.body], now_s, waited, by_tcp=True)
        elif kind is MessageType.WELCOME:
            self._welcomed(Welcome.parse(message.body))
        elif kind is MessageType.READY:
            self._advance(ConnectionState.WAITING, ConnectionState.OPEN, MessageType.READY)
            self._events.append(Started())
        elif kind is MessageType.ANNOUNCE:
            self._liveness.awaiting_s = None
            self._events.append(Announced(message.body))
        elif kind is MessageType.PING:
            self._queue_control([ControlMessage(MessageType.PONG)])
        elif kind is MessageType.REFUSED:
            self.end(f"it refused: {message.body.decode(errors='replace')}")
        elif kind is MessageType.FAILED:
            self.end(f"it gave up: {message.body.decode(errors='replace')}")
        elif kind is not MessageType.PONG:
            raise ProtocolError(f"{kind.name}, which a connection does not take")

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.session != self._settings.session:
            raise ProtocolError("WELCOME of another session")
        self._advance(ConnectionState.JOINING, ConnectionState.WAITING, MessageType.WELCOME)
        self._events.append(Joined(welcome.data_port, welcome.key, welcome.cipher))

    def on_deadline(self, now_s: float) -> None:
        if self.lost is not None:
            return
        self._on_activity(now_s)
        self.incoming.on_deadline(now_s)
        self.outgoing.on_deadline(now_s)
        if now_s >= self._ping_s():
            self._liveness.pinged(now_s)
            self._queue_control([ControlMessage(MessageType.PING)])
        until_s, reason, transfer = self._timeout()
        if now_s >= until_s:
            timeout_s, late_s = self._settings.peer_timeout_s, self._settings.late_s
            text = reason.format(transfer=transfer, timeout_s=timeout_s, late_s=late_s)
            self.give_up(text)

    def next_deadline_s(self, now_s: float, *, planned: bool = False) -> float | None:
        """Returns when to call `on_deadline` and `offer` if nothing happens before; or None."""
        if self.lost is not None:
            return None
        due_s = min(
            self._ping_s(),
            self.incoming.next_deadline_s(),
            self.outgoing.next_deadline_s(now_s, planned=planned),
        )
        if self._datagrams is not None:
            due_s = min(due_s, self._datagrams.due_s)
        if (patience_s := self._timeout()[0]) < math.inf:
            due_s = min(due_s, patience_s, self._liveness.away_s)
        return None if due_s == math.inf else due_s

    def _on_activity(self, now_s: float) -> None:
        """Transfers stood still while this side was away; the peer's timeouts do not count that."""
        if away_s := self._liveness.on_activity(now_s):
            self.incoming.was_away(away_s)
            self.outgoing.was_away(away_s)

    def _ping_s(self) -> float:
        return self._liveness.ping_s(held=self.outgoing.held or self.incoming.late)

    def _timeout(self) -> Timeout:
        live, silent_s = self._liveness, self._liveness.silent_s
        ends = min(self.outgoing.timeout(silent_s), self.incoming.timeout(live.heard_s, silent_s))
        held_s = self.outgoing.held_s
        if held_s is not None and (unasked_s := self.incoming.unasked_s) is not None:
            until_s = max(held_s, unasked_s) + self._settings.peer_timeout_s
            ends = min(ends, (until_s, BOTH_HOLD, 0))
        if live.awaiting_s is None:
            return ends
        until_s = max(live.awaiting_s, silent_s) + self._settings.peer_timeout_s
        return min(ends, (until_s, SILENT, 0))

    def offer(self, now_s: float) -> NDArray[np.uint8]:
        return self.outgoing.offer(now_s) if self.lost is None else self.outgoing.nothing

    def send_plan(self) -> SendPlan | None:
        return None if self.lost is not None else self.outgoing.send_plan()

    def control(self) -> bytes:
        """Returns the bytes to write to the control stream now, once."""
        if self.lost is None:
            self._queue_control(self.outgoing.poll_messages())
            self._queue_control(self.incoming.poll_messages())
            self._queue_pieces()
        if not self._outbox:
            return b""
        data = bytes(self._outbox)
        self._outbox.clear()
        return data

    def control_datagrams(self, now_s: float) -> list[bytes]:
        """Returns the datagrams of control messages to send now; call `control` before."""
        if self._datagrams is None or self.lost is not None:
            return []
        return self._datagrams.datagrams(now_s)

    def leave(self) -> None:
        """Lets TCP bring what the peer may lack: nobody may be here to repeat it for a while."""
        if self.lost is None:
            self._queue_pieces(leaving=True)

    def _queue_pieces(self, *, leaving: bool = False) -> None:
        if self._datagrams is not None:
            for body in self._datagrams.for_tcp(leaving=leaving):
                self._outbox += ControlMessage(MessageType.PIECE, body=body).encode()

    def control_facts(self) -> dict[str, int]:
        """Counts the datagrams of control messages that were sent, where there are any."""
        it = self._datagrams
        if it is None:
            return {}
        return {"control_datagrams": it.sent, "control_datagrams_repeated": it.repeated}

    def events(self) -> list[Event]:
        events = self._events.copy()
        self._events.clear()
        return events

    def _queue_control(self, messages: Iterable[ControlMessage]) -> None:
        for message in messages:
            if self._datagrams is None or message.type not in _IN_DATAGRAMS:
                self._outbox += message.encode()
                continue
            try:
                needed = message.type not in _UNHURRIED
                urgent = needed and not message.asked_for
                self._datagrams.write(message.encode(), urgent=urgent, needed=needed)
            except ProtocolError as error:
                self.on_broken(error)
                return

    def on_broken(self, error: ProtocolError) -> None:
        self.give_up(f"it broke the protocol: {error}")

    def give_up(self, reason: str) -> None:
        if self.lost is None:
            self._queue_control([reason_message(MessageType.FAILED, reason)])
            self.end(reason)

    def end(self, reason: str) -> None:
        """Ends without another word to the peer."""
        if self.lost is not None:
            return
        self.state = ConnectionState.LOST
        self.lost = reason
        self._events.append(PeerGone(reason))
