"""Selective repair: out-of-order acknowledgements; losses are found by order and time.

In outline that of LTP (arXiv 2305.04279) and of Xia et al. (APNet 2019); thresholds and timers are
those of QUIC and RACK (RFC 9002, RFC 8985). Lost chunks go before chunks never sent. The receiver,
which `streaming` uses, too, sends an ACK when a datagram or a PROBE asks for one, and otherwise at
intervals, as long as they stay a small fraction of the bytes sent.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.errors import ProtocolError
from testbed.transport.fast_path import NO_SILENCE, SilenceBudget
from testbed.transport.messages import SENT, WIRE_OVERHEAD_BYTES, Ack, ControlMessage
from testbed.transport.repair.acknowledged_sender import AcknowledgedSender
from testbed.transport.repair.base import ReceiverRepair, Repair
from testbed.transport.tolerance import Progress
from testbed.transport.wire import (
    ACK_REQUESTED,
    NUMBER_MODULUS,
    SEND_INDEX_MODULUS,
    ahead_of,
    numbers_of,
)

# An ACK can name what is behind the newest by less than this.
_NAMED = SEND_INDEX_MODULUS // 2
# The credit at the beginning: about one ACK.
_FIRST_CREDIT_BYTES = 150.0
_URGENT_LOSSES = 256
_OVERHEAD = 0.0125  # of the bytes sent: what unrequested ACKs may cost
# The weight of a new batch in what was recently lost.
_NEW = 0.25
_FEW = 1e-3  # before any have come
# Batches of arrivals that are kept apart until the next ACK.
_MOST_PENDING = 256


class AcknowledgingReceiver(ReceiverRepair):
    """Acknowledges the arrivals since the last ACK."""

    coalesce_s = 5e-3  # about as long as the interval between ACKs that cost so little

    def __init__(
        self,
        *,
        transfer: int,
        datagram_wire_bytes: int,
        overhead: float,
        interval_s: float = 1e-3,
        loss_overheads: tuple[float, float] | None = None,
    ) -> None:
        """Unrequested ACKs are `interval_s` apart and cost at most `overhead` of the bytes sent."""
        self._transfer = transfer
        self._earned_bytes = datagram_wire_bytes * overhead  # credit for each datagram that arrived
        urgent, later = loss_overheads or (overhead, overhead)
        self._earned_urgent_bytes = datagram_wire_bytes * urgent
        self._earned_later_bytes = datagram_wire_bytes * later
        self._urgent_left = _URGENT_LOSSES
        self._interval_s = interval_s
        self._credit_bytes = _FIRST_CREDIT_BYTES
        self._recently_came = self._recently_lost = 0.0  # of a batch, on average
        self._pending: list[NDArray[np.int64]] = []
        self._newest = NUMBER_MODULUS - 1  # the number before the first
        self._echo: int | None = None
        self._echo_s = 0.0
        self._probed = 0
        self._ack_requested = False
        self._next_s = -np.inf

    def on_arrivals(self, stamps: NDArray[np.uint32], now_s: float, attentive: bool) -> None:
        if (stamps & ACK_REQUESTED).any():
            self._ack_requested = True
        numbers = numbers_of(stamps)
        self._pending.append(numbers)
        if len(self._pending) > _MOST_PENDING:
            self._pending = [self._newest + np.unique(self._nameable())]
        if self._reach(int(ahead_of(numbers, self._newest).max()), came=len(numbers)):
            self._echo, self._echo_s = (self._newest if attentive else None), now_s

    def _reach(self, ahead: int, came: int = 0) -> bool:
        """Advances to the newest datagram known to have been sent; returns whether it advanced."""
        if ahead <= 0:
            return False
        self._newest = (self._newest + ahead) % NUMBER_MODULUS
        lost = max(0, ahead - came)
        urgent = min(lost, self._urgent_left)
        self._urgent_left -= urgent
        self._recently_lost += _NEW * (lost - self._recently_lost)
        self._recently_came += _NEW * (came - self._recently_came)
        self._credit_bytes += (
            (ahead - lost) * self._earned_bytes
            + urgent * self._earned_urgent_bytes
            + (lost - urgent) * self._earned_later_bytes
        )
        return True

    @property
    def silence(self) -> SilenceBudget:
        if self._ack_requested or self._credit_bytes >= 0:
            return NO_SILENCE
        budget = -self._credit_bytes / self._earned_bytes
        earned_bytes = self._earned_later_bytes
        if self._urgent_left:
            earned_bytes = max(earned_bytes, self._earned_urgent_bytes)
        lost_cost = earned_bytes / self._earned_bytes
        cost = 1 + lost_cost * self._recently_lost / max(_FEW, self._recently_came)
        return SilenceBudget(budget, self._newest, lost_cost, budget / cost)

    def on_data(self, progress: Progress) -> list[ControlMessage]:
        due = self._ack_requested or (self._may_acknowledge and progress.now_s >= self._next_s)
        return [self._acknowledge(progress.now_s)] if due else []

    @property
    def _may_acknowledge(self) -> bool:
        return bool(self._pending) and self._credit_bytes > 0

    def deadline_s(self, progress: Progress) -> float | None:
        return self._next_s if self._may_acknowledge else None

    def on_deadline(self, progress: Progress) -> list[ControlMessage]:
        return self.on_data(progress)

    def on_probe(
        self, message: ControlMessage, progress: Progress, attentive: bool
    ) -> list[ControlMessage]:
        if len(message.body) != SENT.size:
            raise ProtocolError(f"PROBE with a body of {len(message.body)} bytes, not {SENT.size}")
        (sent,) = SENT.unpack(message.body)
        self._probed = max(self._probed, sent)
        self._reach(int(ahead_of(sent - 1, self._newest)))
        return [self._acknowledge(progress.now_s, at_once=attentive)]

    def _nameable(self) -> NDArray[np.int64]:
        """Returns how far pending arrivals are ahead of the newest, where an ACK can name them."""
        places = ahead_of(np.concatenate(self._pending), self._newest)
        return places[places > -_NAMED]

    def _acknowledge(self, now_s: float, *, at_once: bool = False) -> ControlMessage:
        arrived = np.zeros(0, dtype=np.bool_)
        first = 0
        if self._pending and len(places := self._nameable()):
            lowest = int(places.min())
            first = (self._newest + lowest) % SEND_INDEX_MODULUS
            arrived = np.zeros(int(places.max()) - lowest + 1, dtype=np.bool_)
            arrived[places - lowest] = True
        message = Ack(
            first=first,
            arrived=arrived,
            echo=None if self._echo is None else self._echo % SEND_INDEX_MODULUS,
            held_s=now_s - self._echo_s,
            probed=self._probed,
            at_once=at_once,
        ).message(self._transfer)
        self._pending.clear()
        self._echo = None
        self._ack_requested = False
        self._next_s = now_s + self._interval_s
        # Includes the TCP acknowledgement that the peer's kernel sends for it.
        self._credit_bytes -= message.wire_bytes + WIRE_OVERHEAD_BYTES
        return message


class SelectiveSender(AcknowledgedSender):
    """Sends a chunk again when its last copy is known to be lost."""

    lost_first = True

    @property
    def plannable(self) -> int:
        return self.plannable_count

    def on_dry(self, now_s: float) -> None:
        """Waits: the timer for the receiver's silence is running."""


@dataclass(frozen=True, kw_only=True)
class Selective(Repair):
    """The repair `selective`."""

    def sender(self, **common: Any) -> SelectiveSender:
        return SelectiveSender(**common)

    def receiver(self, **common: Any) -> AcknowledgingReceiver:
        return AcknowledgingReceiver(overhead=_OVERHEAD, **common)
