"""TIMELY: the rate follows the gradient of the round-trip time (Mittal et al., SIGCOMM 2015).

Algorithm 1 with the paper's alpha, beta and hyper-active increase. Its times belong to 10 Gbit/s;
here they come from the path. t_low is 1.25 times the smallest round trip of 10 s plus 4 datagrams:
without these there is no unique fixed point (Zhu et al., CoNEXT 2016, section 4). t_high is twice
that, since switches drop; a step is a datagram per round trip. Rules of ours:

* The hyper-active increase also follows rounds with a queue of two datagrams at most. The step
  after a cut is not another one, and no cut goes below four fifths of what is delivered.
* The rate starts with 10 datagrams and doubles each round trip until one exceeds t_low.
* It falls by a fifth after a round with losses and a queue: a full one shows no gradient. It falls
  back to four fifths of an earlier value when it has grown without more being delivered.
"""

import math

from testbed.transport.congestion.base import (
    DATAGRAM_BYTES,
    DeliveryPlateau,
    Feedback,
    PathControl,
    Plateau,
)

_LOW_FACTOR = 1.25
_LOW_DATAGRAMS = 4
_IDLE_DATAGRAMS = 2
_HIGH_FACTOR = 2.0
_ALPHA, _BETA = 0.875, 0.8
_HYPERACTIVE_ROUNDS = _HYPERACTIVE_STEPS = 5
_LARGEST_CUT = 0.5
_START_PLATEAU = Plateau(growth=2.0, gain=1.25)
_PLATEAU = Plateau(growth=1.25, gain=1.1, patience=3)
_PLATEAU_CUT = 0.8
_OVERFLOW_CUT = 0.8
_FULL_CUT = 0.8


class Timely(PathControl):
    """Raises and lowers the rate according to the round trip."""

    min_rtt_window_s = 10.0
    steady_until_s = math.inf

    def __init__(self, *, datagram_bytes: int = DATAGRAM_BYTES) -> None:
        super().__init__(datagram_bytes=datagram_bytes)
        self._rate: float | None = None
        self.starting = True  # the rate doubles each round trip
        self._fell = False  # whether the last step was down
        self._fell_s = -math.inf  # data sent before says nothing about the present rate
        self._begin()

    @property
    def rate_bps(self) -> float:
        return math.inf if self._rate is None else self._rate

    @property
    def window_bytes(self) -> float:
        if self._rate is None:
            return self._initial_bytes
        return max(
            self._rate * self.t_high_s / 8 + self.path.report_bytes.value, self._initial_bytes
        )

    @property
    def t_low_s(self) -> float:
        return _LOW_FACTOR * self.path.min_rtt_s + _LOW_DATAGRAMS * self._datagram_s

    @property
    def _idle_rtt_s(self) -> float:
        return self.path.min_rtt_s + _IDLE_DATAGRAMS * self._datagram_s

    @property
    def _datagram_s(self) -> float:
        return self._datagram_bytes * 8 / self._rate if self._rate else math.inf

    @property
    def t_high_s(self) -> float:
        return _HIGH_FACTOR * self.t_low_s

    def on_transfer_begin(self, now_s: float) -> None:
        super().on_transfer_begin(now_s)
        self._begin()

    def _begin(self) -> None:
        self._previous_s: float | None = None
        self._difference_s = 0.0
        self._calm_rounds = 0
        self._round_rtt_s = math.inf  # the smallest of this round
        self._round_lost = False
        self._plateau = DeliveryPlateau()

    def on_feedback(self, feedback: Feedback) -> None:
        self.path.on_feedback(feedback)
        if self.path.latest_rtt_s is None:
            return
        self._round_rtt_s = min(self._round_rtt_s, self.path.latest_rtt_s)
        if feedback.lost_bytes and self.path.newest_lost_sent_s(feedback) >= self._fell_s:
            self._round_lost = True
        if not self.path.round_began:
            return
        rtt_s, self._round_rtt_s = self._round_rtt_s, math.inf
        if self._rate is None:
            self._rate = self._initial_bytes * 8 / rtt_s
        elif (enough_bps := self._plateau_bps(feedback)) is not None:
            self.starting = False
            self._fell_s = feedback.now_s
            enough_bps = max(enough_bps, self.path.delivery_rate_bps or 0.0)
            self._rate = max(enough_bps * _PLATEAU_CUT, self._floor_bps)
        elif self.starting:
            self._start(rtt_s, feedback)
        else:
            self._step(rtt_s, feedback)
        self._previous_s = rtt_s
        self._round_lost = False

    def _plateau_bps(self, feedback: Feedback) -> float | None:
        if feedback.app_limited or self._rate is None:
            return None
        plateau = _START_PLATEAU if self.starting else _PLATEAU
        return self._plateau.plateau_bps(self._rate, self.path.delivery_rate_bps, plateau)

    def _start(self, rtt_s: float, feedback: Feedback) -> None:
        assert self._rate is not None
        if rtt_s < self.t_low_s and not self._overflown:
            if not feedback.app_limited:
                self._rate *= 2
            return
        self.starting = False
        self._fell_s = feedback.now_s
        # The rate doubled before feedback showed the queue that it built.
        self._rate = max(self._rate / 2, self._floor_bps)

    def _step(self, rtt_s: float, feedback: Feedback) -> None:
        """Runs Algorithm 1 for one round trip."""
        assert self._rate is not None
        previous_s = rtt_s if self._previous_s is None else self._previous_s
        difference_s = rtt_s - previous_s
        self._difference_s += _ALPHA * (difference_s - self._difference_s)
        gradient = self._difference_s / self.path.min_rtt_s
        low_s = self.t_low_s
        high_s = self.t_high_s
        rate = self._rate
        if self._overflown:
            self._calm_rounds = 0
            rate *= _OVERFLOW_CUT
        elif rtt_s < low_s:
            if rtt_s > self._idle_rtt_s:
                self._calm_rounds = 0
            rate += self._rise_bps()
        elif rtt_s > high_s:
            self._calm_rounds = 0
            rate *= 1 - _BETA * (1 - high_s / rtt_s)
        elif gradient <= 0:
            rate += self._rise_bps()
        else:
            self._calm_rounds = 0
            rate *= max(1 - _BETA * gradient, _LARGEST_CUT)
        if rate < self._rate:
            if self._fell:
                self._fell = False
                return  # the round trips are of data that was sent before the rate fell
            # A queue means that the path was full, so what was delivered is what it carries.
            rate = max(rate, min(self._rate, _FULL_CUT * (self.path.delivery_rate_bps or 0.0)))
            self._fell = True
            self._fell_s = feedback.now_s
        elif feedback.app_limited:
            return  # the rate was not used up, so the round trip does not justify a higher one
        else:
            self._fell = False
        self._rate = max(rate, self._floor_bps)

    def _rise_bps(self) -> float:
        """A round trip that does not grow adds one step, after some such rounds five."""
        self._calm_rounds += 1
        if self._calm_rounds < _HYPERACTIVE_ROUNDS:
            return self._floor_bps
        return _HYPERACTIVE_STEPS * self._floor_bps

    @property
    def _overflown(self) -> bool:
        return self._round_lost and self.path.queued()

    @property
    def _floor_bps(self) -> float:
        """One datagram per round trip; at a lower rate there would be no samples."""
        return self._datagram_bytes * 8 / (self.path.smoothed_rtt_s or self.path.min_rtt_s)
