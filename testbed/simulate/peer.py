"""Drives one side of a connection in virtual time, over links to the other side."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Alarm, Simulation
from testbed.simulate.link import Batch, Filter, Link, Pool, Spray, Train, depart
from testbed.transport.connection import Connection
from testbed.transport.events import Event
from testbed.transport.fast_path import UNLIMITED, FastPath, SendPlan
from testbed.transport.native.fast_path import FAST_PATH, CompiledComposer, CompiledPlacement
from testbed.transport.pacing import Pacer
from testbed.transport.settings import LeaveOut
from testbed.transport.wire import HEADER_BYTES, WIRE_OVERHEAD_BYTES

Take = Callable[..., None]  # how a connection takes bytes of its stream, or a datagram of control
Frames = NDArray[np.uint8]  # datagrams, shape (k, datagram bytes)

_MOST_AHEAD = 1 << 13  # datagrams
_NO_FRAMES, _NO_TIMES = np.empty((0, 0), np.uint8), np.empty(0)


# Datagrams of which only the headers exist, for transfers whose contents nobody reads: each row of
# their array begins HEADER_BYTES after the one before. Without the compiled library they are whole.


def frames_of(headers: Frames, chunk_bytes: int) -> Frames:
    """Datagrams with these headers, shape (count, HEADER_BYTES + chunk_bytes)."""
    count = len(headers)
    memory = np.empty(count * HEADER_BYTES + chunk_bytes, np.uint8)
    memory[: count * HEADER_BYTES] = headers.reshape(-1)
    shape = (count, HEADER_BYTES + chunk_bytes)
    return np.ndarray(shape, np.uint8, memory, strides=(HEADER_BYTES, 1))


def _copied(frames: Frames) -> Frames:
    headers_only = frames.strides[0] == HEADER_BYTES
    return frames[:, :HEADER_BYTES].copy() if headers_only else frames.copy()


class HeaderComposer(CompiledComposer):
    def __init__(self, *, frames: Frames, **transfer: Any) -> None:
        super().__init__(frames=frames[:, :HEADER_BYTES], **transfer)
        self.frames = frames
        self._it.rows = None


class HeaderPlacement(CompiledPlacement):
    """Notes which chunks arrive, and writes nothing."""

    def move(self, rows: NDArray[np.uint8]) -> None:
        self.rows, self._it.rows = rows, None


HEADERS_ONLY: FastPath | None = None
if FAST_PATH.compiled:
    HEADERS_ONLY = FAST_PATH._replace(composer=HeaderComposer, placement=HeaderPlacement)


@dataclass
class Way:
    """One direction between two peers; losses do not slow down control messages."""

    links: Sequence[Link]  # of datagrams, one after the other; of control messages in any case
    paths: Sequence[Sequence[Link]] = ()  # where datagrams are sprayed: all, taken in turn
    sprayed: int = field(default=0, init=False)
    _last_control_s: float = field(default=-math.inf, init=False)

    def spray(self, count: int) -> Spray | None:
        """Choose paths for the next `count` datagrams in turn; None where there is only one."""
        if len(self.paths) < 2:
            return None
        takes = (self.sprayed + np.arange(count)) % len(self.paths)
        self.sprayed += count
        common = 0
        while len({id(links[common]) for links in self.paths}) == 1:
            common += 1
        return Spray(paths=self.paths, common=common, takes=takes)

    def send_control(
        self,
        simulation: Simulation,
        arrive: Callable[[], None],
        links: Sequence[Link] | None = None,
    ) -> None:
        """Bring a message that comes to the first of these links now to the end of them."""
        first, *further = self.links if links is None else links
        out_s = first.out_s()
        if further:
            go_on = functools.partial(self.send_control, simulation, arrive, further)
            simulation.at(out_s, go_on)
            return
        self._last_control_s = max(self._last_control_s, out_s)
        simulation.at(self._last_control_s, arrive)


class Arrivals:
    """A host's network interface, whose filters see the datagrams of all connections in order."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._links: list[Link] = []
        self._pools: list[Pool] = []
        self._filters: list[Filter] = []
        self._filtered = Pool()  # what is going to pass the filters, and its pool behind them

    def come_by(self, links: Sequence[Link], pool: Pool) -> None:
        self._pools.append(pool)
        if links[-1] not in self._links:
            self._links.append(links[-1])

    def expect(self, train: Train, pool: Pool, note: object) -> None:
        """Note that a train is going to arrive, which belongs into this pool, with this note."""
        if self._filters:
            self._filtered.add(train, (pool, note))
        else:
            pool.add(train, note)

    def add_filter(self, keeps: Filter) -> None:
        self.catch_up()
        if not self._filters:
            for pool in self._pools:
                for train, note in pool.empty():
                    if len((here := train.take(self._simulation.now_s)).times_s):
                        _put(here, pool, note)
                    if len(train.times_s):
                        self._filtered.add(train, (pool, note))
        self._filters.append(keeps)

    def remove_filter(self, keeps: Filter) -> None:
        self.catch_up()
        self._filters.remove(keeps)
        if not self._filters:
            for train, (pool, note) in self._filtered.empty():
                pool.add(train, note)

    def catch_up(self) -> None:
        for link in self._links:
            link.catch_up()
        now_s = self._simulation.now_s
        if self._filtered.first_s > now_s or not (parts := self._filtered.take(now_s)):
            return
        trains = [train for train, _ in parts]
        lengths = [len(train.times_s) for train in trains]
        order = np.argsort(np.concatenate([train.times_s for train in trains]), kind="stable")
        kept = np.ones(len(order), np.bool_)
        for keeps in self._filters:
            kept[kept] = keeps(int(np.count_nonzero(kept)))
        stays = np.empty(len(order), np.bool_)
        stays[order] = kept
        for (train, (pool, note)), mine in zip(
            parts, np.split(stays, np.cumsum(lengths)[:-1]), strict=True
        ):
            if mine.any():
                _put(train.of(mine), pool, note)


