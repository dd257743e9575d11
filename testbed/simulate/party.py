"""Drives one side of a connection in virtual time, over links to the other side."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.simulate import headers
from testbed.simulate.arrivals import Arrivals
from testbed.simulate.engine import Alarm, Simulation
from testbed.simulate.link import Batch, Link, Pool, Train, depart
from testbed.simulate.way import Way
from testbed.transport.connection import Connection
from testbed.transport.events import Event
from testbed.transport.fast_path import SendPlan
from testbed.transport.pacing import Pacer
from testbed.transport.settings import LeaveOut
from testbed.transport.wire import HEADER_BYTES, WIRE_OVERHEAD_BYTES

Frames = NDArray[np.uint8]  # several, shape (k, datagram bytes)

# So many datagrams are sent ahead at most.
_MOST_AHEAD = 1 << 13
_NOTHING, _NEVER = np.empty((0, 0), np.uint8), np.empty(0)


class Schedule(NamedTuple):
    """When batches go."""

    times_s: NDArray[np.float64]  # of each, shape (batches,)
    sizes: NDArray[np.int64]
    tokens: list[float]  # what the first ones leave of the pacer's; the others leave none


def schedule(pacer: Pacer, now_s: float, count: int, beyond: int) -> Schedule:
    """The pacer's, for whole batches of so many datagrams, if nothing happens."""
    size_bytes, quantum, bytes_per_s = pacer.datagram_bytes, pacer.quantum, pacer.bytes_per_s
    at_s = pacer.next_s(now_s, count + beyond)
    assert pacer.refilled_s is not None  # it has just looked
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
    """The `SendPlan` of a sender, sent ahead as one train."""

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
            parts.append(headers.kept(composer.frames[: len(chunks)]))
        self.frames = parts[0] if len(parts) == 1 else np.concatenate(parts or [_NOTHING])
        self.size_bytes = composer.frames.shape[1]

    @property
    def over_s(self) -> float:
        """When the last one departs."""
        return float(self.times_s[-1])

    def settle(self, connection: Connection, now_s: float) -> int:
        """Reports what has departed by now; nothing else does. Returns how many have not."""
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


