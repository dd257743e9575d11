"""Trains over networks fare as single datagrams do."""

import functools
import heapq
import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Batch, Link, depart


@dataclass(kw_only=True)
class SlowLink:
    """Options as of `testbed.simulate.link.Link`, at a byte a second where `rate_bps` is 8."""

    rate_bps: float
    delay_s: float
    queue_bytes: float
    loss: float
    jitter_s: float
    in_order: bool
    seed: int
    # (leaves_s, size_bytes) of those that have not left, in order.
    waiting: list[tuple[float, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of what has happened by now
    out_s: float = 0.0

    def __post_init__(self):
        self._losing, self._delaying = (np.random.default_rng([self.seed, k]) for k in (0, 1))

    def queued_bytes(self, now_s):
        """All that wait, and what is left of the first."""
        self.waiting = [datagram for datagram in self.waiting if datagram[0] > now_s]
        if not self.waiting:
            return 0.0
        left = (self.waiting[0][0] - now_s) * self.rate_bps / 8
        return left + sum(size for _, size in self.waiting[1:])

    def enter(self, now_s, size):
        """It returns when the datagram comes out; None if it never does."""
        self.counts["sent"] += 1
        if self.queued_bytes(now_s) + size > self.queue_bytes + 0.01:
            self.counts["dropped"] += 1
            return None
        begins_s = self.waiting[-1][0] if self.waiting else now_s
        leaves_s = begins_s + size * 8 / self.rate_bps
        self.waiting.append((leaves_s, size))
        if self._losing.random() < self.loss:
            self.counts["lost"] += 1
            return None
        out_s = leaves_s + self.delay_s + self.jitter_s * self._delaying.random()
        if self.in_order:
            self.out_s = out_s = max(out_s, self.out_s)
        return out_s


class SlowNetwork:
    """Datagrams on their ways through links."""

    def __init__(self):
        # By source and number: when it came out of its last link.
        self.came: dict[tuple[int, int], float] = {}
        self._heap: list[Any] = []
        self._tie = itertools.count()

    def send(self, at_s, source, number, size, links):
        """At the same time and place, the lowest source goes first."""
        heapq.heappush(self._heap, (at_s, source, next(self._tie), number, size, links))

    def run(self):
        while self._heap:
            at_s, source, _, number, size, links = heapq.heappop(self._heap)
            if not links:
                self.came[source, number] = at_s
            elif (out_s := links[0].enter(at_s, size)) is not None:
                entry = (out_s, source, next(self._tie), number, size, links[1:])
                heapq.heappush(self._heap, entry)


_SOURCES, _DATAGRAMS = 5, 30


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A tree of links: a host's own, one of two switches', and the receiver's."""

    links: list[dict[str, Any]]  # the options of each
    paths: list[list[int]]  # for each source, of its links the places in `links`
    sizes: list[int]  # of each source's datagrams, in bytes
    times_s: list[np.ndarray]  # when each source sends, whole seconds at about a byte a second


def draw(seed, *, whole):
    """With `whole`, all times are whole numbers, and many are equal.

    All links keep order or none does: where two of a sender's datagrams that have overtaken each
    other come to the next link in the same moment, it is not said which of them is the first.
    """
    random = np.random.default_rng(seed)
    in_order = bool(seed % 2)
    sizes = random.integers(1, 6, _SOURCES).tolist()
    rates = [8.0] * _SOURCES + random.choice([8.0, 16.0], 2).tolist() + [16.0]
    links = [
        {
            "rate_bps": rate_bps,
            "delay_s": float(random.integers(0, 30)),
            "queue_bytes": math.inf if number < 2 else float(random.integers(6, 25)),
            "loss": float(random.choice([0.0, 0.1])),
            "jitter_s": 0.0 if whole else float(random.choice([0.0, 20.0])),
            "in_order": in_order,
            "seed": number + 100 * seed,
        }
        for number, rate_bps in enumerate(rates)
    ]
    paths = [[source, _SOURCES + source % 2, _SOURCES + 2] for source in range(_SOURCES)]
    gaps = [random.integers(0, 4 * size, _DATAGRAMS) for size in sizes]
    times_s = [np.cumsum(gap).astype(float) for gap in gaps]
    return Drawn(links=links, paths=paths, sizes=sizes, times_s=times_s)


class Fast:
    """The same network of `testbed.simulate`, fed in trains of so many datagrams."""

    def __init__(self, drawn, length):
        self.simulation = Simulation()
        self.links = [Link(self.simulation, **link) for link in drawn.links]
        self.came: dict[tuple[int, int], float] = {}
        for source, times_s in enumerate(drawn.times_s):
            path = [self.links[place] for place in drawn.paths[source]]
            for first in range(0, len(times_s), length):
                batch = Batch(
                    size_bytes=drawn.sizes[source],
                    links=path,
                    deliver=functools.partial(self._deliver, source, first),
                    rank=source,
                )
                part = times_s[first : first + length]
                self.simulation.at(part[0], functools.partial(depart, batch, part))

    def _deliver(self, source, first, train):
        for number, time_s in zip(train.index.tolist(), train.times_s.tolist(), strict=True):
            self.came[source, first + number] = time_s


def slow(drawn):
    links = [SlowLink(**link) for link in drawn.links]
    network = SlowNetwork()
    for source, times_s in enumerate(drawn.times_s):
        path = [links[place] for place in drawn.paths[source]]
        for number, at_s in enumerate(times_s.tolist()):
            network.send(at_s, source, number, drawn.sizes[source], path)
    return network, links


@pytest.mark.parametrize("length", [1, 7, _DATAGRAMS])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_trains_fare_as_single_datagrams(seed, whole, length):
    drawn = draw(seed, whole=whole)
    network, links = slow(drawn)
    network.run()
    fast = Fast(drawn, length)
    fast.simulation.run()
    assert fast.came.keys() == network.came.keys()
    for who, time_s in fast.came.items():
        assert time_s == pytest.approx(network.came[who], abs=1e-9)
    for one, two in zip(fast.links, links, strict=True):
        assert two.counts == Counter(sent=one.sent, dropped=one.dropped, lost=one.lost)
