"""How much control traffic a transfer costs beside its data, in virtual time, at any size.

No payload's memory is needed: the chunks hold 4 bytes, and link, window and repair are told that
each datagram is as large as one that fills an Ethernet frame. What the machines say to each other
does not depend on what is in a chunk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.simulate.engine import Alarm, Simulation
from testbed.transport import PayloadLayout, SendingPath
from testbed.transport.core.messages import WIRE_OVERHEAD_BYTES
from testbed.transport.core.order import ChunkOrder
from testbed.transport.core.repair import ReceiverRepair, Repair
from testbed.transport.core.wire import DEFAULT_CHUNK_BYTES, wire_bytes
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import InOrder
from tests.transport.transfer_parts import new_receiver, new_sender

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


def control_share(
    payload_bytes: int,
    repair: Repair,
    *,
    buffer_bytes: int = SMALL_BUFFER,
    loss: float = 0.0,
    order: ChunkOrder | None = None,
) -> tuple[int, float]:
    """Sends a payload over a link of 1 Gbit/s with random loss, as fast as it can.

    Batches pass the link as a whole: an event for each datagram of 4 GB would take minutes. Returns
    the control bytes, and their share of the data if the peer's kernel acknowledges every message
    in a segment of its own.
    """
    rate_bps, delay_s = 1e9, 50e-6
    chunks = -(-payload_bytes // DEFAULT_CHUNK_BYTES)
    layout = PayloadLayout([("weights", chunks)], _CHUNK_BYTES)
    repair = FullSize(of=repair)
    path = SendingPath(
        congestion=FixedRate(rate_bps=math.inf),
        chunk_bytes=_CHUNK_BYTES,
        receive_buffer_bytes=buffer_bytes / DATAGRAM * wire_bytes(1, _CHUNK_BYTES),
    )
    sender = new_sender(layout, path=path, repair=repair, order=order or InOrder())
    receiver, _ = new_receiver(layout, repair=repair)
    simulation, random = Simulation(), np.random.default_rng(1)
    messages, free_s = 0, 0.0

    def at(time_s: float, take: Callable[[Any, float], None], what: Any) -> None:
        def arrive() -> None:
            take(what, simulation.now_s)
            work()

        simulation.at(time_s, arrive)

    def work() -> None:
        nonlocal messages, free_s
        now_s = simulation.now_s
        receiver.on_deadline(now_s)
        sender.on_deadline(now_s)
        while len(frames := sender.offer(now_s)):
            free_s = max(now_s, free_s) + len(frames) * DATAGRAM * 8 / rate_bps
            survivors = frames[random.random(len(frames)) >= loss]
            at(free_s + delay_s, receiver.on_datagrams, survivors)
            sender.sent(len(frames), now_s)
        asked, answers = sender.poll_messages(), receiver.poll_messages()
        messages += len(asked) + len(answers)
        for message in asked:
            at(max(now_s, free_s) + delay_s, receiver.on_message, message)
        for message in answers:
            at(now_s + delay_s, sender.on_message, message)
        for deadline_s in (sender.next_deadline_s(now_s), receiver.next_deadline_s()):
            if deadline_s is not None:
                alarm.by(deadline_s)

    alarm = Alarm(simulation, work)
    work()
    simulation.run(done=lambda: sender.stopped)
    assert sender.stopped
    sent, got = sender.report("receiver"), receiver.report("sender")
    control_bytes = sent.control_bytes + got.control_bytes
    with_acknowledgements = control_bytes + messages * WIRE_OVERHEAD_BYTES
    return control_bytes, with_acknowledgements / (sent.chunks_sent * DATAGRAM)
