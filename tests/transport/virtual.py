"""Joins a Sender and a Receiver in virtual time over a network that misbehaves as told."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.transport import PayloadLayout, Receiver, Sender, SendingPath, StopRule
from testbed.transport.congestion import CongestionControl, FixedRate
from testbed.transport.control import ControlMessage
from testbed.transport.order import ChunkOrder, InOrder
from testbed.transport.repair import Passes, Repair
from testbed.transport.tolerance import FractionRule

Bytes = NDArray[np.uint8]
SESSION = 0xC0FFEE


def layout_of(chunks: int, *, chunk_bytes: int = 16, last_elements: int = 4) -> PayloadLayout:
    """A layout with so many chunks, the last one perhaps not full."""
    elements = (chunks - 1) * (chunk_bytes // 4) + min(last_elements, chunk_bytes // 4)
    return PayloadLayout([("weights", elements)], chunk_bytes)


def random_payload(layout: PayloadLayout, seed: int = 0) -> Bytes:
    buffer = layout.new_buffer()
    generator = np.random.default_rng(seed)
    layout.floats(buffer)[:] = generator.standard_normal(layout.element_count)
    return buffer


@dataclass
class Network:
    """One way from sender to receiver for data; control is reliable both ways.

    `survives(sequence, nth)` decides about the nth transmission (from 0) of a chunk.
    """

    survives: Callable[[int, int], bool] = lambda sequence, nth: True
    delay_s: float = 0.001
    jitter_s: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    seed: int = 0
    sent_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def carry(self, frames: Bytes) -> list[tuple[float, Bytes]]:
        """Delay and content of the datagrams that come out."""
        out = []
        for frame in frames:
            sequence = int.from_bytes(frame[4:8].tobytes(), "big")
            nth = self.sent_of.get(sequence, 0)
            self.sent_of[sequence] = nth + 1
            if not self.survives(sequence, nth):
                continue
            for _ in range(2 if self.random.random() < self.duplicate else 1):
                copy = frame.copy()
                if self.random.random() < self.corrupt:
                    # Session, transfer, length or flags; UDP's own checksum covers the rest.
                    place = self.random.choice([0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15])
                    copy[place] ^= 1 << self.random.integers(8)
                out.append((self.delay_s + self.jitter_s * self.random.random(), copy))
        return out


def bernoulli(loss: float, seed: int) -> Callable[[int, int], bool]:
    generator = np.random.default_rng(seed)
    return lambda sequence, nth: bool(generator.random() >= loss)


@dataclass
class Outcome:
    sender: Sender
    receiver: Receiver
    into: Bytes
    ended_s: float
    batches: list[tuple[float, int]]


def transfer(
    payload: Bytes,
    layout: PayloadLayout,
    *,
    tolerance: float = 0.0,
    rule: StopRule | None = None,
    network: Network | None = None,
    congestion: CongestionControl | None = None,
    repair: Repair | None = None,
    order: ChunkOrder | None = None,
    number: int = 6,
    limit: int = 200_000,
) -> Outcome:
    """Runs one transfer to its end; fails when it does not end within `limit` events."""
    network = network or Network()
    repair = repair or Passes()
    congestion = congestion or FixedRate(rate_bps=10e6)
    into = layout.new_buffer()
    sender = Sender(
        session=SESSION,
        transfer=number,
        layout=layout,
        payload=payload,
        repair=repair,
        order=order or InOrder(),
        path=SendingPath(congestion=congestion, chunk_bytes=layout.chunk_bytes),
        now_s=0.0,
    )
    receiver = Receiver(
        session=SESSION,
        transfer=number,
        layout=layout,
        into=into,
        rule=rule or FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance),
        repair=repair,
        now_s=0.0,
    )
    tie = itertools.count()
    events: list[tuple[float, int, str, ControlMessage | Bytes | None]] = []
    batches = []

    def at(time_s: float, kind: str, what: ControlMessage | Bytes | None = None) -> None:
        heapq.heappush(events, (time_s, next(tie), kind, what))

    now_s = 0.0
    at(0.0, "wake")
    for _ in range(limit):
        now_s, _, kind, what = heapq.heappop(events)
        if kind == "data":
            assert isinstance(what, np.ndarray)
            receiver.on_datagrams(what[np.newaxis], now_s)
        elif kind == "to-receiver":
            assert isinstance(what, ControlMessage)
            receiver.on_message(what, now_s)
        elif kind == "to-sender":
            assert isinstance(what, ControlMessage)
            sender.on_message(what, now_s)
        if (deadline_s := receiver.next_deadline_s()) is not None:
            if deadline_s <= now_s:
                receiver.on_deadline(now_s)
            else:
                at(deadline_s, "wake")
        while len(frames := sender.offer(now_s)):
            batches.append((now_s, len(frames)))
            for delay_s, frame in network.carry(frames):
                at(now_s + delay_s, "data", frame)
            sender.sent(len(frames), now_s)
        for message in sender.poll_messages():
            at(now_s + network.delay_s, "to-receiver", message)
        for message in receiver.poll_messages():
            at(now_s + network.delay_s, "to-sender", message)
        if sender.stopped:
            return Outcome(sender, receiver, into, now_s, batches)
        if (deadline_s := sender.next_deadline_s(now_s)) is not None:
            at(max(deadline_s, now_s), "wake")
        assert events, "both sides wait for ever"
    raise AssertionError(f"no end after {limit} events")
