"""Reno, DCTCP, and what CUBIC shares with them: slow start, recovery, pacing, idle times.

* Slow start counts bytes (RFC 5681; RFC 9002, section 7.3.1). A loss or a mark reduces the window
  once per round trip (RFC 6582; RFC 9002, section 7.3.2). A window that was less than half used in
  two rounds does not grow (RFC 7661, section 4.3).
* Datagrams are paced at 2 windows per round trip in slow start and 1.2 afterwards, as Linux does.
  Only the very first window is not paced. A round trip shorter than the mean counts at once.
* What one message of a repair covers may be in flight in addition to the window.
* Where half of a round trip's data is lost while an earlier loss is not over, the window falls
  further but the threshold is held (RFC 5681, section 3.1).
* If nothing arrives for three round trips while losses are reported, the window falls to 2
  datagrams (RFC 9002, section 7.6), and slow start begins again.

Window and threshold are kept over idle times: pacing avoids the burst (RFC 9002, section 7.7).
"""

import math
from abc import abstractmethod

from testbed.transport.core.congestion import CongestionControl, Feedback
from testbed.transport.policies.congestion.path import (
    DATAGRAM_BYTES,
    INITIAL_WINDOW,
    MINIMUM_WINDOW,
    MaxFilter,
    PathMonitor,
    check_options,
)

_SLOW_START_PACING = 2.0
_AVOIDANCE_PACING = 1.2
_USED = 0.5
_PERSISTENT_ROUNDS = 3
_REPORT_ROUNDS = 3
# The lost share of a round from which on retransmissions would be lost too.
_HEAVY = 0.5
_TELLING = 8  # the fewest datagrams whose fate tells of the path; fewer may be lucky


class WindowControl(CongestionControl):
    """A congestion window; subclasses define how it grows and how far it falls."""

    def __init__(self, *, datagram_bytes: int, initial_window: float) -> None:
        """A window of its initial size.

        Args:
            datagram_bytes: one datagram on the wire.
            initial_window: what is in flight at first, in datagrams.
        """
        check_options(datagram_bytes=datagram_bytes, initial_window=initial_window)
        self.path = PathMonitor()
        self._datagram_bytes = datagram_bytes
        self._minimum_bytes = MINIMUM_WINDOW * datagram_bytes
        self._window = max(float(initial_window * datagram_bytes), self._minimum_bytes)
        self._threshold = math.inf
        self._recovery_from_s = -math.inf  # losses of data sent before belong to the last reduction
        self._recovering = False
        self._arrived_s: float | None = None  # when data last arrived, at the latest
        self._active_s: float | None = None
        self._used = self._used_before = 0  # the most in flight in this round and in the last
        self._reports = MaxFilter(_REPORT_ROUNDS)
        self._round_lost = self._round_settled = 0  # bytes, of this round or more
        self._losing = False  # whether the window fell and no round since was without loss

    @property
    def congestion_window_bytes(self) -> float:
        """The window of the algorithm: what may be in flight on the path."""
        return self._window

    @property
    def window_bytes(self) -> float:
        # What has arrived and is not reported yet is not on the path any more.
        return self._window + min(self._reports.value, self._window)

    @property
    def rate_bps(self) -> float:
        smoothed_s, latest_s = self.path.smoothed_rtt_s, self.path.latest_rtt_s
        if smoothed_s is None or latest_s is None:
            return math.inf
        gain = _SLOW_START_PACING if self.slow_start else _AVOIDANCE_PACING
        return gain * self._window * 8 / min(smoothed_s, latest_s)

    @property
    def slow_start(self) -> bool:
        """Whether the window is below the threshold."""
        return self._window < self._threshold

    def on_transfer_begin(self, now_s: float) -> None:
        self.path.on_transfer_begin(now_s)
        self._recovering = False
        self._recovery_from_s = -math.inf
        self._arrived_s = now_s
        if self._active_s is not None:
            self._idle(now_s - self._active_s)
        self._active_s = now_s

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        self.path.on_sent(now_s)
        self._active_s = now_s
        if self._arrived_s is None:
            self._arrived_s = now_s

    def on_feedback(self, feedback: Feedback) -> None:
        self.path.on_feedback(feedback)
        validated = self._validated(feedback)
        self._active_s = feedback.now_s
        settled = feedback.delivered_bytes + feedback.lost_bytes
        if feedback.in_flight_bytes:
            self._reports.add(settled, self.path.rounds)
        self._round_lost += feedback.lost_bytes
        self._round_settled += settled
        sent_s = self.path.newest_sent_s(feedback)
        if self._recovering and feedback.delivered_bytes:
            # An unknown time of sending ends the recovery, so that the transfer goes on.
            self._recovering = sent_s is not None and sent_s < self._recovery_from_s
        if feedback.delivered_bytes:
            self._arrived_s = feedback.now_s
            self._marked(feedback)
        if feedback.lost_bytes:
            self._lost(feedback)
        elif feedback.delivered_bytes and not self._recovering and validated:
            self._grow(feedback)
        if self.path.round_began and self._round_settled >= _TELLING * self._datagram_bytes:
            self._losing = self._losing and self._round_lost > 0
            self._round_lost = self._round_settled = 0

    def _validated(self, feedback: Feedback) -> bool:
        """Whether the window was used recently."""
        settled = feedback.delivered_bytes + feedback.lost_bytes
        used = feedback.in_flight_bytes + settled
        if self.path.round_began:
            self._used_before, self._used = self._used, 0
        self._used = max(self._used, used)
        most = max(self._used, self._used_before)
        return not feedback.app_limited and most >= _USED * self._window

    def _grow(self, feedback: Feedback) -> None:
        delivered = float(feedback.delivered_bytes)
        if self.slow_start:
            room = max(0.0, self._threshold - self._window)
            self._window += min(delivered, room)
            delivered -= room
            if delivered <= 0:
                return
        self._window += self._increase(delivered, feedback.now_s)

    def _lost(self, feedback: Feedback) -> None:
        if self.path.newest_lost_sent_s(feedback) >= self._recovery_from_s:
            threshold = self._threshold
            few = self._round_settled < _TELLING * self._datagram_bytes
            heavy = self._round_lost >= _HEAVY * self._round_settled
            held = self._losing and (heavy or few)
            window = self._window / 2 if held else self._after_loss(feedback.now_s)
            self._congested(feedback.now_s, window)
            if held:
                self._threshold = threshold
            self._losing = True
        smoothed_s = self.path.smoothed_rtt_s
        if feedback.delivered_bytes or smoothed_s is None or self._arrived_s is None:
            return
        if feedback.now_s - self._arrived_s > _PERSISTENT_ROUNDS * smoothed_s:
            self._window = self._minimum_bytes
            self._recovering = False

    def _marked(self, feedback: Feedback) -> None:
        """Reacts to congestion marks as to a loss; subclasses may override it."""
        if not feedback.ecn_marked_bytes:
            return
        sent_s = self.path.newest_sent_s(feedback)
        if sent_s is None or sent_s >= self._recovery_from_s:
            self._congested(feedback.now_s, self._after_loss(feedback.now_s))

    def _congested(self, now_s: float, window: float) -> None:
        """Sets the window and begins a recovery."""
        self._window = max(window, self._minimum_bytes)
        self._threshold = self._window
        self._recovery_from_s = now_s
        self._recovering = True

    @abstractmethod
    def _increase(self, delivered_bytes: float, now_s: float) -> float:
        """What congestion avoidance adds to the window for the delivered bytes."""

    @abstractmethod
    def _after_loss(self, now_s: float) -> float:
        """The window after a loss."""

    def _idle(self, pause_s: float) -> None:
        """Called when a transfer begins `pause_s` after the last event of the previous one."""


