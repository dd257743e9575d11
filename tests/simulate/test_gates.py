"""Gates: who is taken is decided by what is in force when each datagram passes, in order."""

import functools

import numpy as np
import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Batch, Gate, Link, depart
from tests.simulate.trains import SIZE_BYTES, Sinks, feed

SERVICE_S = SIZE_BYTES * 8 / 8e6  # at 8 Mbit/s: a millisecond


class Nth:
    """Takes every n-th that it meets, counted from 1."""

    def __init__(self, nth):
        self.nth, self.met, self.taken = nth, 0, 0

    def __call__(self, count):
        numbers = self.met + 1 + np.arange(count)
        kept = numbers % self.nth != 0
        self.met += count
        self.taken += int(np.count_nonzero(~kept))
        return kept


def scene(*, length):
    """Two senders that share a link, then a gate, then a link of each; in trains of `length`."""
    simulation, sinks = Simulation(), Sinks()
    shared = Link(simulation, rate_bps=8e6, delay_s=0.003, queue_bytes=20 * SIZE_BYTES)
    gate = Gate(simulation)
    for source in range(2):
        links = [shared, gate, Link(simulation, rate_bps=6e6, delay_s=0.001)]
        gaps_s = np.random.default_rng((3, source)).exponential(1 / 700, 200)
        feed(simulation, links, np.cumsum(gaps_s), sinks, source=source, length=length)
    return simulation, shared, gate, sinks


@pytest.mark.parametrize("length", [1, 7, 64, 400])
def test_a_filter_counts_what_passes_between_its_begin_and_its_end(length):
    """The reference: what has passed the gate, by the times at which it leaves the link before."""
    simulation, _, gate, sinks = scene(length=1)
    passed = []
    send = gate.send

    def noted(train):
        passed.append(float(train.times_s[0]))
        send(train)

    gate.send = noted
    simulation.run()
    everybody = set(sinks.in_order[0])
    begin_s, end_s = 0.0501, 0.1503
    met = sum(begin_s < time_s <= end_s for time_s in passed)

    simulation, shared, gate, sinks = scene(length=length)
    by = Nth(3)
    simulation.at(begin_s, lambda: gate.add_filter(by))
    simulation.at(end_s, lambda: gate.remove_filter(by))
    simulation.run()
    assert (by.met, by.taken) == (met, met // 3)
    assert len(everybody - set(sinks.in_order[0])) == met // 3
    assert shared.sent - shared.dropped == sinks.announced + by.taken


@pytest.mark.parametrize("gap_s, expected_ms", [(2e-3, 0), (1e-3, 0.04), (1.21e-4, 0.48), (0, 1)])
def test_jitter_in_order_waits_as_the_lab_s_pages_say(gap_s, expected_ms):
    """docs/how-to/topology.md, with a jitter of 1 ms: mean waits beyond delay_s, in ms."""
    simulation, sinks, behind_s = Simulation(), Sinks(), []
    link = Link(simulation, rate_bps=1e15, delay_s=0.004, jitter_s=0.002, in_order=True, seed=1)
    batch = Batch(size_bytes=SIZE_BYTES, links=[link], deliver=sinks.of(0, 0))
    sent_s = np.arange(20000) * gap_s
    simulation.at(0.0, functools.partial(depart, batch, sent_s))
    simulation.at(float(sent_s[-1]), lambda: behind_s.append(link.out_s()))
    simulation.run()
    _, came_s = sinks.in_order
    assert np.all(np.diff(came_s) >= 0)
    assert np.mean(came_s - sent_s - 0.005) * 1e3 == pytest.approx(expected_ms, abs=0.015)
    assert behind_s[0] >= came_s[-1]  # a message that comes behind these overtakes none