class Party:
    """One side of a connection."""

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
        """Without `arrivals` it is its host's only connection."""
        # With `ahead` a plan's datagrams are sent at once, and what comes is read when it counts.
        self.connection = connection
        self.way = way  # to the other side
        self.other: Party | None = None  # before `link_up`, and once the stream is cut
        self.events: list[Event] = []  # all that the connection has told
        self.on_event: Callable[[Event], None] = lambda event: None
        self.leave_out: LeaveOut | None = None  # as in `EndpointConfig`
        self.batches: list[tuple[float, int]] = []  # when how many datagrams were offered
        self.unread_until_s = -math.inf  # until when arrivals gather; else each is read as it comes
        self.rank = simulation.number()  # as in `Batch`, of what it sends
        self.inbox = Pool()  # what arrives, until it is read
        self.arrivals = arrivals or Arrivals(simulation)
        self._simulation = simulation
        self._coalesce_s = coalesce_s
        self._measured = measured
        self._sends_ahead = ahead
        self._header_bytes = WIRE_OVERHEAD_BYTES + more_header_bytes
        self._busy_until_s = -math.inf
        self._deadline_s = -math.inf
        self._ahead: Ahead | None = None
        self._coming: list[Batch] = []  # of the other side
        self._control: list[bytes] = []
        self._alarm = Alarm(simulation, self.work)
        self._ear = Alarm(simulation, self._listen)
        self._awaited = 1.0  # so many may come, as was asked last
        self._heeded = math.inf  # and when the ear was set; others may come since, where infinite
        way.on_change.append(self.work)

    def be_busy(self, until_s: float) -> None:
        """Does nothing until then; what arrives meanwhile waits."""
        self.look()
        self._busy_until_s = until_s
        self._simulation.at(until_s, self._wake)

    @property
    def _busy(self) -> bool:
        """It is woken afterwards."""
        return self._simulation.now_s < self._busy_until_s

    def _wake(self) -> None:
        if self._busy:
            return
        self._hear(waited=True)
        control, self._control = self._control, []
        for data in control:
            self.connection.on_control(data, self._simulation.now_s, waited=True)
        self.work()

    def look(self) -> None:
        """Tells the connection what has been going on; do it before anything is asked of it."""
        self._hear()
        self._settle()

    def _settle(self) -> None:
        """What was sent ahead has departed, or does not."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            stays = ahead.settle(self.connection, self._simulation.now_s)
            if ahead.batch.spray is not None:
                self.way.sprayed -= stays

    def work(self) -> None:
        """Does what is due; call it after anything was asked of the connection."""
        if self._busy:
            return
        connection, now_s = self.connection, self._simulation.now_s
        if self._ahead is not None:
            self._settle()
        if now_s >= self._deadline_s:
            self._hear()
            connection.on_deadline(now_s)
        self._say_all()  # what data are worth goes before them
        while len(frames := connection.offer(now_s)):
            self.batches.append((now_s, len(frames)))
            left_out = self.leave_out(len(frames)) if self.leave_out is not None else None
            gone = headers.kept(frames)  # the offer's memory is used again
            gone = gone if left_out is None else gone[~left_out]
            self._carry(gone, frames.shape[1], np.full(len(gone), now_s))
            connection.outgoing.sent(len(frames), now_s, left_out)
        self._say_all()
        told = connection.events()
        for event in told:
            self.events.append(event)
            self.on_event(event)
        if self._ahead is not None:  # who was told may have given it work, and let it work
            self._settle()
        going = self._go_ahead()
        deadline_s = connection.next_deadline_s(now_s, planned=going)
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        if deadline_s is not None:
            self._alarm.by(deadline_s)
        self.hurry()

    def _go_ahead(self) -> bool:
        """Sends ahead what goes if nothing happens; returns whether there is any."""
        way, now_s = self.way, self._simulation.now_s
        plain = way.fate is None and self.leave_out is None
        if not (self._sends_ahead and plain) or self.other is None:
            return False
        plan = self.connection.send_plan()
        if plan is None:
            return False
        ahead = Ahead(plan, now_s)
        if not len(ahead.times_s):
            return False
        self._ahead = ahead
        ahead.batch = self._carry(ahead.frames, ahead.size_bytes, ahead.times_s)
        self._alarm.by(ahead.over_s)
        return True

    def _carry(self, frames: Frames, datagram_bytes: int, times_s: NDArray[np.float64]) -> Batch:
        """Sends these at these times."""
        way, other, survives = self.way, self.other, None
        if way.fate is not None and len(frames):
            fates = [way.fate(frame) for frame in frames]
            survives = np.array([fate is not None for fate in fates], np.bool_)
            frames = np.stack([frames[0] if fate is None else fate for fate in fates])

        def arrive(train: Train) -> None:
            assert other is not None
            other.arrivals.expect(train, other.inbox, (self, survives))

        batch = Batch(
            size_bytes=datagram_bytes + self._header_bytes,
            links=way.links,
            spray=way.spray(len(frames)) if way.paths else None,
            deliver=arrive,
            frames=frames,
            pulled=True,
            rank=self.rank,
        )
        if other is not None:
            depart(batch, times_s)
            other.expect(batch)
        return batch

    # What arrives.

    def expect(self, batch: Batch) -> None:
        """Datagrams of the other side are on their way."""
        self._coming.append(batch)
        self._hurry_anew()

    @property
    def _needed(self) -> float:
        """How many datagrams may come until one counts, if it is not known that all do."""
        return (
            max(1.0, self.connection.incoming.datagrams_until_action) if self._sends_ahead else 1.0
        )

    def _due_s(self) -> float:
        """Before this time nothing comes that counts, or nobody reads it."""
        self._coming = [batch for batch in self._coming if batch.trains]
        if not self._coming:
            return math.inf
        self._awaited = self._needed
        return max(self._comes_s(self._awaited), self.unread_until_s)

    def _comes_s(self, needed: float) -> float:
        """Before this time fewer than `needed` have come."""
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

    def heed(self, way: Way) -> None:
        """Hurries when something changes on this way of the other side."""
        heeded: set[Link] = set()

        def heed_links() -> None:
            self._heeded = math.inf
            links = set(way.links).union(*way.paths)
            for link in links - heeded:
                link.on_change.append(self._hurry_anew)
            heeded.update(links)

        way.on_change.append(heed_links)
        heed_links()

    def _hurry_anew(self) -> None:
        """Something may come sooner than was known."""
        self._heeded = math.inf
        self.hurry()

    def hurry(self) -> None:
        """Reads when something comes that may count, at the latest."""
        if self._busy:
            return
        # Where the ear rings before as many or fewer have come, it rings early enough.
        if self._ear.is_set and (self._heeded == 1 or self._heeded <= self._needed):
            return
        self._hark(self._due_s())

    def _hark(self, due_s: float) -> None:
        """Something that counts may come then, and not before."""
        if due_s < math.inf:
            self._ear.by(due_s)
            self._heeded = self._awaited

    def _listen(self) -> None:
        """Has something come that may count?"""
        now_s = self._simulation.now_s
        if self._busy:
            return
        if (due_s := self._due_s()) <= now_s:
            self.arrivals.catch_up()
            if (due_s := self._due_s()) <= now_s:
                self._hear()
                self.work()
                return
        self._hark(due_s)

    def _hear(self, *, waited: bool = False) -> None:
        """Hands over all datagrams that have arrived by now."""
        if self._busy:
            return
        now_s, connection = self._simulation.now_s, self.connection
        if self.unread_until_s > -math.inf:  # whoever looks reads all
            waited, self.unread_until_s, self._heeded = True, -math.inf, math.inf
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
            self.unread_until_s = now_s + rest_s

    def _take(self, now_s: float) -> tuple[Frames, NDArray[np.float64]]:
        """The datagrams that have come by now, and when they did."""
        found, times_s = [], []
        for train, (sender, survives) in self.inbox.take(now_s):
            batch, index = train.batch, train.index
            if sender.other is not self or batch.frames is None:
                continue
            kept = slice(None) if survives is None else survives[index]
            found.append(batch.frames[index[kept]])
            times_s.append(train.times_s[kept])
        if not found:
            return _NOTHING, _NEVER
        size_bytes = batch.size_bytes - self._header_bytes
        frames, when_s = found[0], times_s[0]
        if len(found) > 1:
            when_s = np.concatenate(times_s)
            order = when_s.argsort(kind="stable")
            frames, when_s = np.concatenate(found)[order], when_s[order]
        if frames.shape[1] < size_bytes:
            frames = headers.as_frames(frames, size_bytes - HEADER_BYTES)
        return frames, when_s

    def _say_all(self) -> None:
        data = self.connection.control()
        if data and self.other is not None:
            self._say(data, self.other)

    def _say(self, data: bytes, other: "Party") -> None:
        def arrive() -> None:
            if self.other is other:
                other.listen(data)

        self.way.say(self._simulation, arrive)

    def listen(self, data: bytes) -> None:
        """Bytes of the control stream have arrived."""
        if self._busy:
            self._control.append(data)
        else:
            self.look()  # what was sent before must not be reported as missing
            self.connection.on_control(data, self._simulation.now_s)
            self.work()

    def cut(self, reason: str = "the connection was closed") -> None:
        """Ends the control stream, here at once and on the other side after the way's delay."""
        self._settle()
        other, self.other = self.other, None
        self.connection.on_control_closed(reason)
        self.work()
        if other is None:
            return

        def arrive() -> None:
            if other.other is self:
                other.cut(reason)

        self.way.say(self._simulation, arrive)


def link_up(one: Party, two: Party) -> None:
    """Joins two parties; both begin to work."""
    one.other, two.other = two, one
    for here, there in ((one, two), (two, one)):
        here.heed(there.way)
        here.arrivals.come_by(there.way.links, here.inbox)
    one.work()
    two.work()
