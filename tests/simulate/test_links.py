"""Links that take trains: exact queues, whatever the trains, and an account of every datagram."""

import math

import numpy as np
import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from tests.simulate.trains import SIZE_BYTES, Sinks, feed, poisson

SERVICE_S = SIZE_BYTES * 8 / 8e6  # at 8 Mbit/s: a millisecond


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
