"""Reno, CUBIC, and what they share: slow start, recovery, pacing, idle times.

* Slow start counts bytes, and a loss reduces the window once per round trip (RFC 5681, 6582, 9002).
  A window that was less than half used in two rounds does not grow (RFC 7661, section 4.3).
* Datagrams are paced at 2 windows per round trip in slow start and 1.05 afterwards: who is answered
  seldom must not hurry. So window and threshold are kept over idle times (RFC 9002, section 7.7).
* What a message of a repair usually reports may be in flight beyond the window, at most 0.75 of it:
  it has left the path before the sender hears of it.
* Where half of a round's data is lost before an earlier loss is over, the threshold is held (RFC
  5681, section 3.1). If nothing arrives for three round trips, or a sender's timer ends, the window
  falls to 2 datagrams, and slow start begins again (RFC 9002, section 7.6; RFC 5681, section 3.1).
"""

import math

from testbed.transport.congestion.base import (
    DATAGRAM_BYTES,
    MINIMUM_WINDOW,
    Feedback,
    PathControl,
)

_SLOW_START_PACING = 2.0
_AVOIDANCE_PACING = 1.05
_USED = 0.5
_PERSISTENT_ROUNDS = 3
_REPORT_WEIGHT = 1 / 4  # of a new report in the usual one, after slow start
_MOST_BEYOND = 0.75  # of the window
_HEAVY = 0.5  # the lost share of a round from which on retransmissions would be lost too
_TELLING = 8  # the fewest datagrams whose fate tells of the path; fewer may be lucky


class Reno(PathControl):
    """Reno: a datagram more each round trip, half the window after a loss (RFC 5681, RFC 9002)."""

    infers_queue = False
    steady_until_s = math.inf
    beta = 0.5  # the part of the window that a loss leaves

    def __init__(self, *, datagram_bytes: int = DATAGRAM_BYTES) -> None:
        super().__init__(datagram_bytes=datagram_bytes)
        self._minimum_bytes = MINIMUM_WINDOW * datagram_bytes
        self._window = self._initial_bytes
        self._threshold = math.inf
        self._recovery_from_s = -math.inf  # losses of data sent before belong to the last reduction
        self._recovering = False
        self._arrived_s: float | None = None  # when data last arrived, at the latest
        self._active_s: float | None = None
        self._quiet = True  # nothing is in flight, because nothing was left to send
        self._used = self._used_before = 0  # the most in flight in this round and in the last
        self._report_bytes = 0.0  # what a message reports as arrived, usually
        self._round_lost = self._round_settled = 0  # bytes, of this round or more
        self._losing = False  # whether the window fell and no round since was without loss

    @property
    def window_bytes(self) -> float:
        return self._window + min(self._report_bytes, _MOST_BEYOND * self._window)

    @property
    def rate_bps(self) -> float:
        smoothed_s, latest_s = self.path.smoothed_rtt_s, self.path.latest_rtt_s
        if smoothed_s is None or latest_s is None:
            return math.inf
        gain = _SLOW_START_PACING if self.slow_start else _AVOIDANCE_PACING
        return gain * self._window * 8 / min(smoothed_s, latest_s)

    @property
    def slow_start(self) -> bool:
        return self._window < self._threshold

    def on_transfer_begin(self, now_s: float) -> None:
        super().on_transfer_begin(now_s)
        self._recovering = False
        self._recovery_from_s = -math.inf
        self._quiet = True
        if self._active_s is not None:
            self._idle(now_s - self._active_s)
        self._active_s = now_s

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        super().on_sent(sent_bytes, now_s)
        if self._quiet:
            # Nothing could arrive, and no loss tells of it (RFC 9002, section 7.6.2).
            self._arrived_s, self._quiet = now_s, False

    def on_feedback(self, feedback: Feedback) -> None:
        self.path.on_feedback(feedback)
        validated = self._validated(feedback)
        if not validated and self._active_s is not None:
            self._idle(feedback.now_s - self._active_s)
        self._active_s = feedback.now_s
        self._quiet = feedback.delivered_bytes > 0 and not feedback.in_flight_bytes
        settled = feedback.delivered_bytes + feedback.lost_bytes
        if feedback.in_flight_bytes and feedback.delivered_bytes:
            more_bytes = feedback.delivered_bytes - self._report_bytes
            self._report_bytes += (1.0 if self.slow_start else _REPORT_WEIGHT) * more_bytes
        self._round_lost += feedback.lost_bytes
        self._round_settled += settled
        sent_s = self.path.newest_sent_s(feedback)
        if self._recovering and feedback.delivered_bytes:
            # An unknown time of sending ends the recovery, so that the transfer goes on.
            self._recovering = sent_s is not None and sent_s < self._recovery_from_s
        if feedback.delivered_bytes:
            self._arrived_s = feedback.now_s
        if feedback.lost_bytes:
            self._lost(feedback)
        elif feedback.delivered_bytes and not self._recovering and validated:
            self._grow(feedback)
        if self.path.round_began and self._round_settled >= _TELLING * self._datagram_bytes:
            self._losing = self._losing and self._round_lost > 0
            self._round_lost = self._round_settled = 0

    def _validated(self, feedback: Feedback) -> bool:
        """The sender used at least half of the window in the last two rounds."""
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
            few = self._round_settled < _TELLING * self._datagram_bytes
            heavy = self._round_lost >= _HEAVY * self._round_settled
            held = self._losing and (heavy or few)
            window = self._window / 2 if held else self._after_loss()
            self._window = max(window, self._minimum_bytes)
            if not held:
                self._threshold = self._window
            self._recovery_from_s = feedback.now_s
            self._recovering = self._losing = True
        smoothed_s, silent = self.path.smoothed_rtt_s, feedback.timed_out
        if not (feedback.delivered_bytes or smoothed_s is None or self._arrived_s is None):
            silent |= feedback.now_s - self._arrived_s > _PERSISTENT_ROUNDS * smoothed_s
        if silent:
            self._window = self._minimum_bytes
            self._recovering = False

    def _increase(self, delivered_bytes: float, now_s: float) -> float:
        return self._datagram_bytes * delivered_bytes / self._window

    def _after_loss(self) -> float:
        return self.beta * self._window

    def _idle(self, pause_s: float) -> None:
        """Called after `pause_s` in which the window was not used, of a transfer or between two."""


