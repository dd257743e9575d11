"""What a repair is: the conversation that gets lost chunks sent again.

A repair has two halves, one per side. The sender's half decides which chunks go next and reads
what the receiver says; the receiver's half decides when to say something. Neither knows of
sockets, clocks, rates or the stop rule: `sender.Sender` and `receiver.Receiver` own those and
handle STOP for every repair alike.

To add one, write one file beside this one with a subclass of `Repair` and its two halves, and
add it to REPAIRS in `__init__.py`. One whose receiver acknowledges while data flows finds most of
what it needs in `AcknowledgedSender` and `AcknowledgingReceiver`. One that needs a new kind of
message adds it to `MessageType` and `body_limits` in `control_messages`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion import Feedback
from testbed.transport.control_messages import ControlMessage
from testbed.transport.repair.path_estimates import PathEstimates
from testbed.transport.states import SENDER_TRANSITIONS, Machine, SenderEvent, SenderState
from testbed.transport.tolerance import Progress

Arrange = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class SenderRepair(ABC):
    """The sender's half, for one transfer.

    Attributes:
        machine: the state; the half reports RAN_DRY and FEEDBACK to it, `Sender` reports STOP.
        outbox: control messages to send, in order; `Sender` empties it.
        passes: sweeps begun so far, None where the repair has none.
        in_flight: datagrams sent of which it is not known that they came or were lost.
        asked_s: since when an answer of the receiver is owed, None while none is.
    """

    passes: int | None = None
    in_flight: int = 0
    asked_s: float | None = None

    def __init__(self) -> None:
        self.machine: Machine[SenderState, SenderEvent] = Machine(
            SenderState.SENDING, SENDER_TRANSITIONS
        )
        self.outbox: list[ControlMessage] = []

    @property
    @abstractmethod
    def remaining(self) -> int:
        """How many datagrams could be sent now, had the path room for them."""

    @abstractmethod
    def upcoming(self, limit: int) -> NDArray[np.int64]:
        """The chunks to send next, at most `limit`; the same ones until `on_sent`."""

    @abstractmethod
    def on_sent(self, count: int, now_s: float) -> None:
        """The first `count` of the upcoming chunks are on their way."""

    @abstractmethod
    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        """Takes a message of the receiver, other than STOP, for this transfer.

        Returns what it tells about the path, in datagrams instead of bytes.
        Raises ProtocolError for a message that has no place here.
        """

    @abstractmethod
    def on_window_closed(self, now_s: float) -> None:
        """The congestion window is full: see to it that the receiver says something."""

    def wants_ack(self, count: int, window_left: float) -> bool:
        """Whether the last of the next `count` datagrams is to ask for a report at once.

        `window_left` is how many more the congestion window will admit then. The default is no.
        """
        return False

    def deadline_s(self) -> float | None:
        """When `on_deadline` wants to be called; None (the default) for never."""
        return None

    def on_deadline(self, now_s: float) -> Feedback | None:
        """The deadline has passed; what that tells about the path, in datagrams, if anything."""
        return None


class ReceiverRepair(ABC):
    """The receiver's half, for one transfer; it returns the messages to send.

    Attributes:
        has_passes: whether a PROBE ends a pass.
    """

    has_passes = False

    def on_arrivals(  # noqa: B027 - optional to override
        self, stamps: NDArray[np.uint16], now_s: float, attentive: bool
    ) -> None:
        """Valid datagrams of this transfer came, duplicates among them; `on_data` follows.

        `stamps` are from their headers; `attentive` is False when they had waited in the socket
        for some unknown time.
        """

    def on_data(self, progress: Progress) -> list[ControlMessage]:
        """Datagrams came and were not enough to stop. The default says nothing."""
        return []

    @abstractmethod
    def on_probe(
        self, message: ControlMessage, progress: Progress, attentive: bool
    ) -> list[ControlMessage]:
        """The sender asked and what is here is not enough to stop.

        Raises ProtocolError for a PROBE that is malformed. `attentive` is False when it had
        waited for some unknown time.
        """

    def deadline_s(self, progress: Progress) -> float | None:
        """When `on_deadline` wants to be called; None (the default) for never."""
        return None

    def on_deadline(self, progress: Progress) -> list[ControlMessage]:
        """The deadline has passed and what is here is not enough to stop."""
        return []


@dataclass(frozen=True, kw_only=True)
class Repair(ABC):
    """One way of repairing; subclasses' fields are its options."""

    @abstractmethod
    def sender(
        self, *, transfer: int, chunk_count: int, arrange: Arrange, estimates: PathEstimates
    ) -> SenderRepair:
        """The sender's half.

        `arrange` puts ascending chunk numbers in the order of sending; `estimates` is what
        earlier transfers have learnt about the path.
        """

    @abstractmethod
    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> ReceiverRepair:
        """The receiver's half."""
