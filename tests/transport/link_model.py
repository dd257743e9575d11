"""A small network in virtual time: an event queue, and links with a rate, a delay and a queue.

Nothing here knows the time of day and every random choice has a seed, so a run repeats itself to
the last bit. A `Link` needs no event per departure: when a datagram leaves a first-in-first-out
queue is known when it enters. `link_flows` and `link_transfers` have what
travels over it.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

_RANDOM_BLOCK = 4096


class Simulation:
    """The clock and what is going to happen, in order."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Calls `action` at `time_s`; things of the same time happen in the order of asking."""
        heapq.heappush(self._queue, (max(time_s, self.now_s), next(self._tie), action))

    def run(
        self,
        *,
        until_s: float = math.inf,
        done: Callable[[], bool] = lambda: False,
        limit: int = 5_000_000,
    ) -> float:
        """Runs until then, until `done`, or until nothing is left; returns the time."""
        for _ in range(limit):
            if done() or not self._queue:
                return self.now_s
            if self._queue[0][0] > until_s:
                self.now_s = until_s
                return until_s
            self.now_s, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        raise AssertionError(f"no end after {limit} events, at {self.now_s} s")


class Alarm:
    """Calls an action at the earliest time asked for since it last rang."""

    def __init__(self, simulation: Simulation, action: Callable[[], None]) -> None:
        self._simulation = simulation
        self._action = action
        self._time_s = math.inf

    def by(self, time_s: float) -> None:
        """Rings at `time_s` at the latest."""
        if time_s < self._time_s:
            self._time_s = time_s
            self._simulation.at(time_s, lambda: self._ring(time_s))

    def _ring(self, time_s: float) -> None:
        if time_s == self._time_s:  # not replaced by an earlier one meanwhile
            self._time_s = math.inf
            self._action()


class Link:
    """A rate, a propagation delay, a queue of so many bytes with tail drop, and random loss.

    Attributes:
        sent, dropped, lost, marked: datagrams that came, that found the queue full, that were
            lost at random after the queue, and that were marked.
        most_queued_bytes: the longest that the queue ever was.
    """

    def __init__(
        self,
        simulation: Simulation,
        *,
        rate_bps: float,
        delay_s: float,
        queue_bytes: float = math.inf,
        mark_bytes: float = math.inf,
        loss: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`mark_bytes` is the queue length from which on arriving datagrams are marked."""
        self.rate_bps = rate_bps
        self.delay_s = delay_s
        self.loss = loss
        self.sent = self.dropped = self.lost = self.marked = 0
        self.most_queued_bytes = 0.0
        self._simulation = simulation
        self._queue_bytes = queue_bytes
        self._mark_bytes = mark_bytes
        self._free_s = 0.0  # when the queue is empty
        self._work_s = 0.0  # service given or promised
        self._random = _uniform(seed)

    @property
    def queued_bytes(self) -> float:
        """The queue's length now, with what is left of the datagram in service."""
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
        service_s = size_bytes * 8 / self.rate_bps
        self._work_s += service_s
        self._free_s = max(self._free_s, self._simulation.now_s) + service_s
        if self.loss and next(self._random) < self.loss:
            self.lost += 1
            return
        self._simulation.at(self._free_s + self.delay_s, lambda: deliver(marked))


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


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 for equal shares, 1/n when one has all (DEC-TR-301, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
