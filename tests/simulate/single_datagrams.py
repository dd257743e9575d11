"""The slow way to simulate links, to judge the fast one: each datagram at each link is an event.

It shares no code with `testbed.simulate`. Queues are lists of when each datagram leaves.
"""

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(kw_only=True)
class SlowLink:
    """Options as of `testbed.simulate.link.Link`, at a byte a second where `rate_bps` is 8.

    Attributes:
        waiting: (leaves_s, size_bytes) of those that have not left, in order.
        counts: of what has happened by now.
    """

    rate_bps: float
    delay_s: float
    queue_bytes: float
    loss: float
    jitter_s: float
    in_order: bool
    seed: int
    waiting: list[tuple[float, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    out_s: float = 0.0

    def __post_init__(self):
        self._losing, self._delaying = (np.random.default_rng([self.seed, k]) for k in (0, 1))

    def queued_bytes(self, now_s):
        """All that wait, and what is left of the first."""
        self.waiting = [each for each in self.waiting if each[0] > now_s]
        if not self.waiting:
            return 0.0
        left = (self.waiting[0][0] - now_s) * self.rate_bps / 8
        return left + sum(size for _, size in self.waiting[1:])

    def enter(self, now_s, size):
        """When it comes out; None if it never does."""
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
    """Datagrams on their ways through links.

    Attributes:
        came: (source, number) -> when it came out of its last link.
        offered: how many have come to their first link.
    """

    def __init__(self):
        self.came: dict[tuple[int, int], float] = {}
        self.offered = 0
        self._heap: list[Any] = []
        self._tie = itertools.count()

    def send(self, at_s, source, number, size, links):
        """At the same time and place, the lowest source goes first."""
        heapq.heappush(self._heap, (at_s, source, next(self._tie), number, size, links, True))

    def run(self, until_s):
        """All that happens by then."""
        while self._heap and self._heap[0][0] <= until_s:
            at_s, source, _, number, size, links, first = heapq.heappop(self._heap)
            self.offered += first
            if not links:
                self.came[source, number] = at_s
            elif (out_s := links[0].enter(at_s, size)) is not None:
                entry = (out_s, source, next(self._tie), number, size, links[1:], False)
                heapq.heappush(self._heap, entry)

    @property
    def next_s(self):
        """When anything happens; None if nothing does any more."""
        return self._heap[0][0] if self._heap else None

    @property
    def under_way(self):
        """Datagrams in queues and on links."""
        return sum(not first for *_, first in self._heap)
