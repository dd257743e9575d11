"""What a hostile peer may send: datagrams and control messages, valid, nearly valid and neither.

`Victim` has a connection on either side of a transfer, and says what must hold whatever comes.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.transport import PayloadLayout, SendingPath
from testbed.transport.core.connection import Connection, ConnectionState
from testbed.transport.core.connection_settings import REMEMBERED, ConnectionSettings
from testbed.transport.core.events import PeerGone, TransferDone
from testbed.transport.core.messages import (
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
)
from testbed.transport.core.tolerance import FractionRule
from testbed.transport.core.wire import (
    HEADER_BYTES,
    SEND_INDEX_MODULUS,
)
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.repair import REPAIRS
from testbed.transport.policies.repair.acknowledged_sender import AcknowledgedSender
from testbed.transport.policies.repair.passes import PassesReceiver
from testbed.transport.policies.repair.selective import AcknowledgingReceiver

SESSION, TRANSFER, CHUNK = 0xC0FFEE, 6, 8
LARGEST_PENDING = 12 + max(largest for _, largest in body_limits(1 << 15).values())
IN_FLIGHT = 2
# Nobody's datagrams are counted for another reason.
REASONS = frozenset(
    {"wrong-session", "stale-transfer", "early-transfer", "out-of-range", "wrong-length"}
    | {"duplicate", "late", "stale-control", "replayed", "too-old", "far-ahead"}
)

Side = Literal["sender", "receiver"]
SIDES: tuple[Side, Side] = ("sender", "receiver")


class Victim:
    """A worker that sends and a server that receives, each with a peer that hates it.

    Every method may be called with anything, in any order. Afterwards `check` holds.

    Attributes:
        sides: their connections. Neither hears the other.
        restarts: how often one of them has given up its peer; it was then replaced by a fresh one.
    """

    def __init__(
        self, repair: str, chunks: int, tolerance: float, *, opened: bool = True, posted: int = 1
    ) -> None:
        """`opened`: whether they have joined; `posted`: how many transfers each has begun."""
        self.layout = PayloadLayout([("w", chunks * CHUNK // 4 - 1)], CHUNK)
        self.limits = body_limits(self.layout.chunk_count)
        self._rule = FractionRule(chunk_count=self.layout.chunk_count, tolerance=tolerance)
        self._settings = ConnectionSettings(
            session=SESSION,
            layout=self.layout,
            repair=REPAIRS.create(repair),
            order=InOrder(),
            transfers_in_flight=IN_FLIGHT,
        )
        self._opened, self._posted = opened, posted
        self.now_s = 0.0
        self.restarts = 0
        self.sides: dict[Side, Connection] = {}
        self.fed = self.arrived = 0
        self.into: dict[int, NDArray[np.uint8]] = {}
        for side in SIDES:
            self._begin(side)

    def _begin(self, side: Side) -> None:
        """A fresh connection; the next peer may try."""
        path = SendingPath(congestion=FixedRate(rate_bps=1e6), chunk_bytes=CHUNK)
        sending = side == "sender"
        hello = Hello(session=SESSION, name="worker") if sending else None
        welcome = None if sending else Welcome(session=SESSION, data_port=1)
        connection = self.sides[side] = Connection(
            peer="peer",
            settings=self._settings,
            path=path,
            now_s=self.now_s,
            hello=hello,
            welcome=welcome,
        )
        if not sending:
            self.fed = self.arrived = 0
            self.into.clear()
        if self._opened and sending:
            ready = ControlMessage(MessageType.READY)
            for said in (Welcome(session=SESSION, data_port=1).message(), ready):
                connection.on_control(said.encode(), self.now_s)
        elif self._opened:
            connection.start(self.now_s)
        for number in range(self._posted):
            self.post(side, TRANSFER + number)
        self._drain(side)

    def post(self, side: Side, transfer: int) -> None:
        """Begins a transfer, unless its number or the limit forbids it."""
        connection = self.sides[side]
        direction = connection.outgoing if side == "sender" else connection.incoming
        try:
            direction.check(transfer)
        except ValueError:
            return
        buffer = self.layout.new_buffer()
        if side == "sender":
            connection.post_send(transfer, buffer, self.now_s)
        else:
            self.into[transfer] = buffer
            connection.post_receive(transfer, self._rule, buffer, self.now_s)
        self._drain(side)

    def frames(self, side: Side, frames: NDArray[np.uint8]) -> int:
        """Feeds datagrams to a side, shape (k, datagram bytes); returns the bytes it answers."""
        if side == "receiver":
            self.fed += len(frames)
        self.sides[side].on_datagrams(frames, self.now_s)
        return self._drain(side)

    def control(self, side: Side, data: bytes, *, waited: bool = False) -> int:
        """Feeds a piece of the control stream of one side; returns the bytes that it answers."""
        self.sides[side].on_control(data, self.now_s, waited=waited)
        return self._drain(side)

    def wait(self, seconds: float) -> None:
        """Time passes; whatever is due is done, and who may sends."""
        self.now_s += seconds
        for side in SIDES:
            connection = self.sides[side]
            for _ in range(4):
                connection.on_deadline(self.now_s)
                frames = connection.offer(self.now_s)
                assert frames.shape[1] == HEADER_BYTES + CHUNK
                connection.outgoing.sent(len(frames), self.now_s)
            self._drain(side)

    def _drain(self, side: Side) -> int:
        """Takes what a side wants to say and tell; returns how many bytes it says."""
        connection = self.sides[side]
        said = connection.control()
        # All of it is valid, and one stream of bytes says no more than the peer may ask for.
        for message in ControlParser(self.limits).feed(said):
            smallest, largest = self.limits[message.type]
            assert smallest <= len(message.body) <= largest
        events = connection.events()
        for event in events:
            if isinstance(event, TransferDone) and not event.sending:
                received = event.report.received
                assert received is not None
                assert received.sum() == event.report.chunks_received
                assert received.sum() >= self._rule.required
                rows = self.layout.rows(self.into.pop(event.transfer))
                assert not rows[~received].any()
                self.arrived += int(received.sum())
        gone = [event for event in events if isinstance(event, PeerGone)]
        assert len(gone) == (connection.lost is not None)
        if gone:
            assert connection.state is ConnectionState.LOST
            assert connection.next_deadline_s(self.now_s) is None
            assert not len(connection.offer(self.now_s))
            self.restarts += 1
            self._begin(side)
        return len(said)

    def trace(self, side: Side) -> object:
        """All of a side's state that datagrams can change, but for its counters."""
        connection = self.sides[side]
        incoming, outgoing = connection.incoming, connection.outgoing
        return (
            connection.state,
            connection._liveness.heard_s,
            connection.next_deadline_s(self.now_s),
            [
                (number, each.received.tobytes(), each.valid_datagrams, each.stopped)
                for held in (incoming.receivers, incoming._early)
                for number, each in held.items()
            ],
            [rows.tobytes() for rows in self.into.values()],
            (incoming._numbers.last, len(incoming._spares), sorted(incoming._unasked.probes)),
            [(number, each.state, each.asked_s) for number, each in outgoing.senders.items()],
        )

    def check(self) -> None:
        """What must hold whatever came."""
        for side in SIDES:
            self._check(side)
        connection = self.sides["receiver"]
        incoming = connection.incoming
        places = [*incoming.receivers.values(), *incoming._early.values()]
        counted = sum(
            count for reason, count in connection.counters.items() if reason != "stale-control"
        )
        counted += sum(sum(each.ignored.values()) + each.received_count for each in places)
        assert counted + self.arrived <= self.fed
        for transfer, into in self.into.items():
            receiver = incoming.receivers[transfer]
            assert int(np.count_nonzero(receiver.received)) == receiver.received_count
            assert not self.layout.rows(into)[~receiver.received].any()

    def _check(self, side: Side) -> None:
        """That a side is bounded, and will not keep its driver busy for nothing."""
        connection = self.sides[side]
        incoming, outgoing = connection.incoming, connection.outgoing
        assert connection.counters.keys() <= REASONS
        assert connection._parser.pending_bytes <= LARGEST_PENDING
        assert not connection._outbox
        assert len(incoming.receivers) <= IN_FLIGHT
        assert len(incoming._early) <= IN_FLIGHT
        assert len(incoming._spares) <= 2 * IN_FLIGHT
        assert len(incoming._unasked.probes) <= REMEMBERED
        assert len(incoming._unasked._worth) <= IN_FLIGHT
        assert len(outgoing.senders) <= IN_FLIGHT
        for receiver in (*incoming.receivers.values(), *incoming._early.values()):
            repair = receiver.repair
            if isinstance(repair, PassesReceiver):
                assert len(repair._unsaid) <= 4 * self.layout.chunk_count
            if isinstance(repair, AcknowledgingReceiver):
                held = sum(len(each) for each in repair._pending)
                assert len(repair._pending) <= 257 and held <= 257 * SEND_INDEX_MODULUS
            receiver.report("peer")
        for sender in outgoing.senders.values():
            if isinstance(sender._repair, AcknowledgedSender):
                assert len(sender._repair.scoreboard._fate) <= 4 * SEND_INDEX_MODULUS
            sender.report("peer")
        for _ in range(20):
            due_s = connection.next_deadline_s(self.now_s)
            assert due_s is None or not math.isnan(due_s)
            if due_s is None or due_s > self.now_s:
                return
            connection.on_deadline(self.now_s)
            while len(frames := connection.offer(self.now_s)):
                connection.outgoing.sent(len(frames), self.now_s)
            self._drain(side)
            connection = self.sides[side]
        raise AssertionError(f"the {side} is due at {due_s}, and it is {self.now_s}")
