"""The sender's half of the repairs whose receiver acknowledges while data flows.

A datagram is lost if one sent `reordering` places later arrived (RFC 9002, section 6.1.1), or any
later one or a PROBE's answer, and a round trip plus a margin has passed (RACK, RFC 8985). If the
receiver is silent while the window is full or nothing is left to send, the sender sends a PROBE.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.congestion import Feedback
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import SENT, Ack, ControlMessage, MessageType
from testbed.transport.core.pacing import MAX_BATCH
from testbed.transport.core.path_estimates import PathEstimates
from testbed.transport.core.repair import Arrange, SenderRepair
from testbed.transport.core.states import SenderEvent, SenderState
from testbed.transport.core.wire import SEND_INDEX_MODULUS
from testbed.transport.policies.repair.scoreboard import Scoreboard, SendQueue

# Send indices are unambiguous while the newest is less than half the modulus ahead of what the
# receiver knows to have been sent.
_SPAN = SEND_INDEX_MODULUS // 2 - 1
# The silence after which the sender asks: before a round trip is known, and added to it later.
_FIRST_SILENCE_S = 0.02
_LEAST_SILENCE_S = 1e-3
# Datagrams between two requests for an ACK, unless the window is full or nothing is left.
_LEAST_REQUEST_GAP = 8
# Large clock values are rounded; that must not make a deadline be missed.
_ROUNDING_S = 1e-6
_NEVER = 1 << 62


class AcknowledgedSender(SenderRepair):
    """Tracks every datagram until it has arrived or is lost."""

    def __init__(
        self,
        *,
        transfer: int,
        chunk_count: int,
        arrange: Arrange,
        estimates: PathEstimates,
        lost_first: bool,
    ) -> None:
        """With `lost_first`, lost chunks go before those never sent; otherwise after them."""
        super().__init__()
        self.estimates = estimates
        estimates.on_transfer_begin()
        self.scoreboard = Scoreboard(chunk_count)
        self._transfer = transfer
        chunks = arrange(np.arange(chunk_count, dtype=np.int64))
        self._due = SendQueue(chunks, lost_first=lost_first, at_first=self.at_first(arrange))
        self._missing = chunk_count  # chunks not known to have arrived
        self._settled = 0  # an answered PROBE named this many datagrams
        self._asked_at = 0
        self._requested_at = 0
        self._requesting: int | None = None  # `_requested_at`, once this has been sent
        self._waiting = False  # for room in the window
        self._last_s = -math.inf  # when something was last sent or received
        self._overdue_s: float | None = None  # when the next datagram will count as lost
        # Datagrams from `_thin_from` on were sent after the sender had run dry; those from
        # `_thin_to` on after the path had filled again.
        self._thin_from = self._thin_to = _NEVER

    # What subclasses define.

    def at_first(self, arrange: Arrange) -> int | None:
        """How many chunks wait to be sent before `_due` releases the others; None: all."""
        return None

    @abstractmethod
    def on_dry(self, now_s: float) -> None:
        """Called when there is nothing to send."""

    def spare(self) -> NDArray[np.int64]:
        """Chunks in flight of which further copies may be sent when nothing else is left."""
        return np.empty(0, dtype=np.int64)

    def on_spare_sent(self, count: int, now_s: float) -> None:
        """Called when the first `count` spare chunks were sent."""

    def on_change(self, now_s: float) -> None:
        """Called when datagrams arrived or were lost, so that `spare` changes."""

    # Sending.

    @property
    def remaining(self) -> int:
        return max(0, min(self._due.waiting or len(self.spare()), self._span_left))

    @property
    def _span_left(self) -> int:
        known = max(self.scoreboard.largest + 1, self._settled)
        return _SPAN - (self.scoreboard.next - known)

    @property
    def unasking(self) -> int:
        """How many go before one has to ask, while no window counts: `certain` of subclasses."""
        # The last of those that wait ask, and copies are another matter.
        return max(0, min(self._due.waiting, self._span_left) - MAX_BATCH)

    def on_sent_all(self, batches: Sequence[tuple[int, float]]) -> None:
        self._requesting = None
        super().on_sent_all(batches)

    def upcoming(self, limit: int) -> NDArray[np.int64]:
        limit = min(limit, self.remaining)
        return self._due.peek(limit) if self._due.waiting else self.spare()[:limit]

    def on_sent(self, count: int, now_s: float) -> None:
        self.scoreboard.record(self.upcoming(count), now_s)
        self.in_flight = self.scoreboard.in_flight
        if self._requesting == self.scoreboard.next:
            self._requested_at = self.scoreboard.next
        self._last_s = now_s
        self._waiting = False
        self.take(count, now_s)
        self._look(now_s)

    def take(self, count: int, now_s: float) -> None:
        """The first `count` upcoming chunks are on their way."""
        if self._due.waiting:
            self._due.drop(count)
        else:
            self.on_spare_sent(count, now_s)

    def _look(self, now_s: float) -> None:
        """Calls `on_dry` when there is nothing to send."""
        if not self._due.waiting and not len(self.spare()):
            self._thin_from = self._thin_to = self.scoreboard.next
            self.on_dry(now_s)

    def on_window_closed(self, now_s: float) -> None:
        self._waiting = True

    def wants_ack(self, count: int, window_left: float) -> bool:
        end = self.scoreboard.next + count
        gap = end - self._requested_at
        quarter = (self.in_flight + count + window_left) / 4
        wanted = (
            window_left < 1
            or (gap >= 2 and count >= self.remaining)
            or (not math.isinf(window_left) and gap >= max(quarter, _LEAST_REQUEST_GAP))
        )
        self._requesting = end if wanted else None
        return wanted

    # Asking.

    def ask(self, now_s: float, *, was_silent: bool = False) -> None:
        """Sends a PROBE unless one awaits its answer."""
        if self.asked_s is None:
            self.asked_s, self.was_silent = now_s, was_silent
            self._asked_at = self.scoreboard.next
            body = SENT.pack(self.scoreboard.next)
            self.outbox.append(ControlMessage(MessageType.PROBE, self._transfer, body))

    @property
    def all_settled(self) -> bool:
        """Whether the answer to a PROBE has covered all datagrams sent."""
        return self._settled == self.scoreboard.next

    def silent_from_s(self) -> float | None:
        """When the receiver will have been silent for too long; None if no answer is due."""
        waiting = self._waiting or not self.remaining
        if not waiting or self.asked_s is not None or not self.in_flight or self.all_settled:
            return None
        known = self.estimates
        if known.smoothed_s is None:
            return self._last_s + _FIRST_SILENCE_S
        spread_s = max(4 * known.deviation_s, _LEAST_SILENCE_S)
        return self._last_s + known.smoothed_s + spread_s

    def deadline_s(self) -> float | None:
        deadlines = (self._overdue_s, self.silent_from_s())
        return min((at_s for at_s in deadlines if at_s is not None), default=None)

    def on_deadline(self, now_s: float) -> Feedback | None:
        feedback = None
        if self._overdue_s is not None and self._overdue_s <= now_s:
            lost, newest_s = self._give_up(now_s)
            if lost:
                self.machine.on(SenderEvent.GAVE_UP)
                self.on_change(now_s)
                feedback = Feedback(
                    now_s=now_s,
                    delivered_bytes=0,
                    lost_bytes=lost,
                    in_flight_bytes=self.in_flight,
                    newest_lost_sent_s=newest_s,
                )
                self._look(now_s)
        silent_s = self.silent_from_s()
        if silent_s is not None and silent_s <= now_s:
            self.ask(now_s, was_silent=True)
            if not self.remaining and self.machine.state is SenderState.SENDING:
                self.machine.on(SenderEvent.RAN_DRY)
        return feedback

    # Receiving.

    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        if message.type is not MessageType.ACK:
            raise ProtocolError(f"{message.type.name} is not allowed at a sender")
        ack = Ack.parse(message.body)
        if ack.probed > self._asked_at:
            raise ProtocolError("ACK that answers a PROBE which was never sent")
        dry = not self._due.waiting
        first = self.scoreboard.index(ack.first)
        known_to = self.scoreboard.largest
        arrivals = self.scoreboard.arrive(first + np.flatnonzero(ack.arrived))
        self._missing -= len(arrivals.chunks)
        if self.scoreboard.largest >= self._thin_from == self._thin_to:
            self._thin_to = self.scoreboard.next
        rtt_s = self._round_trip_s(ack, now_s)
        if arrivals.overtaken:
            self.estimates.on_overtaken(arrivals.overtaken, arrivals.extent)
        if len(arrivals.chunks):
            self._due.remove(self.scoreboard.arrived)
        if not self._missing:
            self._start_over()
        self._settled = max(self._settled, ack.probed)
        if self._settled >= self._asked_at:
            self.asked_s = None
        self.estimates.on_fates(arrived=arrivals.datagrams - arrivals.overtaken)
        lost, newest_lost_s = self._give_up(now_s)
        # It names the newest datagram, unless that waited in the receiver's socket.
        waited = ack.echo is None and arrivals.newest > known_to
        self._last_s = now_s
        self._waiting = False
        self.machine.on(SenderEvent.FEEDBACK)
        self.on_change(now_s)
        feedback = Feedback(
            now_s=now_s,
            delivered_bytes=arrivals.datagrams,
            lost_bytes=lost,
            in_flight_bytes=self.in_flight,
            rtt_s=rtt_s,
            app_limited=dry or self._thin_from <= arrivals.newest < self._thin_to,
            newest_sent_s=self.scoreboard.sent_s(arrivals.newest),
            newest_lost_sent_s=newest_lost_s,
            waited=waited,
        )
        self._look(now_s)
        return feedback

    def _start_over(self) -> None:
        """Sends everything again: the ACKs name all chunks, yet no STOP has come."""
        self.scoreboard.arrived[:] = False
        self._missing = len(self.scoreboard.arrived)
        self._due.restart()

    def _round_trip_s(self, ack: Ack, now_s: float) -> float | None:
        """The ACK's sample of the round trip, which is added to the estimates."""
        sent_s = None
        if ack.echo is not None:
            sent_s = self.scoreboard.sent_s(self.scoreboard.index(ack.echo))
        if sent_s is not None:
            sample_s = now_s - sent_s - ack.held_s
        elif ack.at_once and self.asked_s is not None:
            sample_s = now_s - self.asked_s
        else:
            return None
        if sample_s <= 0 or not self.attentive:
            return None
        self.estimates.on_round_trip(sample_s)
        return sample_s

    def _give_up(self, now_s: float) -> tuple[int, float | None]:
        """Declares overdue datagrams lost; returns how many, and when the newest was sent."""
        known = self.estimates
        patience_s = max(known.smoothed_s or 0.0, known.latest_s) + known.overtaking_s()
        sent_by = max(self.scoreboard.largest + 1, self._settled)
        lost, newest_s, chunks = self.scoreboard.give_up(
            sent_by=sent_by, ahead=known.reordering, sent_before_s=now_s - patience_s + _ROUNDING_S
        )
        known.on_fates(lost=lost)
        self._due.push_lost(chunks)
        self.in_flight = self.scoreboard.in_flight
        oldest_s = self.scoreboard.oldest_sent_s(sent_by)
        self._overdue_s = None if oldest_s is None else oldest_s + patience_s
        return lost, newest_s
