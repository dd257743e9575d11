"""Repair in passes: send all, ask, send what is missing (DBLP, arXiv 2605.01989; MLT, NSDI 2024).

In each pass the sender sends every chunk that is not known to have arrived, then a PROBE. The
receiver answers with a BITMAP of the chunks that it has, or with STOP if these are enough. The
number of passes is unlimited. Except for STOP, the receiver only answers PROBEs. The time from
PROBE to BITMAP is a sample of the round trip. If the PROBE had to wait for a busy receiver, the
answer is a LATE_BITMAP, which gives no sample.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import (
    ControlMessage,
    MessageType,
    pack_bitmap,
    unpack_bitmap,
)
from testbed.transport.core.path_estimates import PathEstimates
from testbed.transport.core.repair import Arrange, ReceiverRepair, Repair, SenderRepair
from testbed.transport.core.states import SenderEvent, SenderState
from testbed.transport.policies.congestion import Feedback
from testbed.transport.policies.tolerance import Progress


class PassesSender(SenderRepair):
    """Sends one pass after another, and waits for the receiver's answer in between."""

    passes: int = 1

    def __init__(self, *, transfer: int, chunk_count: int, arrange: Arrange) -> None:
        super().__init__()
        self._transfer = transfer
        self._chunk_count = chunk_count
        self._arrange = arrange
        self._queue = arrange(np.arange(chunk_count, dtype=np.int64))
        self._cursor = 0
        self._known_received = 0
        self._probed = 0  # datagrams in flight when the outstanding PROBE was sent

    @property
    def remaining(self) -> int:
        return len(self._queue) - self._cursor

    def upcoming(self, limit: int) -> NDArray[np.int64]:
        return self._queue[self._cursor : self._cursor + limit]

    def on_sent(self, count: int, now_s: float) -> None:
        self._cursor += count
        self.in_flight += count
        if not self.remaining:
            self.machine.on(SenderEvent.RAN_DRY)
            self._ask(now_s)

    def on_window_closed(self, now_s: float) -> None:
        if self.asked_s is None:
            self._ask(now_s)

    def _ask(self, now_s: float) -> None:
        if self.asked_s is None:
            self.asked_s = now_s
            self._probed = self.in_flight
            self.outbox.append(ControlMessage(MessageType.PROBE, self._transfer))

    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        if message.type not in (MessageType.BITMAP, MessageType.LATE_BITMAP):
            raise ProtocolError(f"{message.type.name} is not allowed at a sender")
        if self.asked_s is None:
            raise ProtocolError(f"{message.type.name} without a PROBE")
        received = unpack_bitmap(message.body, self._chunk_count)
        arrived = int(np.count_nonzero(received))
        if arrived == self._chunk_count:
            raise ProtocolError(f"{message.type.name} without a gap; STOP was due")
        rtt_s = now_s - self.asked_s if message.type is MessageType.BITMAP else None
        probed_s = self.asked_s
        self.asked_s = None
        swept = self.machine.state is SenderState.ASKING
        self.machine.on(SenderEvent.FEEDBACK)
        delivered = max(0, arrived - self._known_received)
        feedback = Feedback(
            now_s=now_s,
            delivered_bytes=delivered,
            lost_bytes=max(0, self._probed - delivered),
            in_flight_bytes=self.in_flight - self._probed,
            rtt_s=rtt_s,
            app_limited=swept,
            newest_sent_s=probed_s,
            newest_lost_sent_s=probed_s,
        )
        self.in_flight -= self._probed
        self._known_received = max(arrived, self._known_received)
        if swept:
            if self.in_flight:
                # The outstanding PROBE was sent before the pass ended, so it does not cover all.
                self.machine.on(SenderEvent.RAN_DRY)
                self._ask(now_s)
            else:
                self._queue = self._arrange(np.flatnonzero(~received))
                self._cursor = 0
                self.passes += 1
        return feedback


class PassesReceiver(ReceiverRepair):
    """Answers each PROBE with a bitmap."""

    has_passes = True

    def __init__(self, *, transfer: int) -> None:
        self._transfer = transfer

    def on_probe(
        self, message: ControlMessage, progress: Progress, attentive: bool
    ) -> list[ControlMessage]:
        if message.body:
            raise ProtocolError(f"PROBE with a body of {len(message.body)} bytes, not 0")
        answer = MessageType.BITMAP if attentive else MessageType.LATE_BITMAP
        return [ControlMessage(answer, self._transfer, pack_bitmap(progress.received))]


@dataclass(frozen=True, kw_only=True)
class Passes(Repair):
    """PROBE, BITMAP, STOP."""

    def sender(
        self, *, transfer: int, chunk_count: int, arrange: Arrange, estimates: PathEstimates
    ) -> PassesSender:
        return PassesSender(transfer=transfer, chunk_count=chunk_count, arrange=arrange)

    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> PassesReceiver:
        return PassesReceiver(transfer=transfer)
