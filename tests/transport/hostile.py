"""What a hostile peer may send: datagrams and control messages, valid, nearly valid and neither."""

import math

import numpy as np
from hypothesis import strategies as st

from testbed.transport import PayloadLayout, Receiver, Sender, SendingPath
from testbed.transport.core.arrivals import pack_arrivals
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import (
    PASS,
    ControlMessage,
    ControlParser,
    MessageType,
    body_limits,
)
from testbed.transport.core.wire import HEADER_BYTES, fields, new_frames
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.repair import REPAIRS
from testbed.transport.policies.tolerance import FractionRule

SESSION, TRANSFER, CHUNK = 0xC0FFEE, 6, 8
LARGEST_PENDING = 12 + max(largest for _, largest in body_limits(1 << 15).values())


class Victim:
    """Both machines of a transfer and their control parsers, driven by whoever hates them.

    Every method may be called with anything, in any order. Afterwards `check` holds.
    """

    def __init__(self, repair: str, chunks: int, tolerance: float) -> None:
        self.layout = PayloadLayout([("w", chunks * CHUNK // 4 - 1)], CHUNK)
        self.limits = body_limits(self.layout.chunk_count)
        self._repair = REPAIRS.create(repair)
        self._tolerance = tolerance
        self.now_s = 0.0
        self.restarts = -1
        self.restart()

    def restart(self) -> None:
        """The peer was given up; the next one finds everything fresh."""
        self.restarts += 1
        layout = self.layout
        self.into = layout.new_buffer()
        self.fed = 0
        self.parsers = {name: ControlParser(self.limits) for name in ("sender", "receiver")}
        self.path = SendingPath(congestion=FixedRate(rate_bps=1e6), chunk_bytes=layout.chunk_bytes)
        self.sender = Sender(
            session=SESSION,
            transfer=TRANSFER,
            layout=layout,
            payload=layout.new_buffer(),
            repair=self._repair,
            order=InOrder(),
            path=self.path,
            now_s=self.now_s,
        )
        self.receiver = Receiver(
            session=SESSION,
            transfer=TRANSFER,
            layout=layout,
            into=self.into,
            rule=FractionRule(chunk_count=layout.chunk_count, tolerance=self._tolerance),
            repair=self._repair,
            now_s=self.now_s,
        )

    def datagrams(self, data: bytes, datagram_bytes: int = HEADER_BYTES + CHUNK) -> int:
        """Feeds whole datagrams of one size; returns the bytes that the receiver answers."""
        count = len(data) // datagram_bytes
        frames = np.frombuffer(data[: count * datagram_bytes], dtype=np.uint8)
        self.fed += count
        try:
            self.receiver.on_datagrams(frames.reshape(count, datagram_bytes), self.now_s)
        except ProtocolError:
            self.restart()
        return self.drain()

    def control(self, side: str, data: bytes) -> None:
        """Feeds a piece of the control stream of one side."""
        machine = self.sender if side == "sender" else self.receiver
        try:
            for message in self.parsers[side].feed(data):
                # The event loop hands over what belongs to a transfer, and keeps what is early.
                if message.type >= MessageType.PROBE and message.transfer <= TRANSFER:
                    machine.on_message(message, self.now_s)
        except ProtocolError:
            self.restart()
        self.drain()

    def wait(self, seconds: float) -> None:
        """Time passes; whatever is due is done, and the sender sends."""
        self.now_s += seconds
        self.receiver.on_deadline(self.now_s)
        self.sender.on_deadline(self.now_s)
        for _ in range(4):
            frames = self.sender.offer(self.now_s)
            assert frames.shape[1] == HEADER_BYTES + CHUNK
            self.sender.sent(len(frames), self.now_s)
        self.drain()

    def drain(self) -> int:
        """Takes what the machines want to say; returns the receiver's bytes."""
        spoken = 0
        for machine in (self.sender, self.receiver):
            for message in machine.poll_messages():
                smallest, largest = self.limits[message.type]
                assert smallest <= len(message.body) <= largest
                spoken += len(message.encode()) if machine is self.receiver else 0
        return spoken

    def check(self) -> None:
        """What must hold whatever came."""
        receiver = self.receiver
        assert sum(receiver.ignored.values()) + receiver.received_count == self.fed
        assert int(np.count_nonzero(receiver.received)) == receiver.received_count
        rows = self.layout.rows(self.into)
        assert not rows[~receiver.received].any()
        for parser in self.parsers.values():
            assert parser.pending_bytes <= LARGEST_PENDING
        for machine in (self.sender, receiver):
            for deadline_s in (
                machine.next_deadline_s(self.now_s)
                if machine is self.sender
                else receiver.next_deadline_s(),
            ):
                assert deadline_s is None or not math.isnan(deadline_s)
            machine.report("peer")


def encoded(records: list[tuple[int, int, int, int, int]]) -> bytes:
    """Datagrams with these sessions, sequences, transfers, lengths and stamps."""
    frames = new_frames(len(records), CHUNK)
    batch = fields(frames, CHUNK)
    names = [name for name in batch.dtype.names or () if name != "chunk"]
    for row, record in zip(batch, records, strict=True):
        for name, value in zip(names, record, strict=True):
            row[name] = value
    frames[:, HEADER_BYTES:] = 0xAA
    return frames.tobytes()


_near = st.sampled_from([0, 1, TRANSFER - 1, TRANSFER, TRANSFER, TRANSFER, TRANSFER + 1, 2**32 - 1])
good_record = st.tuples(
    *(st.just(SESSION), st.integers(0, 20), st.just(TRANSFER)),
    *(st.sampled_from([CHUNK, CHUNK, CHUNK, CHUNK - 4]), st.integers(0, 2**16 - 1)),
)
any_record = st.tuples(
    st.sampled_from([SESSION, SESSION, SESSION, SESSION + 1, 0]),
    st.one_of(st.integers(0, 45), st.just(2**32 - 1)),
    _near,
    st.sampled_from([CHUNK, CHUNK, CHUNK - 4, 0, 2**16 - 1]),
    st.integers(0, 2**16 - 1),
)
record = st.one_of(good_record, good_record, any_record)
stranger_record = any_record.filter(lambda each: each[0] != SESSION)


@st.composite
def control_bytes(draw: st.DrawFn) -> bytes:
    """Messages with plausible bodies, sometimes with a byte changed, cut or added."""
    kinds = [kind for kind in MessageType if kind >= MessageType.PROBE]
    stream = bytearray()
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(kinds))
        size = draw(st.sampled_from([0, 0, 1, 2, 3, 4, 5, 16, 17, 20]))
        body = draw(st.binary(min_size=size, max_size=size))
        if kind is MessageType.ACK and size >= 16:
            body = body[:14] + bytes(2) + body[16:]  # its reserved field
        elif kind is MessageType.PROBE and size == PASS.size:
            body = PASS.pack(draw(st.integers(1, 2)), draw(st.integers(0, 1)))
        elif kind in (MessageType.BITMAP, MessageType.LATE_BITMAP):
            named = draw(st.sets(st.integers(0, 9), max_size=4))
            body = pack_arrivals(np.array(sorted(named), dtype=np.int64))
        stream += ControlMessage(kind, draw(_near), body).encode()
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        stream[draw(st.integers(0, len(stream) - 1))] = draw(st.integers(0, 255))
    return bytes(stream[: draw(st.sampled_from([len(stream), len(stream), 5, 13]))])
