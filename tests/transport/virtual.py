"""Joins a Sender and a Receiver in virtual time over a network that misbehaves as told."""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.transport import PayloadLayout, Receiver, Sender, SendingPath, StopRule
from testbed.transport.core.messages import ControlMessage
from testbed.transport.core.wire import WIRE_OVERHEAD_BYTES
from testbed.transport.policies.congestion import CongestionControl, FixedRate
from testbed.transport.policies.order import ChunkOrder, InOrder
from testbed.transport.policies.repair import Passes, Repair
from testbed.transport.policies.tolerance import FractionRule

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

    `survives(sequence, nth)` decides about the nth transmission (from 0) of a chunk. What is lost
    has passed the link, as at the receiver's end; so the link is as busy as without loss.
    Control messages wait behind the data in the link's queue.

    Attributes:
        idle_s: how long it has had nothing to send between the first datagram and the last.
        tail_drops: datagrams that found the queue full.
    """

    survives: Callable[[int, int], bool] = lambda sequence, nth: True
    rate_bps: float = math.inf
    queue_bytes: float = math.inf
    delay_s: float = 0.001
    jitter_s: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    seed: int = 0
    sent_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.idle_s = 0.0
        self.tail_drops = 0
        self._free_s: float | None = None

    def _queue(self, now_s: float, size: int) -> float | None:
        """When the link has sent so many bytes more; None when the queue has no room for them."""
        if math.isinf(self.rate_bps):
            return now_s
        free_s = now_s if self._free_s is None else self._free_s
        if (free_s - now_s) * self.rate_bps / 8 + size > self.queue_bytes:
            return None
        self.idle_s += max(0.0, now_s - free_s)
        self._free_s = max(free_s, now_s) + size * 8 / self.rate_bps
        return self._free_s

    def message_s(self, now_s: float) -> float:
        """When a control message of the sender arrives."""
        return max(now_s, self._free_s or 0.0) + self.delay_s

    def carry(self, frames: Bytes, now_s: float = 0.0) -> list[tuple[float, Bytes]]:
        """Time and content of the datagrams that come out."""
        out = []
        for frame in frames:
            sent_s = self._queue(now_s, frame.size + WIRE_OVERHEAD_BYTES)
            sequence = int.from_bytes(frame[4:8].tobytes(), "big")
            nth = self.sent_of.get(sequence, 0)
            self.sent_of[sequence] = nth + 1
            if sent_s is None:
                self.tail_drops += 1
                continue
            if not self.survives(sequence, nth):
                continue
            for _ in range(2 if self.random.random() < self.duplicate else 1):
                copy = frame.copy()
                if self.random.random() < self.corrupt:
                    # Session, transfer, length or flags; UDP's own checksum covers the rest.
                    place = self.random.choice([0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15])
                    copy[place] ^= 1 << self.random.integers(8)
                out.append((sent_s + self.delay_s + self.jitter_s * self.random.random(), copy))
        return out


def bernoulli(loss: float, seed: int) -> Callable[[int, int], bool]:
    generator = np.random.default_rng(seed)
    return lambda sequence, nth: bool(generator.random() >= loss)


@dataclass
class Outcome:
    sender: Sender
    receiver: Receiver
    into: Bytes
    ended_s: float  # when STOP arrived
    batches: list[tuple[float, int]]


def transfer(
    payload: Bytes,
    layout: PayloadLayout,
    *,
    tolerance: float = 0.0,
    rule: StopRule | None = None,
    network: Network | None = None,
    congestion: CongestionControl | None = None,
    path: SendingPath | None = None,
    repair: Repair | None = None,
    order: ChunkOrder | None = None,
    began_s: float = 0.0,
    listens_s: float = 0.0,
    number: int = 6,
    limit: int = 200_000,
) -> Outcome:
    """Runs one transfer to its end; fails when it does not end within `limit` events.

    `path` lets several transfers share one, each with a later `began_s`; before `listens_s` what
    arrives waits for the receiver.
    """
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
        path=path or SendingPath(congestion=congestion, chunk_bytes=layout.chunk_bytes),
        now_s=began_s,
    )
    receiver = Receiver(
        session=SESSION,
        transfer=number,
        layout=layout,
        into=into,
        rule=rule or FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance),
        repair=repair,
        now_s=max(began_s, listens_s),
    )
    tie = itertools.count()
    events: list[tuple[float, int, str, ControlMessage | Bytes | None]] = []
    batches = []

    def at(time_s: float, kind: str, what: ControlMessage | Bytes | None = None) -> None:
        heapq.heappush(events, (time_s, next(tie), kind, what))

    wakes: set[float] = set()

    def wake(time_s: float | None) -> None:
        if time_s is not None and time_s not in wakes:
            wakes.add(time_s)
            at(time_s, "wake")

    wake(began_s)
    for _ in range(limit):
        now_s, _, kind, what = heapq.heappop(events)
        wakes.discard(now_s)
        receiver.attentive = now_s > listens_s
        if kind in ("data", "to-receiver") and now_s < listens_s:
            at(listens_s, kind, what)
            continue
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
                wake(deadline_s)
        sender.on_deadline(now_s)
        while len(frames := sender.offer(now_s)):
            batches.append((now_s, len(frames)))
            for arrival_s, frame in network.carry(frames, now_s):
                at(arrival_s, "data", frame)
            sender.sent(len(frames), now_s)
        for message in sender.poll_messages():
            at(network.message_s(now_s), "to-receiver", message)
        for message in receiver.poll_messages():
            at(now_s + network.delay_s, "to-sender", message)
        if sender.stopped:
            return Outcome(sender, receiver, into, now_s, batches)
        if (deadline_s := sender.next_deadline_s(now_s)) is not None:
            wake(max(deadline_s, now_s))
        assert events, "both sides wait for ever"
    raise AssertionError(f"no end after {limit} events")
