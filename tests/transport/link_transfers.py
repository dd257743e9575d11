"""What travels over links in virtual time: transfers of the real `Sender` and `Receiver`."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Alarm, Simulation
from testbed.simulate.link import Link
from testbed.simulate.train import send_along
from testbed.transport import PayloadLayout, Receiver, Sender, SendingPath
from testbed.transport.core.messages import ControlMessage
from testbed.transport.policies.congestion import CongestionControl
from testbed.transport.policies.order import InOrder
from testbed.transport.policies.repair import Repair
from testbed.transport.policies.tolerance import FractionRule

SESSION = 0xC0FFEE


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
        queue_bytes: float = math.inf,
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
        self._path = SendingPath(
            congestion=congestion, chunk_bytes=layout.chunk_bytes, queue_bytes=queue_bytes
        )
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

        size_bytes = self._path.datagram_wire_bytes
        send_along(self._simulation, self._links, size_bytes, arrive)

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