class Reno(WindowControl):
    """Reno: a datagram more each round trip, half the window after a loss (RFC 5681, RFC 9002)."""

    infers_queue = False

    def __init__(
        self,
        *,
        datagram_bytes: int = DATAGRAM_BYTES,
        initial_window: float = INITIAL_WINDOW,
        beta: float = 0.5,
    ) -> None:
        """Reno's halving by default.

        Args:
            beta: the fraction of the window that a loss leaves, below 1.
        """
        super().__init__(datagram_bytes=datagram_bytes, initial_window=initial_window)
        check_options(at_most=0.99, beta=beta)
        self._beta = beta

    def _increase(self, delivered_bytes: float, now_s: float) -> float:
        return self._datagram_bytes * delivered_bytes / self._window

    def _after_loss(self, now_s: float) -> float:
        return self._beta * self._window


class Dctcp(Reno):
    """DCTCP: reduces the window in proportion to the congestion (RFC 8257; SIGCOMM 2010).

    Switches mark packets that they queue beyond a threshold. The sender estimates the marked
    fraction and reduces its window by half of that fraction, once per round trip. Without marks it
    would behave like Reno, so it cannot be created unless the configuration says that queues mark.
    """

    needs_ecn = True
    infers_queue = True

    def __init__(
        self,
        *,
        datagram_bytes: int = DATAGRAM_BYTES,
        initial_window: float = INITIAL_WINDOW,
        gain: float = 1 / 16,
        ecn_marking: bool = False,
    ) -> None:
        """ValueError unless `ecn_marking` is true.

        Args:
            gain: weight of a new round trip's fraction of marks (RFC 8257, section 3.3).
            ecn_marking: states that the queues of the path mark datagrams and that the receiver's
                messages tell the sender which ones.
        """
        if ecn_marking is not True:
            raise ValueError(
                "dctcp needs queues that mark datagrams (ECN); valid: another congestion control, "
                "or ecn_marking=true where they do, which is in virtual time only"
            )
        super().__init__(datagram_bytes=datagram_bytes, initial_window=initial_window)
        check_options(at_most=1, gain=gain)
        self._gain = gain
        self._alpha = 1.0  # section 3.3: the most cautious value until the path is known
        self._delivered = 0
        self._marks = 0

    def _marked(self, feedback: Feedback) -> None:
        self._delivered += feedback.delivered_bytes
        self._marks += feedback.ecn_marked_bytes
        if self.path.round_began and self._delivered:
            self._alpha += self._gain * (self._marks / self._delivered - self._alpha)
            self._delivered = self._marks = 0
        if not feedback.ecn_marked_bytes:
            return
        sent_s = self.path.newest_sent_s(feedback)
        if sent_s is None or sent_s >= self._recovery_from_s:
            self._congested(feedback.now_s, self._window * (1 - self._alpha / 2))
