"""Links in virtual time: a rate, a delay, a queue, and whatever else befalls datagrams.

A link takes trains and passes trains on. Of a first-in-first-out queue it is known when a datagram
leaves it once all that came before are known. So a link lets arrivals gather until the first of
them is about to come out at the other end: by then whoever comes in between has been announced,
and nothing of what they do is late. The last link of a way can wait longer where it is known that
nobody looks at its other end. Every random choice has a seed and is drawn per datagram in
the order of service, so it does not depend on where trains were cut.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Alarm, Simulation
from testbed.simulate.train import Train

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Up to so many datagrams, a loop is faster than arrays.
_FEW = 12
# Lengths follow from times, which are rounded; a datagram that fits to the byte must fit.
_ROUNDING_BYTES = 0.01


class Link:
    """A rate, a propagation delay, a queue of so many bytes with tail drop, and random harm.

    Attributes:
        sent, dropped, lost, marked: datagrams that came, that found the queue full, that were
            lost at random after the queue, and that were marked, of those that have been served.
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
        self.jitter_s = jitter_s
        self.duplicate = duplicate
        self.sent = self.dropped = self.lost = self.marked = 0
        self.most_queued_bytes = self.idle_s = 0.0
        self._loss = loss
        self._simulation = simulation
        self._queue_bytes = queue_bytes
        self._mark_bytes = mark_bytes
        self._free_s = -math.inf  # when the queue is empty
        self._work_s = 0.0  # service given or promised
        self._waiting: list[Train] = []  # announced, in the order of that
        self._alarm = Alarm(simulation, self.serve)
        # One generator for each sort of harm: what one draws changes nothing of the others.
        self._losing, self._delaying, self._doubling = (
            np.random.default_rng([seed, sort]) for sort in range(3)
        )

    @property
    def loss(self) -> float | Callable[[], bool]:
        """As given; may be changed."""
        return self._loss

    @loss.setter
    def loss(self, loss: float | Callable[[], bool]) -> None:
        self.serve()
        self._loss = loss

    def set_rate(self, rate_bps: float) -> None:
        """Serves at this rate from now on, what waits included.

        Datagrams that wait keep their times of arrival, which were decided as they entered; those
        that come later wait until the queue is empty at the new rate.
        """
        self.serve()
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
        return self._left_s() * self.rate_bps / 8

    @property
    def busy_s(self) -> float:
        """For how long the link has sent until now."""
        left_s = self._left_s()  # first: it serves
        return self._work_s - left_s

    @property
    def coming(self) -> int:
        """Datagrams that have been announced and are not here yet."""
        self.serve()
        return sum(len(train.times_s) for train in self._waiting)

    def passage_s(self) -> float:
        """How long something without size would take now."""
        return self._left_s() + self.delay_s

    def _left_s(self) -> float:
        self.serve()
        return max(0.0, self._free_s - self._simulation.now_s)

    def send(self, train: Train) -> None:
        """Takes a train whose times of arrival are not over."""
        at_once = not self._waiting and train.times_s[-1] <= self._simulation.now_s
        self._waiting.append(train)
        if at_once:
            self.serve()
        else:
            self._expect(train)

    def _expect(self, train: Train) -> None:
        """Serves it before its first datagram could come out."""
        first_s = float(train.times_s[0])
        service_s = train.batch.size_bytes * 8 / self.rate_bps
        out_s = max(first_s, self._free_s) + service_s + self.delay_s
        if train.hop == len(train.batch.links) - 1:
            out_s = max(out_s, train.batch.unread_until_s())
        self._alarm.by(out_s)

    def serve(self) -> None:
        """Lets in all that has come by now. It is done as it is due; more often changes nothing."""
        self.catch_up()
        self.expect_waiting()

    def expect_waiting(self) -> None:
        """Serves what waits when it is due; call it after `catch_up`."""
        for train in self._waiting:
            self._expect(train)

    def catch_up(self) -> None:
        """Lets in all that has come by now, and leaves open when the others are served."""
        now_s = self._simulation.now_s
        parts: list[Train] = []
        left: list[Train] = []
        for train in self._waiting:
            here, later = train.until(now_s)
            parts += [] if here is None else [here]
            left += [] if later is None else [later]
        self._waiting = left
        if parts:
            self._let_in(parts)

    def _let_in(self, parts: Sequence[Train]) -> None:
        """Serves datagrams in the order of their arrival, and passes on what comes out."""
        first = parts[0]
        sizes: float | Floats = float(first.batch.size_bytes)
        arrivals_s, index, marked, owners = first.times_s, first.index, first.marked, None
        if len(parts) > 1:
            arrivals_s = np.concatenate([each.times_s for each in parts])
            order = np.argsort(arrivals_s, kind="stable")
            arrivals_s = arrivals_s[order]
            index = np.concatenate([each.index for each in parts])[order]
            marked = np.concatenate([each.marked for each in parts])[order]
            lengths = [len(each.times_s) for each in parts]
            owners = np.repeat(np.arange(len(parts)), lengths)[order]
            if len({each.batch.size_bytes for each in parts}) > 1:
                sizes = np.array([float(each.batch.size_bytes) for each in parts])[owners]
        self.sent += len(arrivals_s)
        entered, marks, leaves_s = self._queue(arrivals_s, sizes)
        marked = marked | marks
        places = self._duplicated(self._not_lost(np.flatnonzero(entered)))
        times_s = leaves_s[places] + self.delay_s
        if self.jitter_s:
            times_s += self.jitter_s * self._delaying.random(len(places))
            order = np.argsort(times_s, kind="stable")
            places, times_s = places[order], times_s[order]
        for number, part in enumerate(parts):
            out, out_s = places, times_s
            if owners is not None:
                mine = owners[places] == number
                out, out_s = places[mine], times_s[mine]
            if len(out):
                Train(part.batch, index[out], out_s, marked[out], hop=part.hop + 1).go_on()

    def _queue(self, arrivals_s: Floats, sizes: float | Floats) -> tuple[Flags, Flags, Floats]:
        """Which datagrams enter, which are marked, and when each leaves."""
        count = len(arrivals_s)
        if math.isinf(self.rate_bps):
            marks = np.full(count, self._mark_bytes <= 0)
            self.marked += int(np.count_nonzero(marks))
            self._free_s = float(arrivals_s[-1])
            self.most_queued_bytes = max(self.most_queued_bytes, float(np.max(sizes)))
            return np.ones(count, np.bool_), marks, arrivals_s
        if count <= _FEW:
            return self._queue_one_by_one(arrivals_s, sizes)
        bytes_per_s = self.rate_bps / 8
        service_s = np.broadcast_to(np.asarray(sizes) / bytes_per_s, (count,))
        work_s = np.cumsum(service_s)
        # Each leaves when all since the latest pause have been served.
        begun_s = np.maximum.accumulate(
            np.concatenate([[self._free_s], arrivals_s - work_s + service_s])
        )[1:]
        leaves_s = begun_s + work_s
        before_s = np.concatenate([[self._free_s], leaves_s[:-1]])
        queued = np.maximum(0.0, before_s - arrivals_s) * bytes_per_s
        most = float(np.max(queued + sizes))
        if most > self._queue_bytes + _ROUNDING_BYTES:
            return self._queue_one_by_one(arrivals_s, sizes)
        pauses_s = np.maximum(0.0, arrivals_s - before_s)
        self.idle_s += float(np.sum(pauses_s[np.isfinite(pauses_s)]))
        self.most_queued_bytes = max(self.most_queued_bytes, most)
        self._work_s += float(work_s[-1])
        self._free_s = float(leaves_s[-1])
        marks = queued >= self._mark_bytes
        self.marked += int(np.count_nonzero(marks))
        return np.ones(count, np.bool_), marks, leaves_s

    def _queue_one_by_one(
        self, arrivals_s: Floats, sizes: float | Floats
    ) -> tuple[Flags, Flags, Floats]:
        """The same where datagrams are dropped: each decides about the next."""
        bytes_per_s, room = self.rate_bps / 8, self._queue_bytes + _ROUNDING_BYTES
        count = len(arrivals_s)
        each = [sizes] * count if isinstance(sizes, float) else sizes.tolist()
        entered, marks, leaves_s = [True] * count, [False] * count, [0.0] * count
        free_s, most = self._free_s, self.most_queued_bytes
        for number, (at_s, size) in enumerate(zip(arrivals_s.tolist(), each, strict=True)):
            queued = max(0.0, free_s - at_s) * bytes_per_s
            if queued + size > room:
                entered[number] = False
                continue
            most = max(most, queued + size)
            marks[number] = queued >= self._mark_bytes
            service_s = size / bytes_per_s
            self._work_s += service_s
            if at_s > free_s > -math.inf:
                self.idle_s += at_s - free_s
            leaves_s[number] = free_s = max(free_s, at_s) + service_s
        self._free_s, self.most_queued_bytes = free_s, most
        self.marked += sum(marks)
        self.dropped += count - sum(entered)
        return np.array(entered), np.array(marks), np.array(leaves_s)

    def _not_lost(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that are not lost behind the queue."""
        if not callable(self._loss) and not self._loss:
            return places
        if callable(self._loss):
            lost = np.array([self._loss() for _ in places], np.bool_)
        else:
            lost = self._losing.random(len(places)) < self._loss
        self.lost += int(np.count_nonzero(lost))
        return places[~lost]

    def _duplicated(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same, with those twice that arrive twice."""
        if not self.duplicate:
            return places
        return np.repeat(places, 1 + (self._doubling.random(len(places)) < self.duplicate))
