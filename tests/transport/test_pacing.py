"""Pacing in virtual time."""

import math

import numpy as np
import pytest

from testbed.transport.core.pacing import CATCH_UP_S, QUANTUM_S, Pacer

SIZE = 1514


def run(pacer, *, until_s, late_s=lambda: 0.0, start_s=0.0):
    """Sends whatever is allowed; wakes up `late_s()` after each deadline."""
    now_s, sends = start_s, []
    while now_s < until_s:
        while count := pacer.allowance(now_s):
            pacer.spend(count)
            sends.append((now_s, count))
        now_s = pacer.next_s(now_s) + late_s()
    return sends


def rate_of(sends):
    """Wire bits per second between the first batch and the last."""
    return sum(count for _, count in sends[1:]) * SIZE * 8 / (sends[-1][0] - sends[0][0])


@pytest.mark.parametrize("rate_bps", [1e5, 10e6, 100e6, 1e9])
@pytest.mark.parametrize("start_s", [0.0, 3e6])
def test_the_rate_comes_out_as_configured(rate_bps, start_s):
    pacer = Pacer(rate_bps=rate_bps, datagram_wire_bytes=SIZE)
    length_s = max(1.0, 100 * SIZE * 8 / rate_bps)
    sends = run(pacer, start_s=start_s, until_s=start_s + length_s)
    assert rate_of(sends) == pytest.approx(rate_bps, rel=0.02)


def test_waking_up_late_costs_no_rate():
    generator = np.random.default_rng(1)
    pacer = Pacer(rate_bps=100e6, datagram_wire_bytes=SIZE)
    sends = run(pacer, until_s=1.0, late_s=lambda: generator.uniform(0, 0.9 * CATCH_UP_S))
    assert rate_of(sends) == pytest.approx(100e6, rel=0.01)


@pytest.mark.parametrize(
    ("rate_bps", "batch"), [(1e6, 1), (100e6, 8), (400e6, 33), (1e10, 44), (math.inf, 44)]
)
def test_a_batch_is_a_millisecond_of_the_rate_within_limits(rate_bps, batch):
    assert Pacer(rate_bps=rate_bps, datagram_wire_bytes=SIZE).allowance(0.0) == batch


def burst(pacer, now_s):
    total = 0
    while count := pacer.allowance(now_s):
        pacer.spend(count)
        total += count
    return total


def test_a_long_stall_ends_in_a_bounded_burst():
    pacer = Pacer(rate_bps=100e6, datagram_wire_bytes=SIZE)
    run(pacer, until_s=0.1)
    most = (QUANTUM_S + CATCH_UP_S) * 100e6 / 8 / SIZE
    assert 8 < burst(pacer, 10.0) <= most


def test_having_had_nothing_to_send_is_no_reason_to_catch_up():
    pacer = Pacer(rate_bps=100e6, datagram_wire_bytes=SIZE)
    run(pacer, until_s=0.1)
    pacer.resume(10.0)
    assert burst(pacer, 10.0) == 8


def test_the_last_few_datagrams_do_not_wait_for_a_whole_batch():
    pacer = Pacer(rate_bps=100e6, datagram_wire_bytes=SIZE)
    burst(pacer, 0.0)
    one_s = SIZE * 8 / 100e6
    assert pacer.allowance(1.01 * one_s) == 0
    assert pacer.allowance(1.01 * one_s, wanted=1) == 1
    assert pacer.next_s(1.01 * one_s, wanted=2) == pytest.approx(2 * one_s, rel=0.02)
