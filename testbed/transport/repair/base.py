"""The interface of repairs: which chunks go next, and when the receiver says what arrived.

A repair that acknowledges while data flows finds most in `selective`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion.base import Feedback
from testbed.transport.fast_path import NO_SILENCE, UNLIMITED, SilenceBudget
from testbed.transport.messages import ControlMessage
from testbed.transport.order import Arranger
from testbed.transport.path_estimates import PathEstimates
from testbed.transport.tolerance import Progress


class SenderRepair(ABC):
    """The sender's half, for one transfer.

    A transfer ends if datagrams arrive with any probability above zero: messages are reliable and
    in order, and every PROBE is answered by BITMAP, ACK or STOP, at once or after a HOLD.
    """

    passes: int | None = None  # begun so far; None where the repair has none
    in_flight: int = 0  # datagrams sent that are not known to have arrived or to be lost
    asking: bool = False  # whether nothing is left to send before the receiver answers
    asked_s: float | None = None  # since when the receiver owes an answer
    attentive: bool = True  # False while messages come that had to wait: no round trip is measured

    def __init__(self) -> None:
        self.outbox: list[ControlMessage] = []  # to send, in order; `Sender` empties it

    @property
    @abstractmethod
    def remaining(self) -> int:
        """So many datagrams could be sent now, if the path had room for them."""

    @abstractmethod
    def upcoming(self, limit: int) -> NDArray[np.int64]:
        """The chunks to send next, at most `limit`; the same ones until `on_sent`."""

    @property
    def plannable(self) -> int:
        """So many upcoming chunks may go in a `SendPlan`; subclasses do not inherit it."""
        return 0

    @abstractmethod
    def on_sent(self, count: int, now_s: float) -> None:
        """Called when the first `count` upcoming chunks were sent."""

    def on_link_time(self, link_s: float) -> None:  # noqa: B027 - optional to override
        """Called after `on_sent`: what went to the socket takes the link so long at this rate."""

    @abstractmethod
    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        """Takes a message other than STOP, else ProtocolError; returns feedback, in datagrams."""

    @abstractmethod
    def on_window_closed(self, now_s: float) -> None:
        """Called when the congestion window is full; must make the receiver answer."""

    @property
    def asks_by_message(self) -> bool:
        """Says whether `on_window_closed` may send one, which is to go before the next batch."""
        return True

    def wants_ack(self, count: int, window_left: float) -> bool:
        """Returns whether one of the next `count` asks for an ACK; so many more may go then."""
        return False

    def ack_requests(self, window: float) -> tuple[int, int]:
        """Returns `ask_at` and `ask_gap` of a `SendPlan`, as `wants_ack` says; so many may go."""
        return UNLIMITED, 0

    def deadline_s(self) -> float | None:
        """Returns when to call `on_deadline`; None (the default) for never."""
        return None

    def on_deadline(self, now_s: float) -> Feedback | None:
        """Called when the deadline has passed; returns feedback in datagrams, if any."""
        return None


class ReceiverRepair(ABC):
    """The receiver's half, for one transfer. Its methods return the messages to send."""

    has_passes = False  # whether the sender sends in passes
    coalesce_s = 0.0  # how long arrivals may gather in the socket before they are handed over
    only_answers = False  # whether it speaks only when asked: data may gather with any control

    def on_arrivals(  # noqa: B027 - optional to override
        self, stamps: NDArray[np.uint32], now_s: float, attentive: bool
    ) -> None:
        """Called with `wire.stamps_of` valid datagrams, before `on_data`; not attentive: late."""

    @property
    def silence(self) -> SilenceBudget:
        """The datagrams that may come before a message is due; subclasses do not inherit it."""
        return NO_SILENCE

    def on_new_chunks(self, chunks: NDArray[np.int64]) -> None:  # noqa: B027 - optional
        """Called with the chunks that have just arrived for the first time, each once."""

    def on_data(self, progress: Progress) -> list[ControlMessage]:
        """Called after arrivals that were not enough to stop. The default sends nothing."""
        return []

    def counts_as_probe(self, message: ControlMessage) -> bool:
        """Returns whether a PROBE adds to `Progress.probes`; ProtocolError: malformed."""
        return True

    @abstractmethod
    def on_probe(
        self, message: ControlMessage, progress: Progress, attentive: bool
    ) -> list[ControlMessage]:
        """Called for a PROBE when the arrivals are not enough to stop; ProtocolError: malformed."""

    def deadline_s(self, progress: Progress) -> float | None:
        """Returns when to call `on_deadline`; None (the default) for never."""
        return None

    def on_deadline(self, progress: Progress) -> list[ControlMessage]:
        """Called when the deadline has passed and the arrivals are not enough to stop."""
        return []


@dataclass(frozen=True, kw_only=True)
class Repair(ABC):
    """One kind of repair; a subclass's fields are its options."""

    @abstractmethod
    def sender(
        self, *, transfer: int, chunk_count: int, arrange: Arranger, estimates: PathEstimates
    ) -> SenderRepair:
        """The sender's half; `arrange` has the order of sending, of those sent at all."""

    @abstractmethod
    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> ReceiverRepair:
        """The receiver's half."""
