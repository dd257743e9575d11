"""Many hostile datagrams and control messages against connections in all of their states:

    python -m tests.fuzz.connections [DATAGRAMS] [MESSAGES] [SEED]

They are built by structure: valid, with a field that is wrong or out of place, and with flipped,
missing or additional bytes. Whole batches of strangers, which do not know the session, must leave
no trace. The first thing that does not hold ends it, with the seed of the life of its `Victim`.
"""

import math
import random
import sys
from collections import Counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.transport import PayloadLayout, SendingPath
from testbed.transport.congestion import FixedRate
from testbed.transport.connection import Connection, ConnectionState
from testbed.transport.events import PeerGone, TransferDone
from testbed.transport.messages import (
    PASS,
    SENT,
    Ack,
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
    pack_arrivals,
    pack_bitmap,
)
from testbed.transport.repair import REPAIRS
from testbed.transport.repair.passes import PassesReceiver
from testbed.transport.repair.selective import AcknowledgingReceiver, SelectiveSender
from testbed.transport.settings import REMEMBERED
from testbed.transport.tolerance import FractionRule, required_chunks
from testbed.transport.wire import (
    HEADER_BYTES,
    SEND_INDEX_MODULUS,
    U32_MAX,
    fields,
    new_frames,
)
from tests.transport.virtual import SESSION, settings_of

