"""How much control traffic a transfer costs beside its data, in virtual time, at any size.

No payload's memory is needed: the chunks hold 4 bytes, and link, window and repair are told that
each datagram is as large as one that fills an Ethernet frame. What the machines say to each other
does not depend on what is in a chunk.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.transport import PayloadLayout, Receiver, Sender, SendingPath
from testbed.transport.core.messages import WIRE_OVERHEAD_BYTES
from testbed.transport.core.order import ChunkOrder
from testbed.transport.core.repair import ReceiverRepair, Repair
from testbed.transport.core.wire import DEFAULT_CHUNK_BYTES, wire_bytes
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.tolerance import FractionRule

DATAGRAM = wire_bytes(1, DEFAULT_CHUNK_BYTES)
# What the kernel grants by default (net.core.rmem_default and rmem_max of 212992), and what
# `net.udp_socket` asks for and gets where it may.
SMALL_BUFFER, LARGE_BUFFER = 212_992, 8 << 20
_CHUNK_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class FullSize(Repair):
    """A repair whose receiver believes that the datagrams fill their frames."""

    of: Repair

    def sender(self, **about: Any) -> Any:
        return self.of.sender(**about)

    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> ReceiverRepair:
        return self.of.receiver(transfer=transfer, datagram_wire_bytes=DATAGRAM)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a transfer took; `segments` adds an empty TCP segment for each control message."""

    chunks: int
    passes: int | None
    datagrams: int
    messages: int
    control_bytes: int

    @property
    def data_bytes(self) -> int:
        return self.datagrams * DATAGRAM

    @property
    def of_data(self) -> float:
        return self.control_bytes / self.data_bytes

    @property
    def with_acknowledgements(self) -> float:
        """The share if the peer's kernel acknowledges every message in a segment of its own."""
        return (self.control_bytes + self.messages * WIRE_OVERHEAD_BYTES) / self.data_bytes


def control_share(
    payload_bytes: int,
    repair: Repair,
    *,
    buffer_bytes: int = SMALL_BUFFER,
    loss: float = 0.0,
    order: ChunkOrder | None = None,
    rate_bps: float = 1e9,
    delay_s: float = 50e-6,
    seed: int = 1,
) -> Share:
    """Sends a payload over a link with this rate, delay and random loss, as fast as it can."""
    chunks = -(-payload_bytes // DEFAULT_CHUNK_BYTES)
    layout = PayloadLayout([("weights", chunks)], _CHUNK_BYTES)
    path = SendingPath(
        congestion=FixedRate(rate_bps=float("inf")),
        chunk_bytes=_CHUNK_BYTES,
        receive_buffer_bytes=buffer_bytes / DATAGRAM * wire_bytes(1, _CHUNK_BYTES),
    )
    common = {"session": 1, "transfer": 6, "layout": layout, "now_s": 0.0}
    repair = FullSize(of=repair)
    sender = Sender(
        payload=layout.new_buffer(), repair=repair, order=order or InOrder(), path=path, **common
    )
    rule = FractionRule(chunk_count=chunks, tolerance=0.0)
    receiver = Receiver(into=layout.new_buffer(), repair=repair, rule=rule, **common)
    random = np.random.default_rng(seed)
    ties, wakes = itertools.count(), set[float]()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    messages, free_s = 0, 0.0

    def at(time_s: float, happens: Callable[[float], None]) -> None:
        heapq.heappush(events, (time_s, next(ties), happens))

    def wake(deadline_s: float | None, now_s: float) -> None:
        if deadline_s is not None and deadline_s not in wakes:
            wakes.add(deadline_s)
            at(max(now_s, deadline_s), lambda _: wakes.discard(deadline_s))

    wake(0.0, 0.0)
    while not sender.stopped:
        now_s, _, happens = heapq.heappop(events)
        happens(now_s)
        receiver.on_deadline(now_s)
        sender.on_deadline(now_s)
        while len(frames := sender.offer(now_s)):
            came = frames[random.random(len(frames)) >= loss]
            free_s = max(now_s, free_s) + len(frames) * DATAGRAM * 8 / rate_bps
            at(free_s + delay_s, lambda now_s, came=came: receiver.on_datagrams(came, now_s))
            sender.sent(len(frames), now_s)
        for message in sender.poll_messages():
            messages += 1
            at(max(now_s, free_s) + delay_s, lambda t, m=message: receiver.on_message(m, t))
        for message in receiver.poll_messages():
            messages += 1
            at(now_s + delay_s, lambda t, m=message: sender.on_message(m, t))
        wake(sender.next_deadline_s(now_s), now_s)
        wake(receiver.next_deadline_s(), now_s)
    sent, got = sender.report("receiver"), receiver.report("sender")
    return Share(
        chunks=chunks,
        passes=sent.passes,
        datagrams=sent.chunks_sent,
        messages=messages,
        control_bytes=sent.control_bytes + got.control_bytes,
    )
