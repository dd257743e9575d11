"""Repair in passes: sweep, ask, sweep what is missing (DBLP, arXiv 2605.01989; MLT, NSDI 2024).

The sender sends every chunk that is not known to have arrived, then a PROBE. The receiver
answers with a BITMAP of what it has (or STOP, if that is enough), and the next pass sends the
rest. There is no limit to the passes. The receiver never speaks unasked, except for STOP.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion import Feedback
from testbed.transport.control import (
    ControlMessage,
    MessageType,
    pack_bitmap,
    unpack_bitmap,
)
from testbed.transport.errors import ProtocolError
from testbed.transport.repair.base import Arrange, ReceiverRepair, Repair, SenderRepair
from testbed.transport.states import SenderEvent, SenderState
from testbed.transport.tolerance import Progress


class PassesSender(SenderRepair):
    """Sweeps; then waits for the receiver's word."""

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
        if message.type is not MessageType.BITMAP:
            raise ProtocolError(f"{message.type.name} has no place at a sender")
        if self.asked_s is None:
            raise ProtocolError("BITMAP without a PROBE")
        received = unpack_bitmap(message.body, self._chunk_count)
        missing = np.flatnonzero(~received)
        if not len(missing):
            raise ProtocolError("BITMAP without a gap; STOP was due")
        # With the time the receiver took to answer: long if it had not begun to receive yet.
        rtt_s = now_s - self.asked_s
        self.asked_s = None
        swept = self.machine.state is SenderState.ASKING
        self.machine.on(SenderEvent.REPORT)
        arrived = self._chunk_count - len(missing)
        delivered = max(0, arrived - self._known_received)
        feedback = Feedback(
            now_s=now_s,
            delivered_bytes=delivered,
            lost_bytes=max(0, self._probed - delivered),
            in_flight_bytes=self.in_flight - self._probed,
            rtt_s=rtt_s,
            app_limited=swept,
        )
        self.in_flight -= self._probed
        self._known_received = max(arrived, self._known_received)
        if swept:
            if self.in_flight:
                # The outstanding PROBE was sent before the sweep ended: it does not cover all.
                self.machine.on(SenderEvent.RAN_DRY)
                self._ask(now_s)
            else:
                self._queue = self._arrange(missing)
                self._cursor = 0
                self.passes += 1
        return feedback


class PassesReceiver(ReceiverRepair):
    """Speaks when spoken to."""

    def __init__(self, *, transfer: int) -> None:
        self._transfer = transfer

    def on_probe(self, progress: Progress) -> list[ControlMessage]:
        return [ControlMessage(MessageType.BITMAP, self._transfer, pack_bitmap(progress.received))]


@dataclass(frozen=True, kw_only=True)
class Passes(Repair):
    """Probe, bitmap, stop."""

    def sender(self, *, transfer: int, chunk_count: int, arrange: Arrange) -> PassesSender:
        return PassesSender(transfer=transfer, chunk_count=chunk_count, arrange=arrange)

    def receiver(self, *, transfer: int) -> PassesReceiver:
        return PassesReceiver(transfer=transfer)
