"""TIMELY, BBR and LTP's, fed with hand-made feedback."""

import itertools
import math

import pytest

from testbed.transport.policies.congestion import (
    Bbr,
    Ltp,
    Timely,
)
from testbed.transport.policies.congestion.bbr import PACING_SHARE, STARTUP_GAIN, BbrState
from tests.transport.congestion_rounds import SIZE, Rounds

# TIMELY.


def timely() -> Rounds[Timely]:
    """Past its start, at 100 Mbit/s, with thresholds of 2 and 4 ms."""
    control = Timely(t_low_s=2e-3, t_high_s=4e-3, min_rtt_s=1e-3, step_bps=1e6)
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
    rounds.now_s += 10
    rounds.control.on_transfer_begin(rounds.now_s)
    assert rounds.control.rate_bps == rate_bps
    rounds.rtt_s = 3.9e-3
    rounds.round(sent=100)
    assert rounds.control.rate_bps == pytest.approx(rate_bps + 1e6)


# BBR and LTP.


def filled(kind: type[Bbr], *, sent: int = 100) -> Rounds[Bbr]:
    """A model that has found 100 datagrams per millisecond."""
    rounds = Rounds(kind(), rtt_s=1e-3)
    for _ in range(8):
        rounds.round(sent=sent)
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
    for _ in range(20):
        rounds.round(sent=5, limited=True)
    assert rounds.control.bandwidth_bps == bandwidth_bps
    rounds.round(sent=200, limited=True)
    assert rounds.control.bandwidth_bps == pytest.approx(2 * bandwidth_bps)


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
        rounds.now_s += 60.0
        control.on_transfer_begin(rounds.now_s)
        assert control.rate_bps == pytest.approx(PACING_SHARE * bandwidth_bps)
        rounds.round(sent=100)
        assert control.state is BbrState.PROBE_BW
        assert control.bandwidth_bps == pytest.approx(bandwidth_bps)


def test_ltp_counts_what_was_lost_without_a_queue_and_bbr_ignores_it_for_two_seconds():
    rates = []
    for kind in (Bbr, Ltp):
        rounds = filled(kind)
        for count in (1990, 30):
            for _ in range(count):
                rounds.round(sent=100, lost=40)
            rates.append(rounds.control.bandwidth_bps / (100 * SIZE * 8 / 1e-3))
    assert rates == pytest.approx([1.0, 0.6, 1.0, 1.0])


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
    for _ in range(40):
        rounds.round(sent=200, lost=80)
    assert rounds.control.bandwidth_bps == pytest.approx(120 * SIZE * 8 / 2e-3)


def test_bbr_seeks_the_bandwidth_anew_when_losses_end_that_it_has_believed():
    rounds = filled(Bbr)
    for _ in range(2100):
        rounds.round(sent=100, lost=90)
    assert rounds.control.bandwidth_bps == pytest.approx(10 * SIZE * 8 / 1e-3)
    rounds.round(sent=20)
    assert rounds.control.state is BbrState.STARTUP


@pytest.mark.parametrize("kind", [Bbr, Ltp])
def test_a_report_after_a_silence_does_not_widen_bbrs_window_beyond_three_products(kind):
    rounds = filled(kind)
    rounds.round(sent=1000)
    assert rounds.control.window_bytes <= 3 * rounds.control.bdp_bytes
