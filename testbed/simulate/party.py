"""Drives one side of a connection in virtual time, over links to the other side."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Alarm, Simulation
from testbed.simulate.link import Link, send_along
from testbed.transport.core.connection import Connection
from testbed.transport.core.connection_settings import LeaveOut
from testbed.transport.core.events import Event
from testbed.transport.core.wire import WIRE_OVERHEAD_BYTES

Frame = NDArray[np.uint8]  # one datagram, shape (datagram bytes,)


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
    survives: Callable[[Frame], bool] = lambda frame: True
    altered: Callable[[Frame], Frame] = lambda frame: frame
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
    """

    def __init__(
        self,
        simulation: Simulation,
        connection: Connection,
        way: Way,
        *,
        receive_buffer_bytes: float = math.inf,
    ) -> None:
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
        self._busy_until_s = -math.inf
        self._frames: list[Frame] = []
        self._control: list[bytes] = []
        self._alarm = Alarm(simulation, self.work)

    def be_busy(self, until_s: float) -> None:
        """Does nothing until then; what arrives meanwhile waits."""
        self._busy_until_s = until_s
        self._simulation.at(until_s, self._wake)

    @property
    def _busy(self) -> bool:
        return self._simulation.now_s < self._busy_until_s

    def _wake(self) -> None:
        if self._busy:
            return
        now_s = self._simulation.now_s
        frames, self._frames = self._frames, []
        control, self._control = self._control, []
        if frames:
            self.connection.on_datagrams(np.stack(frames), now_s, waited=True)
        for data in control:
            self.connection.on_control(data, now_s, waited=True)
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
            for frame in frames if left_out is None else frames[~left_out]:
                self._carry(frame.copy())
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

    def _carry(self, frame: Frame) -> None:
        if self.way.blocked:
            return
        survives = self.way.survives(frame)

        def arrive(marked: bool) -> None:
            if survives and self.other is not None:
                self.other.hear(self.way.altered(frame))

        send_along(self.way.links, frame.size + WIRE_OVERHEAD_BYTES, arrive)

    def hear(self, frame: Frame) -> None:
        """A datagram has arrived."""
        if not self._busy:
            self.connection.on_datagrams(frame[np.newaxis], self._simulation.now_s)
            self.work()
        elif (len(self._frames) + 1) * frame.size > self._buffer_bytes:
            self.overflows += 1
        else:
            self._frames.append(frame)

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
    one.work()
    two.work()
