"""Trains for tests: datagrams that come to links at given times, and what comes out."""

import functools
import math

import numpy as np

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.train import Batch, depart

SIZE_BYTES = 1000


class Sinks:
    """What has come out of the last links: of each source, numbers and times.

    Attributes:
        announced: how many so far.
    """

    def __init__(self):
        self.announced = 0
        self._out = []

    def of(self, source, offset):
        def deliver(train):
            self.announced += len(train.times_s)
            self._out += [
                (source, offset + int(number), float(time_s))
                for number, time_s in zip(train.index, train.times_s, strict=True)
            ]

        return deliver

    @property
    def in_order(self):
        """(source, number) and time of each, by source and number, then time."""
        out = sorted(self._out)
        return [each[:2] for each in out], np.array([each[2] for each in out])


def feed(simulation, links, times_s, sinks, *, source=0, length=64):
    """Sends datagrams at these times, in trains of so many."""
    for first in range(0, len(times_s), length):
        part = times_s[first : first + length]
        batch = Batch(size_bytes=SIZE_BYTES, links=links, deliver=sinks.of(source, first))
        simulation.at(part[0], functools.partial(depart, batch, part))


def star(simulation, *, senders=3, rate_bps=8e6, delay_s=0.0, port_bytes=math.inf, **port):
    """Each sender's own link, and the one to the receiver that all share."""
    shared = Link(
        simulation, rate_bps=rate_bps, delay_s=delay_s, queue_bytes=port_bytes, seed=5, **port
    )
    own = [Link(simulation, rate_bps=rate_bps, delay_s=delay_s) for _ in range(senders)]
    return own, shared


def poisson(seed, count, per_s):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / per_s, count))


def run_star(*, length, seed=0, count=400, until_s=math.inf, load=1.2, **options):
    """Poisson senders over a star, in trains of `length`; the clock, links and what came out."""
    simulation, sinks = Simulation(), Sinks()
    own, shared = star(simulation, **options)
    for source, link in enumerate(own):
        times_s = poisson((seed, source), count, load * 1000 / len(own))
        feed(simulation, [link, shared], times_s, sinks, source=source, length=length)
    simulation.run(until_s=until_s)
    return simulation, own, shared, sinks
