"""Kernel TCP by a model: a repair that does what TCP does, under a congestion control of ours.

When ACKs stay out, it sends the latest segment once more (tail loss probe, RFC 8985, section 7),
and then counts all in flight as lost (RFC 6298; the minimum is Linux', or the user's). A recovery
sends as much as was acknowledged (as in RFC 6937). docs/how-to/simulate.md lists what it lacks.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion.base import Feedback
from testbed.transport.messages import ControlMessage
from testbed.transport.repair.base import Repair
from testbed.transport.repair.selective import AcknowledgingReceiver, SelectiveSender, SendQueue

KERNEL_CONTROLS = ("bbr", "cubic", "reno")  # of the kernel's, those of which there is one here
# Ethernet, IPv4 and TCP headers with the timestamp option; a datagram of ours has 58 bytes of them.
MORE_HEADER_BYTES = 14 + 20 + 32 - 58
LEAST_TIMEOUT_S, _LONGEST_TIMEOUT_S = 0.2, 120.0
_FIRST_TIMEOUT_S = 1.0  # before a round trip is known (RFC 6298, section 2)
_PROBE_SLACK_S = 0.002
# Segments gather for so long before they are acknowledged: an ACK for every two segments, as TCP
# has, would cost the simulation as much as dozens of segments.
_COALESCE_S = 2e-3
_ACK_INTERVAL_S, _ACK_OVERHEAD = 1e-4, 1.0  # so all that has gathered is acknowledged at once


class TcpSender(SelectiveSender):
    def __init__(self, *, least_timeout_s: float = LEAST_TIMEOUT_S, **common: Any) -> None:
        super().__init__(**common)
        self._least_timeout_s = least_timeout_s
        self._acknowledged = 0  # all chunks before this one have arrived
        self._sent_to = 0  # none from this one on has been sent
        self._recovers_at = 0  # a recovery lasts until all before this one have arrived
        self._allowed = math.inf  # datagrams that a recovery lets be in flight
        self._timed_from_s = math.inf
        self._doublings = 0
        self._probing = False  # whether one may go beyond the window
        self._probed = False  # since the stream advanced

    def silent_from_s(self) -> None:
        """A receiver's kernel cannot be asked."""

    @property
    def remaining(self) -> int:
        if self._probing:
            return 1
        return int(min(super().remaining, max(0.0, self._allowed - self.in_flight)))

    def copyable(self) -> NDArray[np.int64]:
        if not self._probing:
            return super().copyable()
        sent = np.where(self.scoreboard.arrived, -1, self.scoreboard.last_sent)
        return np.array([np.argmax(sent)])

    def on_sent(self, count: int, now_s: float) -> None:
        chunks = self.upcoming(count)
        self._sent_to = max(self._sent_to, int(chunks.max()) + 1)
        if self._acknowledged in chunks or self._timed_from_s == math.inf:
            self._timed_from_s = now_s
        super().on_sent(count, now_s)
        self._probing = False

    def wants_ack(self, count: int, window_left: float) -> bool:
        return False

    @property
    def _timeout_s(self) -> float:
        estimates = self.estimates
        if estimates.smoothed_s is None:
            first_s = _FIRST_TIMEOUT_S
        else:
            first_s = estimates.smoothed_s + max(4 * estimates.deviation_s, self._least_timeout_s)
        return min(first_s * 2.0**self._doublings, _LONGEST_TIMEOUT_S)

    def _probe_s(self) -> float:
        """It is the time from which the latest segment goes once more, after so long a silence."""
        recovering = self._acknowledged < self._recovers_at
        if recovering or self._probed or self.estimates.smoothed_s is None:
            return math.inf
        # A lone segment's ACK may be delayed.
        slack_s = _PROBE_SLACK_S if self.in_flight > 1 else self._least_timeout_s
        return self._last_s + 2 * self.estimates.smoothed_s + slack_s

    def deadline_s(self) -> float | None:
        if not self.in_flight:
            return None
        overdue_s = math.inf if self._overdue_s is None else self._overdue_s
        return min(overdue_s, self._probe_s(), self._timed_from_s + self._timeout_s)

    def on_deadline(self, now_s: float) -> Feedback | None:
        if now_s >= self._timed_from_s + self._timeout_s:
            return self._time_out(now_s)
        if now_s >= self._probe_s():
            self._probing = self._probed = True
            self.in_flight = 0  # so the window lets it go; then all in flight counts again
            return None
        feedback = super().on_deadline(now_s)
        if feedback is not None:
            self._recover(feedback, advanced=False)
        return feedback

    def _time_out(self, now_s: float) -> Feedback:
        lost, newest_s, _ = self.scoreboard.declare_lost(
            sent_by=self.scoreboard.next, ahead=0, sent_before_s=now_s
        )
        self.in_flight = 0
        self._overdue_s = None
        self._due = SendQueue(np.flatnonzero(~self.scoreboard.arrived), lost_first=True)
        self._doublings += 1
        self._timed_from_s = now_s
        self._recovers_at, self._allowed = self._sent_to, 1
        return Feedback(
            now_s=now_s,
            delivered_bytes=0,
            lost_bytes=lost,
            in_flight_bytes=0,
            newest_lost_sent_s=newest_s,
            timed_out=True,
        )

    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        self._probing = False
        feedback = super().on_message(message, now_s)
        # There is a gap, or STOP would have come.
        advance = int(self.scoreboard.arrived[self._acknowledged :].argmin())
        if advance:
            self._acknowledged += advance
            self._timed_from_s = now_s if self.in_flight else math.inf
            self._doublings, self._probed = 0, False
        if feedback is not None:
            self._recover(feedback, advanced=advance > 0)
        return feedback

    def _recover(self, feedback: Feedback, *, advanced: bool) -> None:
        lost, delivered = feedback.lost_bytes, feedback.delivered_bytes  # in datagrams here
        begins = self._acknowledged >= self._recovers_at
        if begins and not lost:
            self._allowed = math.inf
            return
        if begins:
            self._recovers_at = self._sent_to
        more = 2 * delivered if advanced and not lost else delivered
        self._allowed = max(self.in_flight + max(more, int(begins)), 1)


class TcpReceiver(AcknowledgingReceiver):
    coalesce_s = _COALESCE_S

    def on_arrivals(self, stamps: NDArray[np.uint32], now_s: float, attentive: bool) -> None:
        # That it has gathered is part of the round trip, as it is where ACKs are delayed.
        super().on_arrivals(stamps, now_s, attentive=True)


@dataclass(frozen=True, kw_only=True)
class TcpModel(Repair):
    least_timeout_s: float

    def sender(self, **common: Any) -> TcpSender:
        return TcpSender(least_timeout_s=self.least_timeout_s, **common)

    def receiver(self, **common: Any) -> TcpReceiver:
        return TcpReceiver(interval_s=_ACK_INTERVAL_S, overhead=_ACK_OVERHEAD, **common)
