"""Reno and CUBIC, fed with hand-made feedback."""

import itertools
import math

import pytest

from testbed.transport.core.congestion import Feedback
from testbed.transport.policies.congestion import Cubic, Reno
from tests.transport.congestion_rounds import (
    LOSS_BASED,
    RTT_S,
    SIZE,
    Rounds,
)

EACH = pytest.mark.parametrize(("kind", "options", "beta"), LOSS_BASED)


@EACH
def test_slow_start_doubles_each_round_trip(kind, options, beta):
    rounds = Rounds(kind(**options))
    windows = [rounds.window]
    for _ in range(5):
        rounds.round()
        windows.append(rounds.window)
    assert windows == [10 * 2**n for n in range(6)]


@EACH
def test_a_loss_cuts_the_window_by_the_specified_factor_once_per_round_trip(kind, options, beta):
    control = kind(**options)
    rounds = Rounds(control)
    for _ in range(3):
        rounds.round()
    sent_s = rounds.now_s
    for late_s in (RTT_S, 1.2 * RTT_S, 1.9 * RTT_S):  # three reports about the same flight
        control.on_feedback(
            Feedback(
                now_s=sent_s + late_s,
                delivered_bytes=SIZE,
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
def test_when_nothing_arrives_the_window_falls_to_two_datagrams_and_stays_open(kind, options, beta):
    control = kind(**options)
    rounds = Rounds(control)
    for _ in range(6):
        rounds.round()
    for _ in range(40):
        rounds.round(lost=int(rounds.window))
        assert rounds.window >= 2
    assert rounds.window == 2
    assert math.isfinite(control.rate_bps)
    assert control.rate_bps > 0
    rounds.round()
    assert rounds.window > 2  # and it recovers at once


@EACH
def test_a_window_that_is_not_used_does_not_grow(kind, options, beta):
    rounds = Rounds(kind(**options))
    rounds.round()
    rounds.round(sent=3)  # the round before has shown that there is room
    before = rounds.window
    for _ in range(20):
        rounds.round(sent=3)
    rounds.round(sent=20, limited=True)
    assert rounds.window == before


@EACH
def test_a_pause_keeps_what_was_learnt_and_the_restart_is_paced(kind, options, beta):
    control = kind(**options)
    rounds = Rounds(control)
    for _ in range(4):
        rounds.round()
    rounds.round(lost=1)
    window_bytes, threshold_bytes = control.window_bytes, control._threshold
    rounds.now_s += 30.0
    control.on_transfer_begin(rounds.now_s)
    assert control.window_bytes == window_bytes
    assert control._threshold == threshold_bytes
    assert control.path.min_rtt_s == RTT_S
    # The first window is spread over most of a round trip.
    assert control.window_bytes * 8 / control.rate_bps == pytest.approx(RTT_S / 1.2)
    rounds.round(lost=1)  # a loss after the pause counts, whatever happened before it
    assert rounds.window < window_bytes / SIZE


@EACH
def test_the_pace_follows_a_round_trip_that_falls_because_the_queue_is_gone(kind, options, beta):
    control = kind(**options)
    rounds = Rounds(control, rtt_s=2 * RTT_S)
    for _ in range(5):
        rounds.round()
    rounds.round(lost=1)
    rounds.rtt_s = RTT_S
    rounds.round()
    assert control.rate_bps == pytest.approx(1.2 * rounds.window * SIZE * 8 / RTT_S)


def test_losses_of_unknown_age_count_once_per_round_trip():
    control = Reno()
    rounds = Rounds(control)
    for _ in range(3):
        rounds.round()
    for step in range(4):
        control.on_feedback(
            Feedback(
                now_s=rounds.now_s + (1 + step / 5) * RTT_S,
                delivered_bytes=SIZE,
                lost_bytes=SIZE,
                in_flight_bytes=50 * SIZE,
                rtt_s=RTT_S,
            )
        )
    assert rounds.window == 40


def test_reno_adds_one_datagram_each_round_trip_after_a_loss():
    rounds = Rounds(Reno())
    for _ in range(3):
        rounds.round()
    rounds.round(lost=1)
    windows = []
    for _ in range(5):
        rounds.round()
        windows.append(rounds.window)
    growth = [later - earlier for earlier, later in itertools.pairwise(windows)]
    assert all(0.95 < step <= 1.0 for step in growth)


def test_cubic_follows_the_function_of_the_rfc_on_a_long_path():
    rtt_s = 0.1
    control = Cubic()
    rounds = Rounds(control, rtt_s=rtt_s)
    for _ in range(6):
        rounds.round()
    rounds.round(lost=1)
    w_max, start = 640.0, 640 * 0.7
    k_s = ((w_max - start) / 0.4) ** (1 / 3)
    rounds.round()  # the epoch begins with the first growth
    began_s = rounds.now_s
    while rounds.now_s < began_s + 1.3 * k_s:
        expected = 0.4 * (rounds.now_s + rtt_s - began_s - k_s) ** 3 + w_max
        assert rounds.window == pytest.approx(expected, rel=0.02)
        rounds.round()


def test_cubic_is_as_fast_as_reno_on_a_short_path():
    cubic, reno = Rounds(Cubic()), Rounds(Reno())
    for rounds in (cubic, reno):
        for _ in range(4):
            rounds.round()
        rounds.round(lost=1)
        for _ in range(300):
            rounds.round()
    assert cubic.window > 0.9 * reno.window


def test_cubic_aims_lower_after_two_losses():
    control = Cubic()
    rounds = Rounds(control)
    for _ in range(4):
        rounds.round()
    rounds.round(lost=1)
    rounds.round(lost=1)
    assert control._w_max == pytest.approx(112 * (1 + 0.7) / 2)


def test_cubic_does_not_count_a_pause_as_time_since_the_loss():
    rtt_s = 0.05
    control = Cubic()
    rounds = Rounds(control, rtt_s=rtt_s)
    for _ in range(5):
        rounds.round()
    rounds.round(lost=1)
    for _ in range(5):
        rounds.round()
    before = rounds.window
    rounds.now_s += 60.0
    control.on_transfer_begin(rounds.now_s)
    rounds.round()
    assert rounds.window < 1.1 * before
