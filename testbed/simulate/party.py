"""Drives one side of a connection in virtual time, over links to the other side."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.arrivals import Arrivals
from testbed.simulate.engine import Alarm, Simulation
from testbed.simulate.link import Link
from testbed.simulate.train import Batch, Train, depart
from testbed.transport.core.connection import Connection
from testbed.transport.core.connection_settings import LeaveOut
from testbed.transport.core.events import Event
from testbed.transport.core.wire import WIRE_OVERHEAD_BYTES

Frame = NDArray[np.uint8]  # one datagram, shape (datagram bytes,)
Frames = NDArray[np.uint8]  # several, shape (k, datagram bytes)


@dataclass
class Way:
    """One direction between two parties.

    Control messages are reliable and in order, as on TCP; they wait in the links' queues like
    anything else, and are not slowed down by losses.

    Attributes:
        links: what datagrams pass, one after the other.
        control_delay_s: what control messages need; None for what the links need.
        blocked: whether the path swallows all datagrams, while control messages pass.
        survives: asked of each datagram as it is sent; what does not is lost behind the links.
        altered: what becomes of each datagram that survives.
    """

    links: Sequence[Link]
    control_delay_s: float | None = None
    blocked: bool = False
    survives: Callable[[Frame], bool] | None = None
    altered: Callable[[Frame], Frame] | None = None
    _last_control_s: float = field(default=-math.inf, init=False)

    def control_arrival_s(self, now_s: float) -> float:
        """When a control message arrives that is sent now."""
        passage_s = self.control_delay_s
        if passage_s is None:
            passage_s = sum(link.passage_s() for link in self.links)
        self._last_control_s = max(self._last_control_s, now_s + passage_s)
        return self._last_control_s


class Party:
    """One side of a connection.

    Attributes:
        connection: what it drives.
        way: to the other side.
        other: the other side; None before `link_up`, and once the stream is cut.
        events: all that the connection has told, in order.
        on_event: called with each event as it comes.
        leave_out: as in `EndpointConfig`.
        overflows: datagrams that found the receive buffer full while this side was busy.
        batches: when how many datagrams were offered.
        unread_until_s: until when arrivals gather; -math.inf: each is read as it comes.
    """

    def __init__(
        self,
        simulation: Simulation,
        connection: Connection,
        way: Way,
        *,
        receive_buffer_bytes: float = math.inf,
        gather_s: float = 0.0,
        measured: bool = False,
        arrivals: Arrivals | None = None,
    ) -> None:
        """`gather_s` and `measured` are for how long arrivals may gather, as for `gather_s` of a
        connection. `arrivals` is the host's, where it has several connections."""
        self.connection = connection
        self.way = way
        self.other: Party | None = None
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self.overflows = 0
        self.leave_out: LeaveOut | None = None
        self.batches: list[tuple[float, int]] = []
        self._simulation = simulation
        self._buffer_bytes = receive_buffer_bytes
        self._gather_s = gather_s
        self._measured = measured
        self.arrivals = arrivals or Arrivals(simulation)
        self._busy_until_s = -math.inf
        self.unread_until_s = -math.inf
        self._inbox: list[Frames] = []
        self._control: list[bytes] = []
        self._alarm = Alarm(simulation, self.work)
        self._ear = Alarm(simulation, self._listen)

    def be_busy(self, until_s: float) -> None:
        """Does nothing until then; what arrives meanwhile waits."""
        self._hear()
        self._busy_until_s = until_s
        self._simulation.at(until_s, self._wake)

    @property
    def _busy(self) -> bool:
        return self._simulation.now_s < self._busy_until_s

    def _wake(self) -> None:
        if self._busy:
            return
        self._hear(waited=True)
        control, self._control = self._control, []
        for data in control:
            self.connection.on_control(data, self._simulation.now_s, waited=True)
        self.work()

    def work(self) -> None:
        """Does what is due; call it after anything was asked of the connection."""
        if self._busy:
            return
        connection, now_s = self.connection, self._simulation.now_s
        connection.on_deadline(now_s)
        while len(frames := connection.offer(now_s)):
            self.batches.append((now_s, len(frames)))
            left_out = self.leave_out(len(frames)) if self.leave_out is not None else None
            self._carry(frames if left_out is None else frames[~left_out])
            connection.sent(len(frames), now_s, left_out)
        data = connection.control()
        if data and self.other is not None:
            self._say(data, self.other)
        told = connection.events()
        for event in told:
            self.events.append(event)
            self.on_event(event)
        if told:  # what was done about them is due now
            self._simulation.at(now_s, self.work)
        deadline_s = connection.next_deadline_s(now_s)
        if deadline_s is not None:
            self._alarm.by(deadline_s)

    def _carry(self, frames: Frames) -> None:
        way = self.way
        if way.blocked:
            return
        survives = None
        if way.survives is not None:
            survives = np.array([way.survives(frame) for frame in frames], np.bool_)

        def arrive(train: Train) -> None:
            if self.other is not None:
                self.other.expect(self, train, survives)

        batch = Batch(
            size_bytes=frames.shape[1] + WIRE_OVERHEAD_BYTES,
            links=way.links,
            deliver=arrive,
            frames=frames.copy(),  # the offer's memory is used again
            unread_until_s=lambda: -math.inf if self.other is None else self.other.unread_until_s,
        )
        depart(batch, np.full(len(frames), self._simulation.now_s))

    # What arrives.

    def expect(self, sender: "Party", train: Train, survives: NDArray[np.bool_] | None) -> None:
        """Datagrams of the other side are going to arrive."""

        def take(index: NDArray[np.int64]) -> None:
            if sender.other is not self or train.batch.frames is None:
                return
            kept = index if survives is None else index[survives[index]]
            frames, altered = train.batch.frames[kept], sender.way.altered
            if altered is not None and len(frames):
                frames = np.stack([altered(frame) for frame in frames])
            self._store(frames)

        self.arrivals.expect(train, take, self._hear_by)

    def _hear_by(self, arrival_s: float) -> None:
        """The next datagram arrives then."""
        if not self._busy:
            self._ear.by(max(arrival_s, self.unread_until_s))

    def _store(self, frames: Frames) -> None:
        if not len(frames):
            return
        held = sum(len(each) for each in self._inbox)
        if not math.isinf(self._buffer_bytes):
            room = max(0, int(self._buffer_bytes // frames.shape[1]) - held)
            self.overflows += max(0, len(frames) - room)
            frames = frames[:room]
        if len(frames):
            self._inbox.append(frames)

    def _listen(self) -> None:
        if self._busy or self._simulation.now_s < self.unread_until_s:
            self._hear_by(self._simulation.now_s)
            return
        self._hear()
        self.work()

    def _hear(self, *, waited: bool = False) -> None:
        """Hands over all datagrams that have arrived by now."""
        if self._busy:
            return
        now_s = self._simulation.now_s
        resting = self.unread_until_s > -math.inf
        self.unread_until_s = -math.inf  # whoever looks reads all
        self.arrivals.catch_up()
        if self._inbox:
            frames = self._inbox[0] if len(self._inbox) == 1 else np.concatenate(self._inbox)
            self._inbox = []
            # Without gathering, each is read as it comes, also of those that come at once.
            at_once = len(frames) if waited or self._gather_s else 1
            for first in range(0, len(frames), at_once):
                part = frames[first : first + at_once]
                self.connection.on_datagrams(part, now_s, waited=waited or resting)
            if rest_s := self.connection.gather_s(self._gather_s, measured=self._measured):
                self.unread_until_s = now_s + rest_s
        self.arrivals.expect_waiting()

    def _say(self, data: bytes, other: "Party") -> None:
        def arrive() -> None:
            if self.other is other:
                other.listen(data)

        self._simulation.at(self.way.control_arrival_s(self._simulation.now_s), arrive)

    def listen(self, data: bytes) -> None:
        """Bytes of the control stream have arrived."""
        if self._busy:
            self._control.append(data)
        else:
            self._hear()  # what was sent before must not be reported as missing
            self.connection.on_control(data, self._simulation.now_s)
            self.work()

    def cut(self, reason: str = "the connection was closed") -> None:
        """Ends the control stream, here at once and on the other side after the way's delay."""
        other, self.other = self.other, None
        self.connection.on_control_closed(reason)
        self.work()
        if other is None:
            return

        def arrive() -> None:
            if other.other is self:
                other.cut(reason)

        self._simulation.at(self.way.control_arrival_s(self._simulation.now_s), arrive)


def link_up(one: Party, two: Party) -> None:
    """Joins two parties; both begin to work."""
    one.other, two.other = two, one
    for here, there in ((one, two), (two, one)):
        here.arrivals.come_by(there.way.links)
    one.work()
    two.work()
