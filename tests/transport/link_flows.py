"""What travels over the links of `link_model`: two kinds of flow.

* `AckedFlow` drives a congestion control directly, with one acknowledgement per datagram and
  losses found by reordering or a timer (RFC 9002, section 6). It is fast, and it can echo marks.
* `TransferFlow` joins the real `Sender` and `Receiver` with a repair, transfer after transfer.

    simulation = Simulation()
    bottleneck = Link(simulation, rate_bps=50e6, delay_s=0.005, queue_bytes=60_000)
    flow = AckedFlow(simulation, [bottleneck], Reno(), return_delay_s=0.005)
    flow.start(0.0)
    simulation.run(until_s=10.0)
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.transport import PayloadLayout, Receiver, Sender, SendingPath
from testbed.transport.congestion import CongestionControl, Feedback
from testbed.transport.control import ControlMessage
from testbed.transport.order import InOrder
from testbed.transport.pacing import Pacer
from testbed.transport.repair import Repair
from testbed.transport.tolerance import FractionRule
from tests.transport.link_model import Alarm, Link, Simulation, send_along

SESSION = 0xC0FFEE
DATAGRAM_BYTES = 1514


class AckedFlow:
    """A congestion control with something to send and one acknowledgement per datagram.

    Attributes:
        delivered_bytes, sent_bytes: so far.
        ended_s: when `total_bytes` were delivered; None before that.
        heard: called with every feedback, after the congestion control, for tests that watch.
    """

    def __init__(
        self,
        simulation: Simulation,
        links: Sequence[Link],
        congestion: CongestionControl,
        *,
        return_delay_s: float,
        total_bytes: float = math.inf,
        datagram_bytes: int = DATAGRAM_BYTES,
    ) -> None:
        self.congestion = congestion
        self.delivered_bytes = self.sent_bytes = 0
        self.ended_s: float | None = None
        self.heard: Callable[[Feedback], None] = lambda feedback: None
        self._simulation = simulation
        self._links = links
        self._return_delay_s = return_delay_s
        self._total_bytes = total_bytes
        self._size = datagram_bytes
        self._pacer = Pacer(rate_bps=congestion.rate_bps, datagram_wire_bytes=datagram_bytes)
        self._outstanding: dict[int, float] = {}  # number -> when sent, ascending
        self._next = 0
        self._smoothed_s = 0.1
        self._heard_s = 0.0
        self._pace = Alarm(simulation, self._pump)
        self._watching = False

    def start(self, now_s: float, more_bytes: float = 0) -> None:
        """Begins at `now_s`, or goes on after the end with so many bytes more."""

        def begin() -> None:
            self._total_bytes += more_bytes
            self.ended_s = None
            self._heard_s = self._simulation.now_s
            self._outstanding.clear()
            self.congestion.on_transfer_begin(self._simulation.now_s)
            self._pacer.resume(self._simulation.now_s)
            self._pump()

        self._simulation.at(now_s, begin)

    @property
    def in_flight_bytes(self) -> int:
        return len(self._outstanding) * self._size

    def _wanted(self) -> float:
        """Datagrams that are neither delivered nor on their way."""
        missing = self._total_bytes - self.delivered_bytes - self.in_flight_bytes
        return missing if math.isinf(missing) else max(0, math.ceil(missing / self._size))

    def _pump(self) -> None:
        now_s, control = self._simulation.now_s, self.congestion
        while self.ended_s is None and (wanted := self._wanted()) > 0:
            self._pacer.set_rate(control.rate_bps)
            whole = max(1.0, control.window_bytes / self._size)
            room = min(whole - len(self._outstanding), wanted)
            if room < 1:
                break
            count = int(min(self._pacer.allowance(now_s, int(min(wanted, 1e9))), room))
            if not count:
                self._pace.by(self._pacer.next_s(now_s, int(min(wanted, 1e9))))
                break
            for _ in range(count):
                self._send(now_s)
            self._pacer.spend(count)
            control.on_sent(count * self._size, now_s)
        self._watch()

    def _send(self, now_s: float) -> None:
        number = self._next
        self._next += 1
        self._outstanding[number] = now_s
        self.sent_bytes += self._size
        simulation = self._simulation

        def arrive(marked: bool) -> None:
            at_s = simulation.now_s + self._return_delay_s
            simulation.at(at_s, lambda: self._acknowledged(number, now_s, marked))

        send_along(self._links, self._size, arrive)

    def _acknowledged(self, number: int, sent_s: float, marked: bool) -> None:
        now_s = self._simulation.now_s
        if self._outstanding.pop(number, None) is None:
            return  # given up before, or of a transfer that is over
        self._smoothed_s += (now_s - sent_s - self._smoothed_s) / 8
        self.delivered_bytes += self._size
        if self.delivered_bytes >= self._total_bytes and self.ended_s is None:
            self.ended_s = now_s
        lost = []
        for other in self._outstanding:
            if other > number - 3:
                break
            lost.append(other)
        self._report(self._size, lost, now_s - sent_s, marked)

    def _report(self, delivered: int, lost: list[int], rtt_s: float | None, marked: bool) -> None:
        now_s = self._simulation.now_s
        lost_sent_s = [self._outstanding.pop(number) for number in lost]
        self._heard_s = now_s
        feedback = Feedback(
            now_s=now_s,
            delivered_bytes=delivered,
            lost_bytes=len(lost) * self._size,
            in_flight_bytes=self.in_flight_bytes,
            rtt_s=rtt_s,
            ecn_marked_bytes=delivered if marked else 0,
            app_limited=self._wanted() <= 0,
            newest_lost_sent_s=max(lost_sent_s, default=None),
        )
        self.congestion.on_feedback(feedback)
        self.heard(feedback)
        self._pump()

    def _watch(self) -> None:
        """Keeps a timer that gives up everything after three silent round trips."""
        if self._watching or not self._outstanding:
            return
        self._watching = True

        def look() -> None:
            self._watching = False
            if self._outstanding and self._simulation.now_s >= self._patience_s():
                self._report(0, list(self._outstanding), None, False)
            self._watch()

        self._simulation.at(self._patience_s(), look)

    def _patience_s(self) -> float:
        oldest_s = next(iter(self._outstanding.values()), self._simulation.now_s)
        return max(self._heard_s, oldest_s) + 3 * self._smoothed_s


class TransferFlow:
    """One payload after another from a `Sender` to a `Receiver`, over links that lose datagrams.

    Control messages are reliable and in order, as on TCP: those to the receiver wait in the links'
    queues like anything else, those to the sender take `return_delay_s`.

    Attributes:
        delivered: chunks that the receiver has of all transfers together.
        ended_s: when each transfer's STOP reached the sender.
        intact: whether every chunk that was received so far is right.
    """

    def __init__(
        self,
        simulation: Simulation,
        links: Sequence[Link],
        congestion: CongestionControl,
        *,
        repair: Repair,
        layout: PayloadLayout,
        payload: NDArray[np.uint8],
        return_delay_s: float,
        transfers: int = 1,
        pause_s: float = 0.0,
        tolerance: float = 0.0,
    ) -> None:
        self.congestion = congestion
        self.ended_s: list[float] = []
        self.intact = True
        self._simulation = simulation
        self._links = links
        self._repair = repair
        self._layout = layout
        self._payload = payload
        self._return_delay_s = return_delay_s
        self._transfers = transfers
        self._pause_s = pause_s
        self._tolerance = tolerance
        self._path = SendingPath(congestion=congestion, chunk_bytes=layout.chunk_bytes)
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._into = layout.new_buffer()
        self._before = 0  # chunks of the transfers that have ended
        self._sending = Alarm(simulation, self._send)
        self._receiving = Alarm(simulation, self._hear)

    @property
    def delivered(self) -> int:
        here = 0 if self._receiver is None else self._receiver.received_count
        return self._before + here

    @property
    def done(self) -> bool:
        return len(self.ended_s) == self._transfers

    def start(self, now_s: float) -> None:
        """Begins the first transfer at `now_s`."""
        self._simulation.at(now_s, self._begin)

    def _begin(self) -> None:
        now_s, number, layout = self._simulation.now_s, len(self.ended_s), self._layout
        self._into[:] = 0
        self._receiver = Receiver(
            session=SESSION,
            transfer=number,
            layout=layout,
            into=self._into,
            rule=FractionRule(chunk_count=layout.chunk_count, tolerance=self._tolerance),
            repair=self._repair,
            now_s=now_s,
        )
        self._sender = Sender(
            session=SESSION,
            transfer=number,
            layout=layout,
            payload=self._payload,
            repair=self._repair,
            order=InOrder(),
            path=self._path,
            now_s=now_s,
        )
        self._send()

    def _send(self) -> None:
        """Lets the sender do what is due."""
        sender, now_s = self._sender, self._simulation.now_s
        if sender is None:
            return
        sender.on_deadline(now_s)
        while len(frames := sender.offer(now_s)):
            for frame in frames:
                self._carry(frame.copy())
            sender.sent(len(frames), now_s)
        for message in sender.poll_messages():
            self._tell_receiver(message)
        if sender.stopped:
            self._end()
        elif (deadline_s := sender.next_deadline_s(now_s)) is not None:
            self._sending.by(deadline_s)

    def _carry(self, frame: NDArray[np.uint8]) -> None:
        def arrive(marked: bool) -> None:
            if self._receiver is not None:
                self._receiver.on_datagrams(frame[np.newaxis], self._simulation.now_s)
                self._hear()

        send_along(self._links, self._path.datagram_wire_bytes, arrive)

    def _tell_receiver(self, message: ControlMessage) -> None:
        def arrive() -> None:
            if self._receiver is not None and message.transfer == self._receiver.transfer:
                self._receiver.on_message(message, self._simulation.now_s)
                self._hear()

        passage_s = sum(link.passage_s() for link in self._links)
        self._simulation.at(self._simulation.now_s + passage_s, arrive)

    def _hear(self) -> None:
        """Lets the receiver do what is due."""
        receiver, now_s = self._receiver, self._simulation.now_s
        if receiver is None:
            return
        deadline_s = receiver.next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            receiver.on_deadline(now_s)
            deadline_s = receiver.next_deadline_s()
        for message in receiver.poll_messages():
            self._tell_sender(message)
        if deadline_s is not None:
            self._receiving.by(deadline_s)

    def _tell_sender(self, message: ControlMessage) -> None:
        def arrive() -> None:
            if self._sender is not None:
                self._sender.on_message(message, self._simulation.now_s)
                self._send()

        self._simulation.at(self._simulation.now_s + self._return_delay_s, arrive)

    def _end(self) -> None:
        assert self._receiver is not None
        self.ended_s.append(self._simulation.now_s)
        here = self._receiver.received
        rows, sent = self._layout.rows(self._into), self._layout.rows(self._payload)
        self.intact = self.intact and bool(np.array_equal(rows[here], sent[here]))
        self._before += self._receiver.received_count
        self._sender = self._receiver = None
        if not self.done:
            self._simulation.at(self._simulation.now_s + self._pause_s, self._begin)
