"""BBR and LTP: the data in flight are limited to what the path holds, as far as it is measured.

`bbr` is after version 1, bounded by losses as version 3 is (Cardwell et al., ACM Queue 14(5), 2016;
draft-cardwell-iccrg-bbr-congestion-control-00). Differences to the published version:

* Rounds that lose more than a fifth without a queue do not count for the bandwidth for up to 2 s;
  then STARTUP seeks it anew. The published rate decays to nothing.
* PROBE_RTT is shorter, and on a local network comes sooner: the published times are longer than
  whole transfers there. One datagram in a round trip is the slowest pace.
* What arrives between two feedbacks, or lies unread at a busy receiver, may be in flight, too.
* A flow of more than three initial windows keeps the queue shorter: an allowance of a product at
  most, a pace one per cent below the bandwidth, as Linux has, and phases that end without feedback.
* The first phase of the gain cycle comes from the clock, so that simulations can be repeated.
* A round that an application limits does not age the bandwidth.

Version 3 (draft-ietf-ccwg-bbr, sections 5.3.3, 5.5.9 and 5.5.10) bounds what losses show to be too
much, here where a queue explains them: more than 2 % of a round's. Without such losses all is as in
version 1; there is no ECN to heed.

* While it probes, what was in flight then becomes the bound (at least 0.7 products), and probing
  ends. Otherwise only 0.85 of the bound are used. Probing raises it by 1, 2, 4, ... datagrams.
* Outside of probing, such a round leaves 0.7 of bandwidth and data in flight until the next probe.
* A bounded flow probes as seldom as Reno would lose: after half as many rounds as datagrams are in
  flight (published: as many), 63 or 2 s at most. A probe without loss at two products lifts it.

LTP's formulas and constants (Chen et al., IWQoS 2023, arXiv 2305.04279) are not known to us. `ltp`
is `bbr` with assumptions of ours:

* Losses count as delivered while there is no queue: while the round trip is at most 1.25 times the
  smallest ever plus the time of 2 datagrams, and nearer to it than to the longest known.
* When the estimate has grown by half for three rounds without a tenth more being delivered, it
  falls back to four fifths of the earlier value, for queues that no round trip reveals.
* It is never more than ten times what was delivered in any of a transfer's last hundred rounds.
"""

import math
from enum import Enum

from testbed.transport.congestion.base import (
    DATAGRAM_BYTES,
    DeliveryPlateau,
    Feedback,
    MaxFilter,
    PathControl,
    Plateau,
)