_C = 0.4  # how fast the window grows, in datagrams per second cubed


class Cubic(Reno):
    """CUBIC: the window is a cubic function of the time since the last loss (RFC 9438).

    With the Reno-friendly region (section 4.3) and fast convergence (section 4.7), without
    HyStart++. Windows are in datagrams, as the RFC's constants require.
    """

    beta = 0.7
    steady_until_s = math.inf

    def __init__(self, *, datagram_bytes: int = DATAGRAM_BYTES) -> None:
        super().__init__(datagram_bytes=datagram_bytes)
        self._w_max = 0.0
        self._prior = 0.0  # the window before the last reduction
        self._epoch_s: float | None = None
        self._k_s = 0.0  # from the epoch's begin until the window is _w_max again
        self._estimate = 0.0  # the window that Reno would have

    def _increase(self, delivered_bytes: float, now_s: float) -> float:
        window = self._window / self._datagram_bytes
        if self._epoch_s is None:
            self._begin_epoch(window, now_s)
        assert self._epoch_s is not None
        acknowledged = delivered_bytes / self._datagram_bytes
        # Section 4.3: alpha makes the mean window that of Reno with its factor of a half.
        alpha = 3 * (1 - self.beta) / (1 + self.beta) if self._estimate < self._prior else 1.0
        self._estimate += alpha * acknowledged / window
        age_s = now_s - self._epoch_s
        if self._cubic(age_s) < self._estimate:
            return max(0.0, self._estimate - window) * self._datagram_bytes
        ahead_s = self.path.smoothed_rtt_s or 0.0
        target = min(max(self._cubic(age_s + ahead_s), window), 1.5 * window)
        return (target - window) / window * acknowledged * self._datagram_bytes

    def _cubic(self, age_s: float) -> float:
        return _C * (age_s - self._k_s) ** 3 + self._w_max

    def _begin_epoch(self, window: float, now_s: float) -> None:
        self._epoch_s = now_s
        self._estimate = window
        if window < self._w_max:
            self._k_s = math.cbrt((self._w_max - window) / _C)
        else:
            self._k_s = 0.0
            self._w_max = window

    def _after_loss(self) -> float:
        window = self._window / self._datagram_bytes
        # Whoever loses twice in a row gives up more (section 4.7).
        self._w_max = window * (1 + self.beta) / 2 if window < self._w_max else window
        self._prior = window
        self._epoch_s = None
        return self.beta * self._window

    def _idle(self, pause_s: float) -> None:
        # Section 5.8: time in which the application limits the flow does not count.
        if self._epoch_s is not None:
            self._epoch_s += pause_s
