"""Links that take trains: exact queues, whatever the trains, and an account of every datagram."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.train import Batch, depart
from tests.simulate.trains import SIZE_BYTES, Sinks, feed, poisson, run_star

SERVICE_S = SIZE_BYTES * 8 / 8e6  # at 8 Mbit/s: a millisecond


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay_s": 0.02},
        {"port_bytes": 4000},
        {"port_bytes": 4000, "delay_s": 0.01, "loss": 0.1},
        {"delay_s": 0.01, "jitter_s": 0.004, "duplicate": 0.1},
        {"port_bytes": 6000, "loss": 0.1, "jitter_s": 0.001, "duplicate": 0.05},
    ],
)
def test_it_makes_no_difference_how_long_trains_are(options):
    """Three senders meet in a switch. What befalls each datagram, and when, is the same."""
    outcomes = [run_star(length=length, **options) for length in (1, 7, 64, 400)]
    who, when_s = outcomes[0][3].in_order
    assert len(who) > 600
    for _, _, port, sinks in outcomes[1:]:
        others, times_s = sinks.in_order
        assert others == who
        assert np.allclose(times_s, when_s, rtol=0, atol=1e-9)
        first = outcomes[0][2]
        assert (port.dropped, port.lost, port.sent) == (first.dropped, first.lost, first.sent)
        assert port.most_queued_bytes == pytest.approx(first.most_queued_bytes, abs=1e-3)


@given(
    gaps=st.lists(st.integers(0, 3), min_size=1, max_size=80),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    room=st.integers(4, 12),
)
def test_the_queue_takes_to_the_byte_what_a_ledger_of_it_takes(gaps, sizes, room):
    """All numbers are whole, and so is every length: a queue that is just full counts."""
    simulation, sinks = Simulation(), Sinks()
    link = Link(simulation, rate_bps=8.0, delay_s=0.0, queue_bytes=room)  # a byte a second
    free_s, expected = 0, []
    for number, at_s in enumerate(np.cumsum(gaps).tolist()):
        size = sizes[number % len(sizes)]
        batch = Batch(size_bytes=size, links=[link], deliver=sinks.of(number, 0))
        simulation.at(at_s, functools.partial(depart, batch, np.array([float(at_s)])))
        if max(0, free_s - at_s) + size <= room:
            free_s = max(free_s, at_s) + size
            expected.append((number, free_s))
    simulation.run()
    who, when_s = sinks.in_order
    assert [(number, time_s) for (number, _), time_s in zip(who, when_s, strict=True)] == expected
    assert link.dropped == len(gaps) - len(expected)
    assert link.most_queued_bytes <= room


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_poisson_arrivals_wait_as_long_as_in_an_m_d_1_queue(load):
    means_s = []
    for seed in range(20):
        simulation, sinks = Simulation(), Sinks()
        link = Link(simulation, rate_bps=8e6, delay_s=0.0)
        arrivals_s = poisson(seed, 5000, load / SERVICE_S)
        feed(simulation, [link], arrivals_s, sinks, length=5000)
        simulation.run()
        _, leaves_s = sinks.in_order
        means_s.append(float(np.mean(leaves_s - arrivals_s - SERVICE_S)))
    expected_s = load / (2 * (1 - load)) * SERVICE_S
    error_s = float(np.std(means_s, ddof=1)) / math.sqrt(len(means_s))
    assert abs(np.mean(means_s) - expected_s) < 3.5 * error_s
    assert error_s < 0.05 * expected_s


def test_marks_begin_at_their_length():
    simulation, sinks = Simulation(), Sinks()
    link = Link(simulation, rate_bps=8e6, delay_s=0.0, mark_bytes=20 * SIZE_BYTES)
    feed(simulation, [link], np.zeros(64), sinks, length=64)
    simulation.run()
    assert (link.marked, sinks.marked) == (44, 44)


def test_a_rate_that_changes_counts_from_then_on():
    simulation, sinks = Simulation(), Sinks()
    link = Link(simulation, rate_bps=8e6, delay_s=0.0)
    feed(simulation, [link], np.arange(20) * SERVICE_S, sinks, length=64)
    simulation.run(until_s=9.5 * SERVICE_S)
    link.set_rate(4e6)
    simulation.run()
    _, leaves_s = sinks.in_order
    assert np.allclose(np.diff(leaves_s)[:9], SERVICE_S)
    assert np.allclose(np.diff(leaves_s)[10:], 2 * SERVICE_S)
