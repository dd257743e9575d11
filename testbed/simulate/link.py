"""Links in virtual time, and the trains of datagrams that travel over them, as arrays of times.

A link lets arrivals gather until someone asks at the other end. Then the links before it catch up,
and it merges what has come and passes it on. Random choices are drawn per datagram in the order of
service. So nothing depends on how long trains are, and on where they are cut.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Alarm, Simulation

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Places = NDArray[np.int64]
Queued = tuple[Flags | None, Floats]
# Of so many datagrams that arrive one after another: which are kept, shape (count,).
Filter = Callable[[int], Flags]

_FEW = 12  # datagrams, up to which a loop is faster than arrays
_BLOCK = 1024  # where the queue overflows a loop decides, in blocks of so many
# Lengths follow from times, which are rounded; a datagram that fits to the byte must fit.
_ROUNDING_BYTES = 0.01


@dataclass(frozen=True, kw_only=True)
class Spray:
    paths: Sequence[Sequence[Link]]
    common: int  # so many links at their beginnings are the same
    takes: Places  # which of them each datagram takes, shape (k,)


@dataclass(eq=False, kw_only=True)
class Batch:
    """Datagrams that were sent together; trains are cut from them."""

    size_bytes: int  # of each datagram on the wire
    links: Sequence[Link]
    # Is called with each train that comes out of the last link; its times may lie ahead.
    deliver: Callable[[Train], None]
    frames: NDArray[np.uint8] | None = None  # shape (k, bytes that matter), where they do
    spray: Spray | None = None  # in place of `links`
    pulled: bool = False  # someone at their end asks for them; else each comes before its time
    # Of datagrams that come to a link at the same time the lowest goes first, and of those with the
    # same rank who was announced first.
    rank: int = 0
    trains: dict[Train, None] = field(default_factory=dict)  # those that nobody has taken yet

    def recall(self, now_s: float) -> None:
        for train in [train for train in self.trains if train.hop == 0]:
            train.keep(int(train.times_s.searchsorted(now_s, side="right")))


@dataclass(eq=False, slots=True)
class Train:
    """Some datagrams of a batch, in order, at the entrance of a link or at their end."""

    batch: Batch
    links: Sequence[Link]  # where paths part, a train of each path goes on
    index: Places  # their numbers in the batch, shape (n,)
    times_s: Floats  # when each is there, ascending
    hop: int = 0  # how many links they have passed

    def take(self, now_s: float) -> Train:
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

    def of(self, kept: Flags | slice) -> Train:
        return Train(self.batch, self.links, self.index[kept], self.times_s[kept], self.hop)

    def keep(self, count: int) -> None:
        if count < len(self.times_s):
            self.index = self.index[:count]
            self.times_s = self.times_s[:count]
            if not count:
                self.batch.trains.pop(self, None)

    def earliest_s(self, which: slice) -> Floats:
        """The times at which those could come out of the last link, if nothing held them up."""
        times_s, hop = self.times_s[which], self.hop
        if hop < len(links := self.links):
            times_s = np.maximum(times_s, links[hop].free_s) + self._least_s
        return times_s

    @property
    def _least_s(self) -> float:
        spray, hop, size_bytes = self.batch.spray, self.hop, self.batch.size_bytes
        if spray is not None and hop <= spray.common:  # on the shortest of its paths
            return min(_least_s(links[hop:], size_bytes) for links in spray.paths)
        return _least_s(self.links[hop:], size_bytes)

    def place_s(self, place: int) -> float:
        """Compute `earliest_s` of one of them, in a tenth of the time."""
        time_s, hop = float(self.times_s[place]), self.hop
        if hop < len(links := self.links):
            time_s = max(time_s, links[hop].free_s) + self._least_s
        return time_s

    def go_on(self) -> None:
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
        takes = spray.takes[self.index]
        for path in np.unique(takes).tolist():
            part = self.of(takes == path)
            part.links = spray.paths[path]
            self.batch.trains[part] = None
            part.links[part.hop].send(part)


def _least_s(links: Sequence[Link], size_bytes: int) -> float:
    least_s = 0.0
    for link in links:
        least_s += link.least_s(size_bytes)
    return least_s


class Pool:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Train, Any]] = []
        self._number = itertools.count()

    @property
    def first_s(self) -> float:
        return self._heap[0][0] if self._heap else math.inf

    def add(self, train: Train, note: object = None) -> None:
        heapq.heappush(self._heap, (float(train.times_s[0]), next(self._number), train, note))

    def take(self, now_s: float) -> list[tuple[Train, Any]]:
        """Cut off what is there by now, in the order in which equal times count."""
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
        heap, self._heap = sorted(self._heap, key=lambda entry: entry[:2]), []
        return [(train, note) for _, _, train, note in heap if len(train.times_s)]


def depart(batch: Batch, times_s: Floats) -> None:
    """Send a batch, whose datagrams come to the first link at these times, ascending."""
    if not (count := len(times_s)):
        return
    first_s = float(times_s[0])
    for links in [batch.links] if batch.spray is None else batch.spray.paths:
        for before, link in itertools.pairwise(links):
            link.fed_by(before, first_s)
    Train(batch, batch.links, np.arange(count), times_s).go_on()


class Link:
    """A rate, a propagation delay, a queue of so many bytes with tail drop, and random loss."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        rate_bps: float,
        delay_s: float,
        queue_bytes: float = math.inf,
        loss: float | Callable[[], bool] = 0.0,
        jitter_s: float = 0.0,
        in_order: bool = False,
        seed: int = 0,
    ) -> None:
        # Jitter is the most that is added to the delay, so that datagrams overtake each other,
        # unless they stay `in_order`: one that catches up comes out with that before it.
        self.rate_bps = rate_bps
        self.jitter_s = jitter_s
        # Of datagrams that were served: all, those that found the queue full, those lost at random
        # after it.
        self.sent = self.dropped = self.lost = 0
        self.on_change: list[Callable[[], None]] = []  # of its rate or its delay
        self._delay_s = delay_s
        self._loss = loss
        self._simulation = simulation
        self._queue_bytes = queue_bytes
        self._in_order = in_order
        self._out_s = -math.inf  # when the latest comes out, where order is kept
        self.free_s = -math.inf  # when the queue is empty
        self._waiting = Pool()
        self._pushed: list[Train] = []  # those of them that nobody looks for
        # Where more may come from: by time, and the time of each.
        self._feeders: list[tuple[float, int, Link]] = []
        self._fed_s: dict[Link, float] = {}
        self._number = itertools.count()
        self._alarm = Alarm(simulation, self.catch_up)
        # Losses and delays have a generator each: neither depends on the other's draws.
        self._losing, self._delaying = (np.random.default_rng([seed, sort]) for sort in range(2))

    def set_loss(self, loss: float | Callable[[], bool]) -> None:
        """Lose this share from now on, or those for which the callable says so."""
        self.catch_up()
        self._loss = loss

    def set_delay(self, delay_s: float) -> None:
        self.catch_up()
        self._delay_s = delay_s
        self._changed()

    def set_rate(self, rate_bps: float) -> None:
        """Serve at this rate from now on, what waits included."""
        # Datagrams that wait keep their times of arrival, which were decided as they entered.
        self.catch_up()
        now_s = self._simulation.now_s
        left_s = max(0.0, self.free_s - now_s)
        self.free_s = max(self.free_s, now_s + left_s * self.rate_bps / rate_bps)
        self.rate_bps = rate_bps
        self._changed()

    def set_queue(self, queue_bytes: float) -> None:
        self.catch_up()
        self._queue_bytes = queue_bytes

    def _changed(self) -> None:
        for train in self._pushed:
            self._expect(train)
        for changed in self.on_change:
            changed()

    @property
    def queued_bytes(self) -> float:
        self.catch_up()
        if math.isinf(self.rate_bps):
            return 0.0
        return max(0.0, self.free_s - self._simulation.now_s) * self.rate_bps / 8

    def out_s(self) -> float:
        """The time at which something without size comes out that comes in now."""
        self.catch_up()
        # The mean delay, and behind what it may not overtake.
        out_s = max(self.free_s, self._simulation.now_s) + self._delay_s + self.jitter_s / 2
        return max(out_s, self._out_s)

    def least_s(self, size_bytes: int) -> float:
        return size_bytes * 8 / self.rate_bps + self._delay_s

    def send(self, train: Train) -> None:
        """Take a train whose times of arrival are not over."""
        self._waiting.add(train)
        if train.batch.pulled:
            return
        self._pushed.append(train)
        # From another link it comes while that one, and others, may have more.
        if train.hop == 0 and train.times_s[-1] <= self._simulation.now_s:
            self.catch_up()
        else:
            self._expect(train)

    def _expect(self, train: Train) -> None:
        self._alarm.by(float(train.earliest_s(slice(1))[0]))

    def fed_by(self, feeder: Link, first_s: float) -> None:
        """Note that from then on something may come from another link, or pass it."""
        if first_s < self._fed_s.get(feeder, math.inf):
            self._fed_s[feeder] = first_s
            heapq.heappush(self._feeders, (first_s, next(self._number), feeder))

    @property
    def next_s(self) -> float:
        return min(self._waiting.first_s, self._feeders[0][0] if self._feeders else math.inf)

    def catch_up(self) -> None:
        """Let in all that has come by now, here and before; oftener changes nothing."""
        now_s, feeders = self._simulation.now_s, self._feeders
        while feeders and feeders[0][0] <= now_s:
            first_s, _, feeder = heapq.heappop(feeders)
            if self._fed_s.get(feeder) == first_s:
                del self._fed_s[feeder]
                feeder.catch_up()
                if (next_s := feeder.next_s) < math.inf:
                    self.fed_by(feeder, next_s)
        if self._waiting.first_s <= now_s and (parts := self._waiting.take(now_s)):
            self._let_in([part for part, _ in parts])
        if self._pushed:
            self._pushed = [train for train in self._pushed if len(train.times_s)]
            for train in self._pushed:
                self._expect(train)

    def _let_in(self, parts: Sequence[Train]) -> None:
        first = parts[0]
        sizes: float | Floats = float(first.batch.size_bytes)
        arrivals_s, index, owners = first.times_s, first.index, None
        if len(parts) > 1:
            arrivals_s = np.concatenate([part.times_s for part in parts])
            order = np.argsort(arrivals_s, kind="stable")
            arrivals_s = arrivals_s[order]
            index = np.concatenate([part.index for part in parts])[order]
            lengths = [len(part.times_s) for part in parts]
            owners = np.repeat(np.arange(len(parts), dtype=np.uint32), lengths)[order]
            if len({part.batch.size_bytes for part in parts}) > 1:
                sizes = np.array([float(part.batch.size_bytes) for part in parts])[owners]
        self.sent += len(arrivals_s)
        entered, leaves_s = self._queue(arrivals_s, sizes)
        places = np.arange(len(leaves_s)) if entered is None else np.flatnonzero(entered)
        places = self._not_lost(places)
        times_s = leaves_s[places] + self._delay_s
        if self.jitter_s:
            times_s += self.jitter_s * self._delaying.random(len(places))
        if self._in_order and len(places):
            times_s = np.maximum.accumulate(np.maximum(times_s, self._out_s))
            self._out_s = float(times_s[-1])
        elif self.jitter_s:
            order = np.argsort(times_s, kind="stable")
            places, times_s = places[order], times_s[order]
        if owners is not None:
            # Sorted by owner, each one's are a slice.
            whose = owners[places]
            order = np.argsort(whose, kind="stable")
            places, times_s = places[order], times_s[order]
            ends = np.searchsorted(whose[order], np.arange(len(parts)), side="right").tolist()
        else:
            ends = [len(places)]
        index, begin = index[places], 0
        for part, end in zip(parts, ends, strict=True):
            if end > begin:
                batch, links, mine = part.batch, part.links, slice(begin, end)
                gone = Train(batch, links, index[mine], times_s[mine], part.hop + 1)
                gone.go_on()
            begin = end

    def _queue(self, arrivals_s: Floats, sizes: float | Floats) -> Queued:
        """Decide which datagrams enter, None for all, and when each leaves."""
        count = len(arrivals_s)
        if math.isinf(self.rate_bps):
            self.free_s = float(arrivals_s[-1])
            return None, arrivals_s
        if count <= _FEW:
            return self._queue_one_by_one(arrivals_s, sizes)
        bytes_per_s = self.rate_bps / 8
        service_s = np.broadcast_to(np.asarray(sizes) / bytes_per_s, (count,))
        work_s = np.cumsum(service_s)
        # Each leaves when all since the latest pause have been served.
        begun_s = np.maximum.accumulate(
            np.concatenate([[self.free_s], arrivals_s - work_s + service_s])
        )[1:]
        leaves_s = begun_s + work_s
        before_s = np.concatenate([[self.free_s], leaves_s[:-1]])
        queued = np.maximum(0.0, before_s - arrivals_s) * bytes_per_s
        if float(np.max(queued + sizes)) > self._queue_bytes + _ROUNDING_BYTES:
            if count <= _BLOCK:
                return self._queue_one_by_one(arrivals_s, sizes)
            entered = np.ones(count, np.bool_)
            for begin in range(0, count, _BLOCK):
                part = slice(begin, begin + _BLOCK)
                size = sizes if isinstance(sizes, float) else sizes[part]
                enter, leaves_s[part] = self._queue(arrivals_s[part], size)
                entered[part] = True if enter is None else enter
            return entered, leaves_s
        self.free_s = float(leaves_s[-1])
        return None, leaves_s

    def _queue_one_by_one(self, arrivals_s: Floats, sizes: float | Floats) -> Queued:
        """Do the same where datagrams are dropped: each decides about the next."""
        bytes_per_s, room = self.rate_bps / 8, self._queue_bytes + _ROUNDING_BYTES
        count = len(arrivals_s)
        listed = [sizes] * count if isinstance(sizes, float) else sizes.tolist()
        entered, leaves_s = [True] * count, [0.0] * count
        free_s = self.free_s
        for number, (at_s, size) in enumerate(zip(arrivals_s.tolist(), listed, strict=True)):
            queued = max(0.0, free_s - at_s) * bytes_per_s
            if queued + size > room:
                entered[number] = False
                continue
            leaves_s[number] = free_s = max(free_s, at_s) + size / bytes_per_s
        self.free_s = free_s
        self.dropped += (dropped := count - sum(entered))
        return np.array(entered) if dropped else None, np.array(leaves_s)

    def _not_lost(self, places: Places) -> Places:
        if not self._loss:
            return places
        if callable(self._loss):
            lost = np.array([self._loss() for _ in places], np.bool_)
        else:
            lost = self._losing.random(len(places)) < self._loss
        self.lost += int(np.count_nonzero(lost))
        return places[~lost]


class Gate(Link):
    """A link without a rate, a queue and a delay, whose filters see all that passes."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, rate_bps=math.inf, delay_s=0.0)
        self._filters: list[Filter] = []

    def add_filter(self, keeps: Filter) -> None:
        self.catch_up()
        self._filters.append(keeps)

    def remove_filter(self, keeps: Filter) -> None:
        self.catch_up()
        self._filters.remove(keeps)

    def _not_lost(self, places: Places) -> Places:
        for keeps in self._filters:
            places = places[keeps(len(places))]
        return places
