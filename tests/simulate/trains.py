"""Trains for tests: datagrams that come to links at given times, and what comes out."""

import functools

import numpy as np

from testbed.simulate.link import Batch, depart

SIZE_BYTES = 1000


class Sinks:
    """They keep what has come out of the last links: of each source, numbers and times."""

    def __init__(self):
        self.announced = 0  # so many so far
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
        return [datagram[:2] for datagram in out], np.array([datagram[2] for datagram in out])


def feed(simulation, links, times_s, sinks, *, source=0, length=64):
    for first in range(0, len(times_s), length):
        part = times_s[first : first + length]
        batch = Batch(size_bytes=SIZE_BYTES, links=links, deliver=sinks.of(source, first))
        simulation.at(part[0], functools.partial(depart, batch, part))