STARTUP_GAIN = 2 / math.log(2)
PACING_SHARE = 0.99  # of the bandwidth
CYCLE = (1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
_WINDOW_GAIN = 2.0  # products in flight at most
_BANDWIDTH_ROUNDS = 10  # over which the largest bandwidth counts
_GROWTH = 1.25
_FULL_ROUNDS = 3
# How old the smallest round trip may be where it is longer than the second.
_LONG_WINDOW_S, _LONG_RTT_S = 10.0, 0.03
# Losses of more than this share of a round, without a queue, are ignored for so long.
_HEAVY = 0.2
_MOST_EXCUSED_S = 2.0
_UNLEARNT = 0.9  # below this share of the former bandwidth it is sought anew after such losses
_MINIMUM_WINDOW = 4  # datagrams; also what PROBE_RTT leaves in flight
# Of version 3: the lost share of a round that is too much, what a loss leaves, the share of the
# bound that is used while it does not probe, and when it probes at the latest.
_TOO_MUCH, _BETA, _USED_SHARE = 0.02, 0.7, 0.85
_MOST_ROUNDS, _MOST_WAIT_S = 63, 2.0
_CRUISE, _REFILL = 2, len(CYCLE) - 1  # phases: the first of gain 1, and that before the probe
_BATCH = 3  # datagrams in flight above the product that are no queue


class BbrState(Enum):
    STARTUP = 0
    DRAIN = 1
    PROBE_BW = 2
    PROBE_RTT = 3


class Bbr(PathControl):
    """BBR-style: paces at the measured bandwidth; in flight is at most what the path holds."""

    min_rtt_window_s = 1.0  # on a local network
    probe_rtt_s = 0.01  # for how long PROBE_RTT lasts, or for a round trip
    bounds_losses = True  # as version 3 does; version 1 and LTP do not
    excuses_losses = True  # without a queue they do not lower the bandwidth; no version has this

    def __init__(self, *, datagram_bytes: int = DATAGRAM_BYTES) -> None:
        super().__init__(datagram_bytes=datagram_bytes)
        self.state = BbrState.STARTUP
        self._minimum_bytes = float(_MINIMUM_WINDOW * datagram_bytes)
        self._bandwidths = MaxFilter(_BANDWIDTH_ROUNDS)
        self._round_lost = self._round_settled = 0  # bytes, of this round
        self._telling_rounds = 0  # those that may lower the bandwidth
        self._lossy_from_s: float | None = None  # since when rounds lose much without a queue
        self._before_bps = 0.0  # the bandwidth then
        self._full_bps = 0.0
        self._full_rounds = 0
        self._filled = False  # whether STARTUP has found the path's bandwidth
        self._phase = 0
        self._phase_from_s = 0.0
        self._lost_in_phase = False
        self._most_bytes = math.inf  # in flight, since more was too much
        self._raise_bytes = float(datagram_bytes)  # by which a probe raises that after a round
        self._short_bytes = self._short_bps = math.inf  # until the next probe
        self._bounding_from_s = math.inf  # data sent before say nothing about PROBE_BW
        self._probed_s, self._probed_round = 0.0, 0  # when the latest probe ended
        self._probe_rtt_until_s: float | None = None
        self._restarted = False

    @property
    def bandwidth_bps(self) -> float:
        return min(self._bandwidths.value, self._short_bps)

    @property
    def bdp_bytes(self) -> float:
        """The bandwidth-delay product; 0 before the first samples."""
        if math.isinf(self.path.min_rtt_s):
            return 0.0
        return self.bandwidth_bps * self.path.min_rtt_s / 8

    @property
    def pacing_gain(self) -> float:
        if self.state is BbrState.STARTUP:
            return STARTUP_GAIN
        if self.state is BbrState.DRAIN:
            return 1 / STARTUP_GAIN
        if self.state is BbrState.PROBE_BW and not self._restarted:
            return CYCLE[self._phase]
        return 1.0

    @property
    def rate_bps(self) -> float:
        if self.bandwidth_bps:
            share = PACING_SHARE if self._filled and self._is_large else 1.0
            return max(share * self.pacing_gain * self.bandwidth_bps, self._least_bps)
        if self.path.latest_rtt_s is None:
            return math.inf
        return STARTUP_GAIN * self._first_window_bytes * 8 / self.path.latest_rtt_s

    @property
    def _first_window_bytes(self) -> float:
        """It counts before a rate is known; each reply of an always busy receiver doubles it."""
        unread = min(2 * self.path.unread_bytes.value, self.receive_buffer_bytes)
        return self._initial_bytes + unread

    @property
    def _least_bps(self) -> float:
        """One datagram in a round trip is the slowest pace that relieves the path."""
        rtt_s = self.path.smoothed_rtt_s
        return 0.0 if rtt_s is None else self._datagram_bytes * 8 / rtt_s

    @property
    def window_bytes(self) -> float:
        if not self.bdp_bytes:
            return self._first_window_bytes
        if self.state is BbrState.PROBE_RTT:
            return self._minimum_bytes
        return max(min(self._model_bytes, self._bound_bytes), self._minimum_bytes)

    @property
    def _bound_bytes(self) -> float:
        probes = self.state is not BbrState.PROBE_BW or self._phase in (0, _REFILL)
        return min(self._most_bytes * (1.0 if probes else _USED_SHARE), self._short_bytes)

    @property
    def _model_bytes(self) -> float:
        gain = _WINDOW_GAIN if self._filled else STARTUP_GAIN
        report = self.path.report_bytes.value
        if self._is_large:
            # A report after a silence covers more, but says nothing about the next ones.
            report = min(report, self.bdp_bytes)
        window = gain * self.bdp_bytes
        if unread := self._unread_bytes:
            window = max(window, min(window + report + unread, self.receive_buffer_bytes))
        else:
            window += report
        return window if self._filled else max(window, self._initial_bytes)

    def on_transfer_begin(self, now_s: float) -> None:
        super().on_transfer_begin(now_s)
        self._restarted = True
        if self.state is BbrState.PROBE_RTT:
            self._leave_probe_rtt(now_s)  # nothing is in flight, so the queue is empty already

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        super().on_sent(sent_bytes, now_s)
        if self._cruises and self._phase_is_over(now_s):
            self._begin_phase(self._phase + 1, now_s)

    @property
    def _cruises(self) -> bool:
        """The phase ends without feedback."""
        is_probing = self.state is BbrState.PROBE_BW and self._is_large
        return is_probing and CYCLE[self._phase] == 1

    @property
    def steady_until_s(self) -> float:  # type: ignore[override]
        """The phases that lie before the next one of another gain or bound take so long."""
        if not self._cruises:
            return math.inf
        is_bounded = not math.isinf(min(self._most_bytes, self._short_bytes, self._short_bps))
        end = _REFILL if is_bounded and self._phase < _REFILL else len(CYCLE)
        return self._phase_from_s + (end - self._phase) * self.path.min_rtt_s

    def on_feedback(self, feedback: Feedback) -> None:
        self.path.on_feedback(feedback)
        self._lost_in_phase |= feedback.lost_bytes > 0
        is_long = self.path.base_rtt_s > _LONG_RTT_S
        self.path.min_rtt_window_s = _LONG_WINDOW_S if is_long else self.min_rtt_window_s
        self._count_losses(feedback)
        sample_bps = self._bandwidth_sample(feedback)
        if self.path.round_trip_fell and not self._filled:
            # The earlier delays were not the path's, and so were the rates over them.
            self._bandwidths.clear()
            sample_bps = None
        limited = feedback.app_limited
        if feedback.waited:
            # The rate is that of a receiver which is busy, unless the path loses much meanwhile.
            settled = feedback.lost_bytes + feedback.delivered_bytes
            limited = limited or feedback.lost_bytes <= _HEAVY * settled
            sample_bps = sample_bps if self.bandwidth_bps else None
        if sample_bps is not None and (not limited or sample_bps > self.bandwidth_bps):
            self._bandwidths.add(sample_bps, self._telling_rounds)
        if not self._filled and self.path.round_began and not limited:
            self._check_filled()
        self._advance(feedback)
        if feedback.delivered_bytes:
            self._restarted = False

    def _count_losses(self, feedback: Feedback) -> None:
        self._round_lost += feedback.lost_bytes
        self._round_settled += feedback.lost_bytes + feedback.delivered_bytes
        if not self.path.round_began:
            return
        if self.bounds_losses and self.state is BbrState.PROBE_BW:
            self._bound(feedback)
        much = self._round_lost > _HEAVY * self._round_settled
        heavy = self.excuses_losses and much and not self.path.queued()
        self._round_lost = self._round_settled = 0
        if heavy and self._lossy_from_s is None:
            self._lossy_from_s = feedback.now_s
            self._before_bps = self.bandwidth_bps
        elif not heavy and self._lossy_from_s is not None:
            self._lossy_from_s = None
            if self._filled and self.bandwidth_bps < _UNLEARNT * self._before_bps:
                self.state = BbrState.STARTUP
                self._filled = False
                self._full_bps, self._full_rounds = self.bandwidth_bps, 0
        lossy_from_s = self._lossy_from_s
        if lossy_from_s is None or feedback.now_s - lossy_from_s >= _MOST_EXCUSED_S:
            self._telling_rounds += not feedback.app_limited

    def _bound(self, feedback: Feedback) -> None:
        """Follows the losses of a round that has ended."""
        probes = self.state is BbrState.PROBE_BW and self._phase == 0
        in_flight = feedback.in_flight_bytes + feedback.delivered_bytes + feedback.lost_bytes
        too_much = self._round_lost > _TOO_MUCH * self._round_settled
        fresh = self.path.newest_lost_sent_s(feedback) >= self._bounding_from_s
        if too_much and fresh and self.path.queued():
            if probes or math.isinf(self._most_bytes):
                self._most_bytes = max(float(in_flight), _BETA * self.bdp_bytes)
            if not probes:
                delivered_bytes = float(self._round_settled - self._round_lost)
                self._short_bytes = max(_BETA * self.window_bytes, delivered_bytes)
                latest_bps = self.path.delivery_rate_bps or 0.0
                self._short_bps = max(_BETA * self.bandwidth_bps, latest_bps)
            return
        if not probes or math.isinf(self._most_bytes):
            return
        if in_flight >= self._most_bytes - self._raise_bytes:
            self._most_bytes += self._raise_bytes
            self._raise_bytes *= 2
        if self._most_bytes > _WINDOW_GAIN * self.bdp_bytes:
            self._most_bytes = math.inf

    def _bandwidth_sample(self, feedback: Feedback) -> float | None:
        return self.path.delivery_rate_bps

    def _check_filled(self) -> None:
        if self.bandwidth_bps >= _GROWTH * self._full_bps:
            self._full_bps = self.bandwidth_bps
            self._full_rounds = 0
            return
        self._full_rounds += 1
        self._filled = self._full_rounds >= _FULL_ROUNDS

    def _advance(self, feedback: Feedback) -> None:
        now_s = feedback.now_s
        if self.state is BbrState.STARTUP and self._filled:
            self.state = BbrState.DRAIN
        if self.state is BbrState.DRAIN and feedback.in_flight_bytes <= self._drained_bytes:
            self._probe_bandwidth(now_s)
        if self.state is BbrState.PROBE_BW:
            self._cycle(feedback)
        if self.path.min_rtt_expired and not self._restarted:
            self.state = BbrState.PROBE_RTT
            self._probe_rtt_until_s = None
        if self.state is BbrState.PROBE_RTT:
            self._probe_rtt(feedback)

    @property
    def _unread_bytes(self) -> float:
        """So much may lie at a busy receiver, beside what is on the path."""
        return self.bandwidth_bps * self.path.unread_s.value / 8

    @property
    def _drained_bytes(self) -> float:
        """So much is in flight right after a feedback when there is no queue."""
        batch = _BATCH * self._datagram_bytes if self._is_large else self.path.report_bytes.value
        return self.bdp_bytes + self._unread_bytes + batch

    @property
    def _is_large(self) -> bool:
        """The path holds more of this flow than three first windows."""
        return self.bdp_bytes > 3 * self._initial_bytes

    def _probe_bandwidth(self, now_s: float) -> None:
        self.state, self._bounding_from_s = BbrState.PROBE_BW, now_s
        # Any phase except the one that drains.
        self._begin_phase(2 + int(now_s * 1e6) % (len(CYCLE) - 1), now_s)

    def _cycle(self, feedback: Feedback) -> None:
        now_s, in_flight = feedback.now_s, feedback.in_flight_bytes
        over = self._phase_is_over(now_s)
        gain = CYCLE[self._phase]
        if gain > 1:
            settled = feedback.delivered_bytes + feedback.lost_bytes
            # Probing lasts until the surplus is in flight, unless that causes losses.
            reached = in_flight + settled >= gain * self.bdp_bytes or feedback.app_limited
            over = over and (reached or self._lost_in_phase)
        elif gain < 1:
            over = over or in_flight <= self._drained_bytes
        if over:
            self._begin_phase(self._phase + 1, now_s)

    def _phase_is_over(self, now_s: float) -> bool:
        if self._phase == _CRUISE and not math.isinf(self._most_bytes):
            rounds = min(self._bound_bytes / 2 / self._datagram_bytes, _MOST_ROUNDS)
            waits = self.path.rounds - self._probed_round < rounds
            if waits and now_s - self._probed_s < _MOST_WAIT_S:
                return False
        return now_s - self._phase_from_s > self.path.min_rtt_s

    def _begin_phase(self, phase: int, now_s: float) -> None:
        self._phase = phase % len(CYCLE)
        self._phase_from_s = now_s
        self._lost_in_phase = False
        if self._phase == 1:
            self._probed_s, self._probed_round = now_s, self.path.rounds
        elif self._phase == _REFILL:
            self._short_bytes = self._short_bps = math.inf
            self._raise_bytes = float(self._datagram_bytes)

    def _probe_rtt(self, feedback: Feedback) -> None:
        if self._probe_rtt_until_s is None:
            if feedback.in_flight_bytes <= self._minimum_bytes:
                shortest_s = max(self.probe_rtt_s, self.path.min_rtt_s)
                self._probe_rtt_until_s = feedback.now_s + shortest_s
        elif feedback.now_s >= self._probe_rtt_until_s:
            self._leave_probe_rtt(feedback.now_s)

    def _leave_probe_rtt(self, now_s: float) -> None:
        if self._filled:
            self._probe_bandwidth(now_s)
        else:
            self.state = BbrState.STARTUP


_PLATEAU = Plateau(growth=1.5, gain=1.1, patience=3)
_PLATEAU_CUT = 0.8
# The estimate is at most so many times what was delivered in any of the last rounds.
_MOST, _MEMORY_ROUNDS = 10.0, 100
# A longer round trip than the smallest times this, plus the time of so many datagrams, is a queue.
_DELAY_FACTOR = 1.25
_SLACK_DATAGRAMS = 2


class Ltp(Bbr):
    """LTP-style: a bandwidth-delay estimate that does not treat loss as congestion."""

    steady_until_s = Bbr.steady_until_s
    bounds_losses = False

    _excused_from_s = -math.inf  # losses of data sent before count as losses

    def on_transfer_begin(self, now_s: float) -> None:
        super().on_transfer_begin(now_s)
        self._plateau = DeliveryPlateau()
        self._most_delivered = MaxFilter(_MEMORY_ROUNDS)

    def _bandwidth_sample(self, feedback: Feedback) -> float | None:
        delivered_bps = self.path.delivery_rate_bps
        if self.path.round_began and self._filled and not feedback.app_limited:
            enough_bps = self._plateau.plateau_bps(self.bandwidth_bps, delivered_bps, _PLATEAU)
            if enough_bps is not None:
                self._bandwidths.clear()
                self._excused_from_s = feedback.now_s
                return enough_bps * _PLATEAU_CUT
        sent_s = self.path.newest_sent_s(feedback)
        excused = sent_s is not None and sent_s >= self._excused_from_s and not self._queued
        arrived_bps = self.path.arrival_rate_bps
        if delivered_bps is None or arrived_bps is None:
            return None
        self._most_delivered.add(delivered_bps, self.path.rounds)
        return min(arrived_bps, _MOST * self._most_delivered.value) if excused else delivered_bps

    @property
    def _queued(self) -> bool:
        """The last round trip shows a queue, or the last round a long one."""
        latest_s = self.path.latest_rtt_s
        if latest_s is None or not self.bandwidth_bps:
            return self.path.queued()
        slack_s = _SLACK_DATAGRAMS * self._datagram_bytes * 8 / self.bandwidth_bps
        return self.path.queued() or latest_s > _DELAY_FACTOR * self.path.base_rtt_s + slack_s