def _put(train: Train, pool: Pool, note: object) -> None:
    train.batch.trains[train] = None
    pool.add(train, note)


class Schedule(NamedTuple):
    times_s: NDArray[np.float64]  # of each, shape (batches,)
    sizes: NDArray[np.int64]
    tokens: list[float]  # what the first ones leave of the pacer's; the others leave none


def schedule(pacer: Pacer, now_s: float, count: int, beyond: int) -> Schedule:
    """The pacer's, for whole batches of so many datagrams, if nothing happens."""
    size_bytes, quantum, bytes_per_s = pacer.datagram_bytes, pacer.quantum, pacer.bytes_per_s
    at_s = pacer.next_s(now_s, count + beyond)
    assert pacer.refilled_s is not None  # by `next_s`
    tokens = min(pacer.tokens + bytes_per_s * (at_s - pacer.refilled_s), pacer.most_tokens)
    times_s, sizes, left_over, left = list[float](), list[int](), list[float](), count
    while left and not (sizes and abs(tokens) < 1):
        size = min(int((tokens + 1) // size_bytes), pacer.most)
        if size > left and beyond:
            left = 0
            break
        size = min(size, left)
        tokens -= size * size_bytes
        left -= size
        times_s.append(at_s)
        sizes.append(size)
        left_over.append(tokens)
        lacking = min(quantum, left + beyond) * size_bytes - tokens
        if lacking > 1 and abs(tokens) >= 1:  # the pacer says why
            at_s += lacking / bytes_per_s
            tokens = min(tokens + lacking, pacer.most_tokens)
    # From here on each batch takes what has been waited for, and all waits but the last are equal.
    full, rest = divmod(left, quantum)
    awaited = np.full(full + bool(rest and not beyond), quantum, np.int64)
    if len(awaited) > full:
        awaited[-1] = rest
    later_s = at_s + ((awaited * size_bytes).cumsum() - tokens) / bytes_per_s
    return Schedule(
        np.concatenate((times_s, later_s)),
        np.concatenate((np.array(sizes, np.int64), awaited)),
        left_over,
    )


class Ahead:
    batch: Batch  # on the links; whoever made it sets it

    def __init__(self, plan: SendPlan, now_s: float) -> None:
        self._plan = plan
        composer = plan.composer
        count = min(len(plan.chunks), _MOST_AHEAD)
        beyond = plan.beyond + len(plan.chunks) - count
        self._schedule = schedule(plan.pacer, now_s, count, beyond)
        self.times_s = self._schedule.times_s.repeat(self._schedule.sizes)  # of departure
        count = len(self.times_s)
        room, parts = len(composer.frames), []
        for begin in range(0, count, room):
            chunks = plan.chunks[begin : min(count, begin + room)]
            composer.compose(chunks, plan.first + begin, ask=0)
            parts.append(_copied(composer.frames[: len(chunks)]))
        self.frames = parts[0] if len(parts) == 1 else np.concatenate(parts or [_NO_FRAMES])
        self.size_bytes = composer.frames.shape[1]

    def settle(self, connection: Connection, now_s: float) -> int:
        """Report what has departed by now, and recall the others; return how many these are."""
        times_s, sizes, tokens = self._schedule
        count = int(times_s.searchsorted(now_s, side="right"))
        self.batch.recall(now_s)
        if not count:
            return len(self.times_s)
        pacer = self._plan.pacer
        pacer.tokens = tokens[count - 1] if count <= len(tokens) else 0.0
        pacer.refilled_s = float(times_s[count - 1])
        sent = list(zip(sizes[:count].tolist(), times_s[:count].tolist(), strict=True))
        connection.outgoing.on_plan_sent(self._plan, sent)
        return int(sizes[count:].sum())


class Peer:
    def __init__(
        self,
        simulation: Simulation,
        connection: Connection,
        way: Way,
        *,
        coalesce_s: float = 0.0,
        measured: bool = False,
        arrivals: Arrivals | None = None,
        ahead: bool = False,
        more_header_bytes: int = 0,
    ) -> None:
        # With `ahead` a plan's datagrams are sent at once, and what comes is read when it counts.
        self.connection = connection
        self.way = way  # to the other side
        self.other: Peer | None = None  # before `link_up`, and once the stream is cut
        self.events: list[Event] = []  # all that the connection has reported
        self.on_event: Callable[[Event], None] = lambda event: None
        self.leave_out: LeaveOut | None = None  # as in `EndpointConfig`
        self.arrivals = arrivals or Arrivals(simulation)
        self.inbox = Pool()  # what arrives, until it is read
        self._simulation = simulation
        self._rank = next(simulation.numbers)  # as in `Batch`, of what it sends
        self._coalesce_s = coalesce_s
        self._measured = measured
        self._sends_ahead = ahead
        self._header_bytes = WIRE_OVERHEAD_BYTES + more_header_bytes
        self._alarm = Alarm(simulation, self.work)
        self._deadline_s = -math.inf
        self._ahead: Ahead | None = None
        self._coming: list[Batch] = []  # of the other side
        self._unread_until_s = -math.inf  # until then arrivals gather; else each is read at once
        self._read_alarm = Alarm(simulation, self._on_read_alarm)
        self._awaited = 1.0  # so many may come until one counts, as was asked last
        self._alarm_awaits = math.inf  # the same when the alarm was set; infinite: set it anew

    def catch_up(self) -> None:
        """Tell the connection what has happened; do it before anything is asked of it."""
        self._read()
        self._settle()

    def _settle(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            stays = ahead.settle(self.connection, self._simulation.now_s)
            if ahead.batch.spray is not None:
                self.way.sprayed -= stays

    def work(self) -> None:
        """Do what is due; call it after anything was asked of the connection."""
        connection, now_s = self.connection, self._simulation.now_s
        if self._ahead is not None:
            self._settle()
        if now_s >= self._deadline_s:
            self._read()
            connection.on_deadline(now_s)
        self._send_control()  # what data are worth goes before them
        while len(frames := connection.offer(now_s)):
            left_out = self.leave_out(len(frames)) if self.leave_out is not None else None
            sent = _copied(frames)  # the offer's memory is used again
            sent = sent if left_out is None else sent[~left_out]
            self._carry(sent, frames.shape[1], np.full(len(sent), now_s))
            connection.outgoing.sent(len(frames), now_s, left_out)
        self._send_control()
        events = connection.events()
        for event in events:
            self.events.append(event)
            self.on_event(event)
        if self._ahead is not None:  # an event's receiver may have given it work
            self._settle()
        planned = self._send_ahead()
        deadline_s = connection.next_deadline_s(now_s, planned=planned)
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        if deadline_s is not None:
            self._alarm.by(deadline_s)
        self._schedule_read()

    def _send_ahead(self) -> bool:
        now_s = self._simulation.now_s
        if not self._sends_ahead or self.leave_out is not None or self.other is None:
            return False
        plan = self.connection.send_plan()
        if plan is None or plan.window < UNLIMITED or plan.steady_until_s < math.inf:
            return False
        ahead = Ahead(plan, now_s)
        if not len(ahead.times_s):
            return False
        self._ahead = ahead
        ahead.batch = self._carry(ahead.frames, ahead.size_bytes, ahead.times_s)
        self._alarm.by(float(ahead.times_s[-1]))
        return True

    def _carry(self, frames: Frames, datagram_bytes: int, times_s: NDArray[np.float64]) -> Batch:
        way, other = self.way, self.other

        def arrive(train: Train) -> None:
            assert other is not None
            other.arrivals.expect(train, other.inbox, self)

        batch = Batch(
            size_bytes=datagram_bytes + self._header_bytes,
            links=way.links,
            spray=way.spray(len(frames)) if way.paths else None,
            deliver=arrive,
            frames=frames,
            pulled=True,
            rank=self._rank,
        )
        if other is not None:
            depart(batch, times_s)
            other._coming.append(batch)
            other.schedule_read_anew()
        return batch

    @property
    def _needed(self) -> float:
        """The number of datagrams that may come until one counts; 1 if all may count."""
        return (
            max(1.0, self.connection.incoming.datagrams_until_action) if self._sends_ahead else 1.0
        )

    def _due_s(self) -> float:
        self._coming = [batch for batch in self._coming if batch.trains]
        if not self._coming:
            return math.inf
        self._awaited = self._needed
        return max(self._comes_s(self._awaited), self._unread_until_s)

    def _comes_s(self, needed: float) -> float:
        trains = [train for batch in self._coming for train in batch.trains]
        if needed == 1:
            return min([train.place_s(0) for train in trains])
        if sum([len(train.times_s) for train in trains]) < needed:
            return math.inf
        last = int(needed) - 1
        if len(trains) == 1:
            return trains[0].place_s(last)
        times_s = [train.earliest_s(slice(last + 1)) for train in trains]
        return float(np.partition(np.concatenate(times_s), last)[last])

    def schedule_read_anew(self) -> None:
        self._alarm_awaits = math.inf
        self._schedule_read()

    def _schedule_read(self) -> None:
        """Read when something comes that may count, at the latest."""
        # An alarm that rings before as many or fewer have come rings early enough.
        if self._read_alarm.is_set and (
            self._alarm_awaits == 1 or self._alarm_awaits <= self._needed
        ):
            return
        self._set_read_alarm(self._due_s())

    def _set_read_alarm(self, due_s: float) -> None:
        if due_s < math.inf:
            self._read_alarm.by(due_s)
            self._alarm_awaits = self._awaited

    def _on_read_alarm(self) -> None:
        now_s = self._simulation.now_s
        if (due_s := self._due_s()) <= now_s:
            self.arrivals.catch_up()
            if (due_s := self._due_s()) <= now_s:
                self._read()
                self.work()
                return
        self._set_read_alarm(due_s)

    def _read(self, *, waited: bool = False) -> None:
        now_s, connection = self._simulation.now_s, self.connection
        if self._unread_until_s > -math.inf:
            waited, self._unread_until_s, self._alarm_awaits = True, -math.inf, math.inf
        self.arrivals.catch_up()
        if self.inbox.first_s > now_s:
            return
        frames, times_s = self._take(now_s)
        if not len(frames):
            return
        if self._needed > 1:
            # Nothing is answered, but it is noted when the first one and the last one came.
            connection.on_datagrams(frames[:1], float(times_s[0]))
            connection.on_datagrams(frames[1:], float(times_s[-1]))
            return
        # Without gathering, each is read as it comes, also of those that come at once.
        at_once = len(frames) if waited or self._coalesce_s else 1
        for first in range(0, len(frames), at_once):
            part = frames[first : first + at_once]
            connection.on_datagrams(part, now_s, waited=waited)
        if rest_s := connection.coalesce_s(self._coalesce_s, measured=self._measured):
            self._unread_until_s = now_s + rest_s

    def _take(self, now_s: float) -> tuple[Frames, NDArray[np.float64]]:
        """The datagrams that have come by now, and when they did."""
        parts, times_s = [], []
        for train, sender in self.inbox.take(now_s):
            batch = train.batch
            if sender.other is not self or batch.frames is None:
                continue
            parts.append(batch.frames[train.index])
            times_s.append(train.times_s)
        if not parts:
            return _NO_FRAMES, _NO_TIMES
        size_bytes = batch.size_bytes - self._header_bytes
        frames, when_s = parts[0], times_s[0]
        if len(parts) > 1:
            when_s = np.concatenate(times_s)
            order = when_s.argsort(kind="stable")
            frames, when_s = np.concatenate(parts)[order], when_s[order]
        if frames.shape[1] < size_bytes:
            frames = frames_of(frames, size_bytes - HEADER_BYTES)
        return frames, when_s

    def _send_control(self) -> None:
        if data := self.connection.control():
            self._say(data, Connection.on_control)
        for datagram in self.connection.control_datagrams(self._simulation.now_s):
            self._say([datagram], Connection.on_control_datagrams)

    def _say(self, data: Sequence[Any], take: Take) -> None:
        other = self.other

        def arrive() -> None:
            if other is not None and self.other is other:
                other.on_control(data, take)

        self.way.send_control(self._simulation, arrive)

    def on_control(self, data: Sequence[Any], take: Take = Connection.on_control) -> None:
        self.catch_up()  # what was sent before must not be reported as missing
        take(self.connection, data, self._simulation.now_s)
        self.work()

    def cut(self, reason: str = "the connection was closed") -> None:
        self._settle()
        other, self.other = self.other, None
        self.connection.end(reason)
        self.work()
        if other is None:
            return

        def arrive() -> None:
            if other.other is self:
                other.cut(reason)

        self.way.send_control(self._simulation, arrive)


def link_up(one: Peer, two: Peer) -> None:
    one.other, two.other = two, one
    for here, there in ((one, two), (two, one)):
        for link in set(there.way.links).union(*there.way.paths):
            link.on_change.append(here.schedule_read_anew)
        here.arrivals.come_by(there.way.links, here.inbox)
    one.work()
    two.work()
