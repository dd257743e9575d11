"""Each congestion control, fed with hand-made feedback; and what they measure."""

import itertools
import math
from typing import Any

import pytest

from testbed.transport.congestion import (
    CONGESTION_CONTROLS,
    Bbr,
    Cubic,
    Ltp,
    Reno,
    Timely,
)
from testbed.transport.congestion.base import DeliveryPlateau, Feedback, PathMonitor, Plateau
from testbed.transport.congestion.bbr import PACING_SHARE, STARTUP_GAIN, BbrState
from testbed.transport.presets import NEED_RATE
from tests.shared.entries import every

SIZE = 1514
RTT_S = 100e-6  # of a local network
ALL = every(CONGESTION_CONTROLS, "fixed", rate_bps=50e6, datagram_bytes=SIZE)


def report(now_s, delivered_bytes=SIZE, **more):
    sizes = {"lost_bytes": 0, "in_flight_bytes": 0}
    return Feedback(now_s=now_s, delivered_bytes=delivered_bytes, **{**sizes, **more})


class Rounds:
    """Answers whole windows: each round, what the window admits is sent and then reported."""

    def __init__(self, control: Any, *, rtt_s: float = RTT_S) -> None:
        self.control = control
        self.now_s = 5.0
        self.rtt_s = rtt_s
        self.pause(0.0)

    def pause(self, length_s: float) -> None:
        """Lets this time pass until the next transfer begins."""
        self.now_s += length_s
        self.control.on_transfer_begin(self.now_s)

    def round(self, *, lost: int = 0, sent: int | None = None, limited: bool = False) -> None:
        """One round trip in which `lost` datagrams are lost."""
        count = int(self.control.window_bytes // SIZE) if sent is None else sent
        sent_s = self.now_s
        self.control.on_sent(count * SIZE, sent_s)
        self.now_s += self.rtt_s
        delivered = count - lost
        self.control.on_feedback(
            report(
                self.now_s,
                delivered * SIZE,
                lost_bytes=lost * SIZE,
                rtt_s=self.rtt_s if delivered else None,
                app_limited=limited,
                newest_lost_sent_s=sent_s if lost else None,
            )
        )

    def repeat(self, times: int, **settings: Any) -> None:
        for _ in range(times):
            self.round(**settings)

    @property
    def window(self) -> float:
        """Of Reno and CUBIC, in datagrams."""
        return float(self.control._window / SIZE)


# What they have in common: options, and measurements.


def test_the_delivery_rate_is_not_fooled_by_reports_that_come_together():
    path = PathMonitor()
    path.on_sent(0.0)
    for now_s, sent_s in ((0.010, 0.0), (0.0101, 0.005), (0.0102, 0.010), (0.0201, 0.0101)):
        path.on_feedback(report(now_s, 10_000, in_flight_bytes=10_000, rtt_s=now_s - sent_s))
        assert path.delivery_rate_bps is None or path.delivery_rate_bps <= 30_000 * 8 / 0.01 * 1.01


def test_rates_are_not_measured_across_a_pause():
    path = PathMonitor()
    for begin_s in (0.0, 100.0):
        path.on_transfer_begin(begin_s)
        path.on_sent(begin_s)
        path.on_feedback(report(begin_s + 0.01, 10_000, lost_bytes=5_000, rtt_s=0.01))
        assert path.delivery_rate_bps == pytest.approx(8e6)
        assert path.arrival_rate_bps == pytest.approx(12e6)


def test_rates_are_not_measured_across_an_answer_that_lay_unread():
    path = PathMonitor()
    path.on_sent(0.0)
    common = {"delivered_bytes": 10_000, "in_flight_bytes": 10_000}
    path.on_feedback(report(1.5, **common))  # when its datagrams were sent is not said
    assert path.delivery_rate_bps is None
    path.on_sent(1.5)
    path.on_feedback(report(1.501, rtt_s=1.501, **common))  # of what went before
    assert path.delivery_rate_bps is None
    path.on_feedback(report(1.51, rtt_s=0.01, **common))
    assert path.delivery_rate_bps == pytest.approx(20_000 * 8 / 0.01)


def test_round_trips_of_microseconds_are_kept_as_they_are():
    path = PathMonitor()
    for rtt_s in (52e-6, 48e-6, 61e-6, 0.0):
        path.on_feedback(report(1.0, 1, in_flight_bytes=1, rtt_s=rtt_s))
        assert path.min_rtt_s == pytest.approx(min(path.min_rtt_s, max(rtt_s, 1e-6)))
    assert path.min_rtt_s == 1e-6
    assert 40e-6 < (path.smoothed_rtt_s or 0) < 61e-6


@pytest.mark.parametrize("text", ALL)
def test_a_path_whose_round_trip_is_not_told_gets_a_finite_window(text):
    control = CONGESTION_CONTROLS.create(text, rate_bps=50e6, datagram_bytes=SIZE)
    control.on_transfer_begin(0.0)
    for step in range(1, 20):
        control.on_sent(10 * SIZE, step * 0.01 - 0.005)
        control.on_feedback(report(step * 0.01, 10 * SIZE, newest_sent_s=step * 0.01 - 0.005))
    assert text in NEED_RATE or SIZE <= control.window_bytes < math.inf
    assert 0 < control.rate_bps < math.inf


def test_the_delay_of_a_receiver_that_was_busy_does_not_stay_in_the_round_trip():
    path = PathMonitor()

    def answer(at_s, *, waited_s=None, rtt_s=None):
        path.on_feedback(report(at_s, rtt_s=rtt_s, newest_sent_s=at_s - (waited_s or rtt_s)))
        return path.smoothed_rtt_s

    assert answer(1.0, waited_s=1.0) == 1.0
    assert answer(2.0, waited_s=2.0) == 1.0
    assert answer(3.0, waited_s=0.1) == pytest.approx(0.1)  # the path's is no longer
    assert answer(4.0, rtt_s=0.004) == path.base_rtt_s == 0.004
    assert not path.queued()
    assert answer(5.0, waited_s=1.0) == 0.004
    assert answer(6.0, rtt_s=0.002) == pytest.approx(0.004 + (0.002 - 0.004) / 8)


@pytest.mark.parametrize(("loss", "futile"), [(0.0, False), (0.5, False), (None, True)])
def test_growth_is_futile_behind_a_full_queue_and_not_under_random_loss(loss, futile):
    check = DeliveryPlateau()
    verdicts = []
    rates = [100.0 * 1.1**n for n in range(12)]
    for before, rate in zip([rates[0], *rates], rates, strict=False):
        delivered = 100.0 if loss is None else before * (1 - loss)
        verdicts.append(check.plateau_bps(rate, delivered, Plateau(growth=1.25, gain=1.1)))
    assert any(verdict is not None for verdict in verdicts) == futile


# Reno and CUBIC.


# Each with the fraction of its window that a loss leaves.
EACH = pytest.mark.parametrize(("kind", "beta"), [(Reno, 0.5), (Cubic, 0.7)])


@EACH
def test_a_loss_cuts_the_window_by_the_specified_factor_once_per_round_trip(kind, beta):
    control = kind()
    rounds = Rounds(control)
    rounds.repeat(3)
    sent_s = rounds.now_s
    for late_s in (RTT_S, 1.2 * RTT_S, 1.9 * RTT_S):  # three reports about the same flight
        control.on_feedback(
            report(
                sent_s + late_s,
                lost_bytes=SIZE,
                in_flight_bytes=70 * SIZE,
                rtt_s=late_s,
                newest_lost_sent_s=sent_s,
            )
        )
        assert rounds.window == pytest.approx(80 * beta)
    assert not control.slow_start
    rounds.now_s = sent_s + 2 * RTT_S
    rounds.round(lost=1)  # sent after the cut: a loss of its own
    assert rounds.window == pytest.approx(80 * beta**2)


@EACH
def test_when_nothing_arrives_the_window_falls_to_two_datagrams_and_stays_open(kind, beta):
    control = kind()
    rounds = Rounds(control)
    rounds.repeat(6)
    for _ in range(40):
        rounds.round(lost=int(rounds.window))
        assert rounds.window >= 2
    assert rounds.window == 2
    assert math.isfinite(control.rate_bps)
    assert control.rate_bps > 0
    rounds.round()
    assert rounds.window > 2  # and it recovers at once


@EACH
def test_a_window_that_is_not_used_does_not_grow(kind, beta):
    rounds = Rounds(kind())
    rounds.round()
    rounds.round(sent=3)  # the round before has shown that there is room
    before = rounds.window
    rounds.repeat(20, sent=3)
    rounds.round(sent=20, limited=True)
    assert rounds.window == before


@EACH
def test_a_pause_keeps_what_was_learnt_and_the_restart_is_paced(kind, beta):
    control = kind()
    rounds = Rounds(control)
    rounds.repeat(4)
    rounds.round(lost=1)
    window_bytes, threshold_bytes = control.window_bytes, control._threshold
    rounds.pause(30.0)
    assert control.window_bytes == window_bytes
    assert control._threshold == threshold_bytes
    assert control.path.min_rtt_s == RTT_S
    # The first window is spread over most of a round trip.
    assert control._window * 8 / control.rate_bps == pytest.approx(RTT_S / 1.05)
    rounds.round(lost=1)  # a loss after the pause counts, whatever happened before it
    assert rounds.window < window_bytes / SIZE


@EACH
def test_the_pace_follows_a_round_trip_that_falls_because_the_queue_is_gone(kind, beta):
    control = kind()
    rounds = Rounds(control, rtt_s=2 * RTT_S)
    rounds.repeat(5)
    rounds.round(lost=1)
    rounds.rtt_s = RTT_S
    rounds.round()
    assert control.rate_bps == pytest.approx(1.05 * rounds.window * SIZE * 8 / RTT_S)


def test_reno_adds_one_datagram_each_round_trip_after_a_loss():
    rounds = Rounds(Reno())
    rounds.repeat(3)
    rounds.round(lost=1)
    windows = []
    for _ in range(5):
        rounds.round()
        windows.append(rounds.window)
    growth = [later - earlier for earlier, later in itertools.pairwise(windows)]
    assert all(0.95 < step <= 1.0 for step in growth)


def test_cubic_follows_the_function_of_the_rfc_on_a_long_path():
    rtt_s = 0.1
    rounds = Rounds(Cubic(), rtt_s=rtt_s)
    rounds.repeat(6)
    rounds.round(lost=1)
    w_max, start = 640.0, 640 * 0.7
    k_s = ((w_max - start) / 0.4) ** (1 / 3)
    rounds.round()  # the epoch begins with the first growth
    began_s = rounds.now_s
    while rounds.now_s < began_s + 1.3 * k_s:
        expected = 0.4 * (rounds.now_s + rtt_s - began_s - k_s) ** 3 + w_max
        assert rounds.window == pytest.approx(expected, rel=0.02)
        rounds.round()


def test_cubic_aims_lower_after_two_losses():
    rounds = Rounds(Cubic())
    rounds.repeat(4)
    rounds.repeat(2, lost=1)
    assert rounds.control._w_max == pytest.approx(112 * (1 + 0.7) / 2)


def test_cubic_does_not_count_a_pause_as_time_since_the_loss():
    rounds = Rounds(Cubic(), rtt_s=0.05)
    rounds.repeat(5)
    rounds.round(lost=1)
    rounds.repeat(5)
    before = rounds.window
    rounds.pause(60.0)
    rounds.round()
    assert rounds.window < 1.1 * before


@EACH
def test_beyond_the_window_goes_what_usually_arrives_between_two_answers(kind, beta):
    control = kind()
    rounds = Rounds(control)
    rounds.repeat(4)  # each answer covers all
    assert control.window_bytes <= 1.75 * control._window
    for number in range(30):
        sent_s = rounds.now_s + number * 1e-5 - RTT_S
        control.on_feedback(report(sent_s + RTT_S, in_flight_bytes=99 * SIZE, rtt_s=RTT_S))
    assert control._window < control.window_bytes <= control._window + 1.1 * SIZE


@EACH
def test_a_timer_that_ends_soon_after_an_answer_leaves_two_datagrams(kind, beta):
    rounds = Rounds(kind())
    rounds.repeat(6)
    before = rounds.window
    lost = report(rounds.now_s + RTT_S, 0, lost_bytes=40 * SIZE, timed_out=True)
    rounds.control.on_feedback(lost)
    assert rounds.window == 2 and rounds.control.slow_start
    rounds.repeat(12)
    assert 0.9 * beta * before < rounds.window < 2 * before


@EACH
def test_a_pause_within_a_transfer_is_no_silence_of_the_path(kind, beta):
    rounds = Rounds(kind())
    rounds.repeat(4)
    before = rounds.window
    rounds.now_s += 60.0
    rounds.round(lost=int(before))
    assert rounds.window == pytest.approx(beta * before)


def test_cubic_does_not_count_time_in_which_little_was_sent_as_time_since_the_loss():
    rounds = Rounds(Cubic(), rtt_s=0.05)
    rounds.repeat(5)
    rounds.round(lost=1)
    rounds.repeat(5)
    before = rounds.window
    rounds.repeat(600, sent=3, limited=True)
    assert rounds.window == pytest.approx(before, rel=0.01)
    rounds.repeat(2)
    assert before < rounds.window < 1.1 * before


# TIMELY.


class OfRoundNumbers(Timely):
    t_low_s, t_high_s, _floor_bps = 2e-3, 4e-3, 1e6


def timely() -> Rounds:
    """Past its start, at 100 Mbit/s, with thresholds of 2 and 4 ms and steps of 1 Mbit/s."""
    control = OfRoundNumbers()
    rounds = Rounds(control, rtt_s=1e-3)
    rounds.round(sent=10)
    control.starting = False
    control._rate = 100e6
    control._previous_s = 1e-3
    return rounds


@pytest.mark.parametrize(
    ("rtts_s", "rate_bps"),
    [
        ([1e-3], 101e6),
        ([8e-3], 100e6 * (1 - 0.8 * (1 - 4 / 8))),
        ([2.5e-3], 100e6 * 0.5),  # no cut is deeper than a half
        ([2.5e-3, 2.5e-3], 50e6),  # of data sent before the rate fell
        ([2.5e-3] * 3, 50e6 * (1 - 0.8 * 0.125**2 * 1.5 * 0.875)),
    ],
)
def test_timely_steps_as_algorithm_1_says(rtts_s, rate_bps):
    rounds = timely()
    for rtt_s in rtts_s:
        rounds.rtt_s = rtt_s
        rounds.round(sent=10)
    assert rounds.control.rate_bps == pytest.approx(rate_bps)


def test_timely_s_hyperactive_increase_is_five_steps():
    rounds = timely()
    rates = []
    rounds.rtt_s = 2.5e-3
    rounds.round(sent=100)
    for n in range(9):
        rounds.rtt_s = 2.4e-3 - n * 1e-5
        rounds.round(sent=100)
        rates.append(rounds.control.rate_bps)
    steps = [later - earlier for earlier, later in itertools.pairwise(rates)]
    assert steps[1:] == pytest.approx([1e6] * 4 + [5e6] * 3)


def test_timely_ignores_losses_without_a_queue_and_heeds_them_with_one():
    rounds = timely()
    rounds.round(sent=10, lost=3)
    assert rounds.control.rate_bps == pytest.approx(101e6)
    rounds.rtt_s = 3e-3
    rounds.round(sent=10, lost=3)
    assert rounds.control.rate_bps == pytest.approx(101e6 * 0.8)


def test_timely_doubles_its_rate_at_the_start_until_a_queue_shows():
    control = Timely()
    rounds = Rounds(control, rtt_s=1e-3)
    rounds.round(sent=10)
    rates = [control.rate_bps]
    for n in range(4):
        rounds.round(sent=10 * 2**n)
        rates.append(control.rate_bps)
    assert [rate / rates[0] for rate in rates] == pytest.approx([1, 2, 4, 8, 16])
    rounds.rtt_s = 2e-3
    rounds.round(sent=320)
    assert control.rate_bps == pytest.approx(rates[-1] / 2)
    assert not control.starting


def test_timely_keeps_its_rate_over_a_pause_and_takes_no_gradient_across_it():
    rounds = timely()
    rounds.rtt_s = 3e-3
    rounds.round(sent=100)
    rate_bps = rounds.control.rate_bps
    rounds.pause(10.0)
    assert rounds.control.rate_bps == rate_bps
    rounds.rtt_s = 3.9e-3
    rounds.round(sent=100)
    assert rounds.control.rate_bps == pytest.approx(rate_bps + 1e6)


# BBR and LTP.


def filled(kind: type[Bbr], *, sent: int = 100) -> Rounds:
    """A model that has found 100 datagrams per millisecond."""
    rounds = Rounds(kind(), rtt_s=1e-3)
    rounds.repeat(8, sent=sent)
    return rounds


@pytest.mark.parametrize("kind", [Bbr, Ltp])
def test_bbr_goes_through_its_states(kind):
    control = kind()
    rounds = Rounds(control, rtt_s=1e-3)
    sizes = [10, 20, 40, 80, 120, 120, 120, 120]
    states = []
    for size in sizes:
        assert control.pacing_gain == pytest.approx(2 / math.log(2))
        rounds.round(sent=size)
        states.append(control.state)
    # In one step through DRAIN: nothing is in flight between these rounds.
    assert states == [BbrState.STARTUP] * 7 + [BbrState.PROBE_BW]
    assert control.bandwidth_bps == pytest.approx(120 * SIZE * 8 / 1e-3)
    assert control.bdp_bytes == pytest.approx(120 * SIZE)
    gains = []
    for _ in range(16):
        rounds.round(sent=120, lost=control.pacing_gain > 1)  # probing overflows the queue
        rounds.now_s += 0.1e-3
        gains.append(control.pacing_gain)
    assert {1.25, 0.75, 1.0} == set(gains)
    assert gains[gains.index(1.25) + 1] == 0.75


def test_bbr_s_window_is_twice_the_product_and_what_one_report_settles():
    control = filled(Bbr).control
    assert control.window_bytes == pytest.approx((2 * 100 + 100) * SIZE)


def test_bbr_forgets_a_bandwidth_that_was_measured_over_the_delay_of_a_busy_receiver():
    rounds = Rounds(Bbr(datagram_bytes=SIZE), rtt_s=1.0)
    rounds.round(sent=10, lost=9)
    assert rounds.control.bandwidth_bps == pytest.approx(SIZE * 8 / 1.0)
    rounds.rtt_s = 0.01
    rounds.round(sent=10, lost=9)
    assert rounds.control.bandwidth_bps == 0
    assert rounds.control.rate_bps == pytest.approx(STARTUP_GAIN * 10 * SIZE * 8 / 0.01)


def test_bbr_counts_a_limited_sample_only_if_it_is_larger():
    rounds = filled(Bbr)
    bandwidth_bps = rounds.control.bandwidth_bps
    rounds.repeat(20, sent=5, limited=True)
    assert rounds.control.bandwidth_bps == bandwidth_bps
    rounds.round(sent=200, limited=True)
    assert rounds.control.bandwidth_bps == pytest.approx(2 * bandwidth_bps)


def test_bbr_does_not_forget_its_bandwidth_while_little_is_sent():
    rounds = filled(Bbr)
    rounds.repeat(20, sent=5, limited=True)
    rounds.round(sent=60)
    assert rounds.control.bandwidth_bps == pytest.approx(100 * SIZE * 8 / 1e-3)


def overflown(kind: type[Bbr], *, lost: int = 5, rtt_s: float = 2e-3) -> Rounds:
    """Past its start, and then a round of 200 of which these are lost."""
    rounds = filled(kind)
    for _ in range(20):
        if rounds.control._phase != 2:
            rounds.round(sent=100)
            rounds.now_s += 1e-4
    rounds.rtt_s = rtt_s
    rounds.round(sent=200, lost=lost)
    return rounds


@pytest.mark.parametrize(
    ("kind", "lost", "rtt_s", "bounded"),
    [(Bbr, 5, 2e-3, True), (Bbr, 3, 2e-3, False), (Bbr, 5, 1e-3, False), (Ltp, 5, 2e-3, False)],
)
def test_bbr_is_bounded_by_losses_of_over_two_per_cent_behind_a_queue(kind, lost, rtt_s, bounded):
    rounds = overflown(kind, lost=lost, rtt_s=rtt_s)
    # Of what it was.
    assert (rounds.control.window_bytes <= 0.7 * 300 * SIZE) == bounded


def test_a_bounded_bbr_probes_after_as_many_rounds_as_reno_and_raises_the_bound_by_it():
    rounds = overflown(Bbr)
    control, waited = rounds.control, 0
    bound = control._most_bytes
    assert bound == 200 * SIZE
    while control.pacing_gain <= 1 and waited < 100:
        assert control.window_bytes <= 0.85 * bound or control._phase == 7
        rounds.round(sent=100)
        waited += 1
    assert 63 <= waited < 75
    rounds.repeat(2)
    assert control._most_bytes > bound


def test_a_bounded_bbr_promises_no_steady_rate_beyond_the_end_of_its_bounds():
    rounds = overflown(Bbr)
    control, kept = rounds.control, 0
    rounds.repeat(2, sent=100, lost=10)
    assert control.window_bytes < 100 * SIZE
    for _ in range(120):
        before = control.rate_bps, control.window_bytes
        until_s = control.steady_until_s
        if rounds.now_s < until_s < math.inf:
            at_s = rounds.now_s
            while (at_s := at_s + 2e-4) < until_s:
                control.on_sent(0, at_s)
                assert (control.rate_bps, control.window_bytes) == before
                kept += 1
        rounds.round(sent=100)
    assert kept > 20


@pytest.mark.parametrize("kind", [Bbr, Ltp])
def test_bbr_probes_the_round_trip_when_the_minimum_is_old(kind):
    rounds = filled(kind)
    control = rounds.control
    rounds.rtt_s = 1.2e-3
    for _ in range(850):
        rounds.round(sent=100)
        if control.state is BbrState.PROBE_RTT:
            break
    assert control.state is BbrState.PROBE_RTT
    assert control.window_bytes == 4 * SIZE
    began_s = rounds.now_s
    while control.state is BbrState.PROBE_RTT:
        rounds.round(sent=4)
    assert rounds.now_s - began_s == pytest.approx(10e-3, abs=3e-3)
    assert control.path.min_rtt_s == 1.2e-3


@pytest.mark.parametrize("kind", [Bbr, Ltp])
def test_bbr_restarts_after_a_pause_at_the_bandwidth_and_without_a_probe(kind):
    rounds = filled(kind)
    control = rounds.control
    bandwidth_bps = control.bandwidth_bps
    for _ in range(3):
        rounds.pause(60.0)
        assert control.rate_bps == pytest.approx(PACING_SHARE * bandwidth_bps)
        rounds.round(sent=100)
        assert control.state is BbrState.PROBE_BW
        assert control.bandwidth_bps == pytest.approx(bandwidth_bps)


def test_ltp_counts_what_was_lost_without_a_queue_and_bbr_ignores_it_for_two_seconds():
    rates = []
    for kind in (Bbr, Ltp):
        rounds = filled(kind)
        for count in (1990, 30):
            rounds.repeat(count, sent=100, lost=40)
            rates.append(rounds.control.bandwidth_bps / (100 * SIZE * 8 / 1e-3))
    assert rates == pytest.approx([1.0, 0.6, 1.0, 1.0])


def test_a_bbr_that_excuses_no_losses_believes_them_within_its_filter():
    """As version 1 does, which the kernel has."""
    rounds = filled(Bbr)
    rounds.control.excuses_losses = rounds.control.bounds_losses = False
    rounds.repeat(12, sent=100, lost=90)
    assert rounds.control.bandwidth_bps == pytest.approx(10 * SIZE * 8 / 1e-3)


def test_bbr_takes_round_trips_that_vary_by_a_hundredth_for_no_queue():
    rounds = filled(Bbr)
    bandwidth_bps = rounds.control.bandwidth_bps
    for n in range(200):
        rounds.rtt_s = 1e-3 * (1 + 0.01 * (n % 2))
        rounds.round(sent=100, lost=90)
    assert rounds.control.bandwidth_bps >= 0.98 * bandwidth_bps


@pytest.mark.parametrize("kind", [Bbr, Ltp])
def test_losses_behind_a_queue_are_not_excused(kind):
    rounds = filled(kind)
    rounds.rtt_s = 2e-3
    rounds.repeat(40, sent=200, lost=80)
    assert rounds.control.bandwidth_bps == pytest.approx(120 * SIZE * 8 / 2e-3)


def test_bbr_seeks_the_bandwidth_anew_when_losses_end_that_it_has_believed():
    rounds = filled(Bbr)
    rounds.repeat(2100, sent=100, lost=90)
    assert rounds.control.bandwidth_bps == pytest.approx(10 * SIZE * 8 / 1e-3)
    rounds.round(sent=20)
    assert rounds.control.state is BbrState.STARTUP


@pytest.mark.parametrize("kind", [Bbr, Ltp])
def test_a_report_after_a_silence_does_not_widen_bbrs_window_beyond_three_products(kind):
    rounds = filled(kind)
    rounds.round(sent=1000)
    assert rounds.control.window_bytes <= 3 * rounds.control.bdp_bytes
