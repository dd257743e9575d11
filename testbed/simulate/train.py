"""Trains: datagrams that travel together, as arrays of when each of them is where.

A train waits at a link until someone wants to know what has become of it, and a link cuts it
wherever datagrams of others come in between. So nothing depends on how long trains are.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Entrance(Protocol):
    """What trains can be sent over."""

    @property
    def free_s(self) -> float:
        """Before this time nothing else leaves its queue."""

    def least_s(self, size_bytes: int) -> float:
        """What nothing can pass it faster than, of so many bytes."""

    @property
    def next_s(self) -> float:
        """Before this time nothing comes in that it does not know of."""

    def catch_up(self) -> None:
        """Passes on what has come by now."""

    def send(self, train: "Train") -> None:
        """Takes a train whose times of arrival are not over."""

    def fed_by(self, feeder: "Entrance", first_s: float) -> None:
        """From then on something may come from another one."""


@dataclass(frozen=True, kw_only=True)
class Spray:
    """How datagrams of a batch spread over paths."""

    paths: Sequence[Sequence[Entrance]]
    common: int  # so many links at their beginnings are the same
    takes: NDArray[np.int64]  # which of them each datagram takes, shape (k,)


@dataclass(eq=False, kw_only=True)
class Batch:
    """What trains are cut from."""

    size_bytes: int  # of each datagram on the wire
    links: Sequence[Entrance]
    # Is called with each train that comes out of the last link; its times may lie ahead.
    deliver: "Callable[[Train], None]"
    frames: NDArray[np.uint8] | None = None  # shape (k, bytes that matter), where they do
    spray: Spray | None = None  # in place of `links`
    pulled: bool = False  # someone at their end looks for them; else each comes before its time
    # Of datagrams that come to a link at the same time the lowest goes first, and of those with the
    # same rank who was announced first.
    rank: int = 0
    trains: "dict[Train, None]" = field(default_factory=dict)  # those that nobody has taken yet

    def recall(self, now_s: float) -> None:
        """What has not departed by now does not depart at all."""
        for train in [each for each in self.trains if each.hop == 0]:
            train.keep(int(train.times_s.searchsorted(now_s, side="right")))


@dataclass(eq=False, slots=True)
class Train:
    """Some datagrams of a batch, in order, at the entrance of a link or at their end."""

    batch: Batch
    links: Sequence[Entrance]  # where paths part, a train of each path goes on
    index: NDArray[np.int64]  # their numbers in the batch, shape (n,)
    times_s: NDArray[np.float64]  # when each is there, ascending
    hop: int = 0  # how many links they have passed

    def take(self, now_s: float) -> "Train":
        """Cuts off what is there by now."""
        if self.times_s[-1] <= now_s:
            count = len(self.times_s)
        else:
            count = int(self.times_s.searchsorted(now_s, side="right"))
        here = self.of(slice(count))
        self.index = self.index[count:]
        self.times_s = self.times_s[count:]
        if not len(self.times_s):
            self.batch.trains.pop(self, None)
        return here

    def of(self, kept: NDArray[np.bool_] | slice) -> "Train":
        """Those that are kept."""
        return Train(self.batch, self.links, self.index[kept], self.times_s[kept], self.hop)

    def keep(self, count: int) -> None:
        """Forgets all but the first ones."""
        if count < len(self.times_s):
            self.index = self.index[:count]
            self.times_s = self.times_s[:count]
            if not count:
                self.batch.trains.pop(self, None)

    def earliest_s(self, which: slice) -> NDArray[np.float64]:
        """When those could come out of the last link, if nothing held them up on their way."""
        times_s, hop = self.times_s[which], self.hop
        if hop < len(links := self.links):
            times_s = np.maximum(times_s, links[hop].free_s) + self._least_s
        return times_s

    @property
    def _least_s(self) -> float:
        """What one needs at least from here to the end."""
        spray, hop, size_bytes = self.batch.spray, self.hop, self.batch.size_bytes
        if spray is not None and hop <= spray.common:  # on the shortest of its paths
            return min(_least_s(links[hop:], size_bytes) for links in spray.paths)
        return _least_s(self.links[hop:], size_bytes)

    def place_s(self, place: int) -> float:
        """The same of one of them, in a tenth of the time."""
        time_s, hop = float(self.times_s[place]), self.hop
        if hop < len(links := self.links):
            time_s = max(time_s, links[hop].free_s) + self._least_s
        return time_s

    def go_on(self) -> None:
        """To the next link, or to the end."""
        batch, spray = self.batch, self.batch.spray
        if spray is not None and self.hop == spray.common:
            self._part(spray)
        elif self.hop < len(self.links):
            batch.trains[self] = None
            self.links[self.hop].send(self)
        else:
            if batch.pulled:
                batch.trains[self] = None
            batch.deliver(self)

    def _part(self, spray: Spray) -> None:
        """Each datagram goes on over its own path."""
        takes = spray.takes[self.index]
        for path in np.unique(takes).tolist():
            part = self.of(takes == path)
            part.links = spray.paths[path]
            self.batch.trains[part] = None
            part.links[part.hop].send(part)


def _least_s(links: Sequence[Entrance], size_bytes: int) -> float:
    """What a datagram needs at least for these."""
    least_s = 0.0
    for link in links:
        least_s += link.least_s(size_bytes)
    return least_s


class Pool:
    """Trains that wait at one place, each with whatever its place needs to know of it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Train, Any]] = []
        self._number = itertools.count()

    @property
    def first_s(self) -> float:
        """Nothing is there before."""
        return self._heap[0][0] if self._heap else math.inf

    @property
    def trains(self) -> list[Train]:
        """All of them, in no order."""
        return [train for _, _, train, _ in self._heap if len(train.times_s)]

    def add(self, train: Train, note: object = None) -> None:
        heapq.heappush(self._heap, (float(train.times_s[0]), next(self._number), train, note))

    def take(self, now_s: float) -> list[tuple[Train, Any]]:
        """Cuts off what is there by now, in the order in which equal times count."""
        heap, parts = self._heap, []
        while heap and heap[0][0] <= now_s:
            _, number, train, note = heap[0]
            if len(train.times_s):  # it may have been recalled
                parts.append((train.batch.rank, number, train.take(now_s), note))
            if len(train.times_s):
                heapq.heapreplace(heap, (float(train.times_s[0]), number, train, note))
            else:
                heapq.heappop(heap)
        if len(parts) > 1:
            parts.sort(key=lambda part: part[:2])
        return [(part, note) for _, _, part, note in parts]

    def empty(self) -> list[tuple[Train, Any]]:
        """Takes all trains as they are."""
        heap, self._heap = sorted(self._heap, key=lambda entry: entry[:2]), []
        return [(train, note) for _, _, train, note in heap if len(train.times_s)]


def depart(batch: Batch, times_s: NDArray[np.float64]) -> None:
    """Sends a batch on its way: its datagrams come to the first link at these times, ascending."""
    if not (count := len(times_s)):
        return
    first_s = float(times_s[0])
    for links in [batch.links] if batch.spray is None else batch.spray.paths:
        for before, link in itertools.pairwise(links):
            link.fed_by(before, first_s)
    Train(batch, batch.links, np.arange(count), times_s).go_on()