TRANSFER, CHUNK = 6, 8
LARGEST_PENDING = 12 + max(largest for _, largest in body_limits(1 << 15).values())
IN_FLIGHT = 2
# Nobody's datagrams are counted for another reason.
REASONS = frozenset(
    {"wrong-session", "stale-transfer", "early-transfer", "out-of-range", "wrong-length"}
    | {"duplicate", "stale-control", "replayed", "too-old", "far-ahead"}
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
        self._rule, self._tolerance = FractionRule(tolerance), tolerance
        self._settings = settings_of(
            self.layout, REPAIRS.create(repair), transfers_in_flight=IN_FLIGHT
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
            for message in (Welcome(session=SESSION, data_port=1).message(), ready):
                connection.on_control(message.encode(), self.now_s)
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
        """Takes a side's messages and events; returns how many bytes of messages."""
        connection = self.sides[side]
        stream = connection.control()
        # All of it is valid, and one stream of bytes says no more than the peer may ask for.
        for message in ControlParser(self.limits).feed(stream):
            smallest, largest = self.limits[message.type]
            assert smallest <= len(message.body) <= largest
        events = connection.events()
        for event in events:
            if isinstance(event, TransferDone) and not event.sending:
                received = event.report.received
                assert received is not None
                assert received.sum() == event.report.chunks_received
                assert received.sum() >= required_chunks(len(received), self._tolerance)
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
        return len(stream)

    def trace(self, side: Side) -> object:
        """All of a side's state that datagrams can change, but for its counters."""
        connection = self.sides[side]
        incoming, outgoing = connection.incoming, connection.outgoing
        return (
            connection.state,
            connection._liveness.heard_s,
            connection.next_deadline_s(self.now_s),
            [
                (number, place.received.tobytes(), place.valid_datagrams, place.stopped)
                for held in (incoming.receivers, incoming._early)
                for number, place in held.items()
            ],
            [rows.tobytes() for rows in self.into.values()],
            (incoming._numbers.last, len(incoming._spares)),
            sorted(incoming._early_probes),
            [
                (number, sender.stopped, sender.asked_s)
                for number, sender in outgoing.senders.items()
            ],
        )

    def check(self) -> None:
        """Checks what must hold whatever came."""
        for side in SIDES:
            self._check(side)
        connection = self.sides["receiver"]
        incoming = connection.incoming
        places = [*incoming.receivers.values(), *incoming._early.values()]
        counted = sum(
            count for reason, count in connection.counters.items() if reason != "stale-control"
        )
        counted += sum(sum(place.ignored.values()) + place.received_count for place in places)
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
        assert len(connection._parser.pending) <= LARGEST_PENDING
        assert not connection._outbox
        assert len(incoming.receivers) <= IN_FLIGHT
        assert len(incoming._early) <= IN_FLIGHT
        assert len(incoming._spares) <= 2 * IN_FLIGHT
        assert len(incoming._early_probes) <= REMEMBERED
        assert len(incoming._early_energy) <= IN_FLIGHT
        assert len(outgoing.senders) <= IN_FLIGHT
        for receiver in (*incoming.receivers.values(), *incoming._early.values()):
            repair = receiver.repair
            if isinstance(repair, PassesReceiver):
                assert len(repair._unsaid) <= 4 * self.layout.chunk_count
            if isinstance(repair, AcknowledgingReceiver):
                held = sum(len(numbers) for numbers in repair._pending)
                assert len(repair._pending) <= 257 and held <= 257 * SEND_INDEX_MODULUS
            receiver.report("peer")
        for sender in outgoing.senders.values():
            if isinstance(sender._repair, SelectiveSender):
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


BATCH = 256
_STEPS = 60  # of one life
_FLOOD = 300
_TRANSFERS = (*range(TRANSFER - 1, TRANSFER + 6), 0, U32_MAX)
_REPAIRS = sorted(REPAIRS)
_ANSWERS = (
    *(MessageType.BITMAP, MessageType.LATE_BITMAP, MessageType.ACK, MessageType.ACK),
    *(MessageType.HOLD, MessageType.STOP, MessageType.PING, MessageType.PONG),
)
_ASKS = (*(MessageType.PROBE,) * 6, MessageType.PING, MessageType.PONG)


class Life:
    """One victim, and what is done to it until it has given up its peer, or has seen enough.

    Attributes:
        datagrams, messages: how many it was sent.
        given_up: how often it gave up its peer.
    """

    def __init__(self, seed: int, *, talks: bool) -> None:
        """`talks`: whether control messages come one after the other, or datagrams between."""
        self._random = random.Random(seed)
        self._arrays = np.random.default_rng(seed)
        self._talks = talks
        self._chunks = self._random.choice([1, 2, 9, 64])
        self.datagrams = self.messages = 0
        self._probed: Counter[int] = Counter()
        self._victim = Victim(
            self._random.choice(_REPAIRS),
            self._chunks,
            self._random.choice([0, 0.1, 0.5]),
            opened=self._random.random() < 0.9,
            posted=self._random.randrange(3),
        )

    @property
    def given_up(self) -> int:
        return self._victim.restarts

    def run(self) -> None:
        for _ in range(_STEPS):
            chance = self._random.random()
            side = self._random.choice(SIDES)
            if chance < 0.1:
                self._victim.wait(self._random.choice([0.0, 1e-4, 0.01, 0.3, 3.0]))
            elif chance < 0.15:
                self._victim.post(side, self._random.choice(_TRANSFERS))
            elif chance < 0.16:
                self._flood(side)
            elif chance < (0.2 if self._talks else 0.9):
                self._batch(side)
            else:
                self._say(side)
            self._victim.check()
            if self.given_up:
                return

    def _batch(self, side: Side) -> None:
        frames = self._frames()
        self.datagrams += len(frames)
        records = fields(frames, CHUNK)
        if self._random.random() < 0.3:
            records["session"][records["session"] == SESSION] = SESSION ^ 1 << 31
            before = self._victim.trace(side)
            assert self._victim.frames(side, frames) == 0, "a stranger was answered"
            assert self._victim.trace(side) == before, "a stranger left a trace"
        else:
            self._victim.frames(side, frames)

    def _flood(self, side: Side) -> None:
        """The same datagram again and again, or PROBEs for ever more transfers."""
        if self._random.random() < 0.5:
            frames = self._frames()[:1]
            for _ in range(_FLOOD):
                self._victim.frames(side, frames)
            self.datagrams += _FLOOD
            return
        body = self._random.choice([PASS.pack(1, 1), SENT.pack(self._chunks)])
        for number in range(_FLOOD):
            probe = ControlMessage(MessageType.PROBE, TRANSFER + number, body)
            self._victim.control(side, probe.encode())
            self.messages += 1
            if self.given_up:
                return

    def _frames(self) -> NDArray[np.uint8]:
        """A batch, of which most records are valid or nearly so: shape (BATCH, bytes)."""
        draw = self._arrays
        frames = new_frames(BATCH, CHUNK)
        frames[:] = draw.integers(0, 256, frames.shape, dtype=np.uint8)
        records = fields(frames, CHUNK)
        records["session"] = SESSION
        chunks = draw.integers(0, self._chunks + (draw.random() < 0.3), BATCH)
        if draw.random() < 0.3:
            chunks = np.arange(BATCH) % self._chunks
        records["sequence"] = chunks
        of = self._random.choices(_TRANSFERS, k=1 + (draw.random() < 0.3) * 3)
        records["transfer"] = draw.choice(np.array(of), BATCH)
        lengths = self._victim.layout.chunk_lengths
        records["length"] = lengths[np.minimum(chunks, self._chunks - 1)]
        first = self._random.choice(
            [0, SEND_INDEX_MODULUS - 7, int(draw.integers(SEND_INDEX_MODULUS))]
        )
        records["stamp"] = (np.arange(BATCH) + first) % (2 * SEND_INDEX_MODULUS)
        if draw.random() < 0.5:
            wrong = draw.random(BATCH) < 0.1
            places = draw.integers(0, 16, BATCH)[wrong]
            frames[wrong, places] ^= (1 << draw.integers(0, 8, BATCH)[wrong]).astype(np.uint8)
        return frames

    def _say(self, side: Side) -> None:
        stream = b""
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            stream += self._message(side).encode()
            self.messages += 1
        if self._random.random() < 0.1:
            stream = self._damaged(stream)
        waited = self._random.random() < 0.2
        size = self._random.choice([len(stream) + 1, len(stream) + 1, 1, 7])
        for at in range(0, len(stream), size):
            self._victim.control(side, stream[at : at + size], waited=waited)

    def _message(self, side: Side) -> ControlMessage:
        """Most are of a kind that this side takes, for a transfer that it may know."""
        draw = self._random
        kinds = _ANSWERS if side == "sender" else _ASKS
        kind = draw.choice(kinds) if draw.random() < 0.95 else draw.choice(list(MessageType))
        transfer = TRANSFER if draw.random() < 0.8 else draw.choice(_TRANSFERS)
        return ControlMessage(kind, transfer, self._body(kind, transfer))

    def _body(self, kind: MessageType, transfer: int) -> bytes:
        draw = self._random
        if draw.random() < 0.02:
            return draw.randbytes(draw.randrange(40))
        if kind is MessageType.PROBE:
            ends = draw.random() < 0.7
            number = self._probed[transfer] + 1 if draw.random() < 0.9 else draw.randrange(5)
            self._probed[transfer] += ends
            sent = draw.choice([self._chunks, draw.randrange(200), U32_MAX])
            return PASS.pack(number, ends) if draw.random() < 0.6 else SENT.pack(sent)
        if kind in (MessageType.BITMAP, MessageType.LATE_BITMAP):
            most = self._chunks + (draw.random() < 0.05)
            chunks = sorted(draw.sample(range(most), draw.randrange(min(most, 3) + 1)))
            return pack_arrivals(np.array(chunks, dtype=np.int64))
        if kind is MessageType.STOP:
            received = np.array(draw.choices([True, False], k=self._chunks))
            return draw.choice([b"", pack_bitmap(received)])
        if kind is MessageType.ACK:
            return self._ack(transfer)
        if kind is MessageType.HELLO:
            return Hello(session=SESSION, name="x", layout=draw.randbytes(9)).message().body
        if kind is MessageType.WELCOME:
            return Welcome(session=SESSION, data_port=draw.randrange(2**16)).message().body
        if kind in (MessageType.ANNOUNCE, MessageType.REFUSED, MessageType.FAILED):
            return draw.randbytes(draw.randrange(60))
        return b""

    def _ack(self, transfer: int) -> bytes:
        draw = self._random
        sender = self._victim.sides["sender"].outgoing.senders.get(transfer)
        sent = max(1, sender._datagrams_sent if sender is not None else 1)
        first = draw.randrange(sent) if draw.random() < 0.9 else draw.randrange(SEND_INDEX_MODULUS)
        most = draw.choice([sent, 64, 4096]) if draw.random() < 0.2 else min(sent, 8)
        echo = draw.choice([None, first, draw.randrange(SEND_INDEX_MODULUS)])
        ack = Ack(
            first=first % SEND_INDEX_MODULUS,
            arrived=np.array(draw.choices([True, False], k=draw.randrange(most) + 1)),
            echo=None if echo is None else echo % SEND_INDEX_MODULUS,
            held_s=draw.choice([0.0, 1e-4, 1.0, 1e3]),
            probed=draw.choice([0, sent]) if draw.random() < 0.98 else draw.randrange(U32_MAX),
            at_once=draw.random() < 0.5,
        )
        return ack.message(transfer).body

    def _damaged(self, stream: bytes) -> bytes:
        data = bytearray(stream)
        place = self._random.randrange(len(data))
        how = self._random.randrange(3)
        if how == 0:
            data[place] ^= 1 << self._random.randrange(8)
        elif how == 1:
            del data[place]
        else:
            data.insert(place, self._random.randrange(256))
        return bytes(data)


def attack(datagrams: int, messages: int, seed: int) -> Counter[str]:
    """So many of each, at least; returns what was done."""
    done: Counter[str] = Counter()
    while done["datagrams"] < datagrams or done["messages"] < messages:
        talks = done["messages"] * datagrams < done["datagrams"] * messages
        life_seed = seed * 10**9 + done["lives"]
        life = Life(life_seed, talks=talks)
        try:
            life.run()
        except BaseException:
            print(f"the life of seed {life_seed}, talks {talks}", file=sys.stderr)
            raise
        done.update(
            datagrams=life.datagrams, messages=life.messages, lives=1, given_up=life.given_up
        )
    return done


def main() -> None:
    datagrams, messages, seed = (
        int(sys.argv[place]) if len(sys.argv) > place else default
        for place, default in ((1, 10**7), (2, 10**6), (3, 0))
    )
    print(f"held: {dict(attack(datagrams, messages, seed))}")


if __name__ == "__main__":
    main()
