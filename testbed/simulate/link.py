"""Links in virtual time: a rate, a delay, a queue, and whatever else befalls datagrams.

A `Link` needs no event per departure: when a datagram leaves a first-in-first-out queue is known
when it enters. Every random choice has a seed.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from testbed.simulate.engine import Simulation

_RANDOM_BLOCK = 4096


class Link:
    """A rate, a propagation delay, a queue of so many bytes with tail drop, and random harm.

    Attributes:
        sent, dropped, lost, marked: datagrams that came, that found the queue full, that were
            lost at random after the queue, and that were marked.
        most_queued_bytes: the longest that the queue ever was.
        idle_s: how long it has had nothing to send between its first datagram and its last.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        rate_bps: float,
        delay_s: float,
        queue_bytes: float = math.inf,
        mark_bytes: float = math.inf,
        loss: float | Callable[[], bool] = 0.0,
        jitter_s: float = 0.0,
        duplicate: float = 0.0,
        seed: int = 0,
    ) -> None:
        """A link of `rate_bps` (math.inf: without a queue) and `delay_s`.

        `mark_bytes` is the queue length from which on arriving datagrams are marked. `loss` is a
        probability, or says of each datagram whether it is lost; the link has then served it.
        `jitter_s` is the most that is added to the delay, at random, so that datagrams overtake
        each other. `duplicate` is the probability that one arrives twice.
        """
        self.rate_bps = rate_bps
        self.delay_s = delay_s
        self.loss = loss
        self.jitter_s = jitter_s
        self.duplicate = duplicate
        self.sent = self.dropped = self.lost = self.marked = 0
        self.most_queued_bytes = self.idle_s = 0.0
        self._simulation = simulation
        self._queue_bytes = queue_bytes
        self._mark_bytes = mark_bytes
        self._free_s = -math.inf  # when the queue is empty
        self._work_s = 0.0  # service given or promised
        self._random = _uniform(seed)

    def set_rate(self, rate_bps: float) -> None:
        """Serves at this rate from now on, what waits included.

        Datagrams that wait keep their times of arrival, which were decided as they entered; those
        that come later wait until the queue is empty at the new rate.
        """
        now_s = self._simulation.now_s
        left_s = max(0.0, self._free_s - now_s)
        self._work_s += left_s * (self.rate_bps / rate_bps - 1)
        self._free_s = max(self._free_s, now_s + left_s * self.rate_bps / rate_bps)
        self.rate_bps = rate_bps

    @property
    def queued_bytes(self) -> float:
        """The queue's length now, with what is left of the datagram in service."""
        if math.isinf(self.rate_bps):
            return 0.0
        return max(0.0, self._free_s - self._simulation.now_s) * self.rate_bps / 8

    @property
    def busy_s(self) -> float:
        """For how long the link has sent until now."""
        return self._work_s - max(0.0, self._free_s - self._simulation.now_s)

    def passage_s(self) -> float:
        """How long something without size would take now."""
        return max(0.0, self._free_s - self._simulation.now_s) + self.delay_s

    def send(self, size_bytes: int, deliver: Callable[[bool], None], marked: bool = False) -> None:
        """Calls `deliver(marked)` when the datagram comes out, if it does."""
        self.sent += 1
        queued = self.queued_bytes
        if queued + size_bytes > self._queue_bytes:
            self.dropped += 1
            return
        self.most_queued_bytes = max(self.most_queued_bytes, queued + size_bytes)
        if queued >= self._mark_bytes:
            marked = True
            self.marked += 1
        service_s, now_s = size_bytes * 8 / self.rate_bps, self._simulation.now_s
        self._work_s += service_s
        if self.sent > 1:
            self.idle_s += max(0.0, now_s - self._free_s)
        self._free_s = max(self._free_s, now_s) + service_s
        if self._is_lost():
            self.lost += 1
            return
        for _ in range(2 if self.duplicate and next(self._random) < self.duplicate else 1):
            late_s = self.jitter_s * next(self._random) if self.jitter_s else 0.0
            arrival_s = self._free_s + self.delay_s + late_s
            self._simulation.at(arrival_s, lambda: deliver(marked))

    def _is_lost(self) -> bool:
        if callable(self.loss):
            return self.loss()
        return bool(self.loss) and next(self._random) < self.loss


def _uniform(seed: int) -> Iterator[float]:
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.random(_RANDOM_BLOCK).tolist()


def send_along(
    links: Sequence[Link], size_bytes: int, deliver: Callable[[bool], None], marked: bool = False
) -> None:
    """Sends a datagram over several links in turn."""
    if not links:
        deliver(marked)
        return
    first, rest = links[0], links[1:]
    if not rest:
        first.send(size_bytes, deliver, marked)
    else:
        first.send(size_bytes, lambda mark: send_along(rest, size_bytes, deliver, mark), marked)
