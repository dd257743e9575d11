"""Streaming repair (ours): the receiver acknowledges while data flows; the sender never idles.

A lost chunk goes behind those sent less often. Towards its end a transfer sends more copies of
chunks in flight, as many as the recent loss rate calls for; the fewest copies go first, and of
those the one sent last. None go while round trips show a full queue, or after a long silence.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion.base import Feedback
from testbed.transport.messages import ControlMessage
from testbed.transport.order import Arranger
from testbed.transport.repair.base import Repair
from testbed.transport.repair.selective import AcknowledgingReceiver, SelectiveSender

_MOST_COPIES = 64
_PLANNED = 256  # chunks that are looked at when copies compete with what comes next
_ASKING = 32  # the first datagrams ask, until the receiver answers
_RESIDUAL = 0.02  # the accepted probability that all copies in flight of a chunk are lost,
_FIRST_RISK = 0.5  # and that of a chunk that was never lost
# A receiver that has been silent for so many round trips and so much more gets no more copies.
_TRUSTED_ROUND_TRIPS, _TRUSTED_S = 2.0, 2e-3
# So many times what the first answer usually takes, and so much more, is a silence.
_SILENT, _SILENT_S = 2.0, 2e-3
# What ACKs may cost of the bytes sent. One for about 300 datagrams is enough, because the sender
# asks when it runs dry.
_OVERHEAD = 0.0003
# The same of the first lost datagrams, since short transfers end with them, and of later ones.
_LOSS_OVERHEADS = (0.0125, 0.005)


class StreamingSender(SelectiveSender):
    """Keeps the path busy until the receiver has enough."""

    lost_first = False
    plannable = SelectiveSender.plannable

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._copyable: NDArray[np.int64] | None = None
        self._trusted_until_s: float | None = None

    def copies_needed(self, risk: float) -> int:
        """Returns how many copies in flight are all lost with a probability of at most `risk`."""
        loss = self.estimates.loss
        if loss <= risk:
            return 1
        if loss >= 1:
            return _MOST_COPIES
        return min(_MOST_COPIES, math.ceil(math.log(risk) / math.log(loss)))

    def copyable(self) -> NDArray[np.int64]:
        if self._copyable is None:
            self._copyable = self._repeatable()
        return self._copyable

    def _repeatable(self) -> NDArray[np.int64]:
        most = self.copies_needed(_RESIDUAL)
        if most == 1 or self._trusted_until_s is None or self.estimates.queueing:
            return np.empty(0, dtype=np.int64)
        scoreboard = self.scoreboard
        target = np.where(scoreboard.losses > 0, most, self.copies_needed(_FIRST_RISK))
        chunks = np.flatnonzero(~scoreboard.arrived & (scoreboard.copies < target))
        return chunks[np.lexsort((-scoreboard.last_sent[chunks], scoreboard.copies[chunks]))]

    def on_copies_sent(self, count: int, now_s: float) -> None:
        rest = self.copyable()[count:]
        self._copyable = rest if len(rest) else None

    def on_sent(self, count: int, now_s: float) -> None:
        if self._trusted_until_s is not None and now_s > self._trusted_until_s:
            self._trusted_until_s = None
        super().on_sent(count, now_s)
        if self._trusted_until_s is None:
            self._copyable = None

    def on_change(self, now_s: float) -> None:
        self._copyable = None
        round_trip_s = self.estimates.smoothed_s
        if round_trip_s is not None:
            self._trusted_until_s = now_s + _TRUSTED_ROUND_TRIPS * round_trip_s + _TRUSTED_S

    def on_dry(self, now_s: float) -> None:
        if self.all_settled:
            return  # the datagrams in flight will soon be overdue
        self.ask(now_s)
        self.asking = True


class WorthiestFirstSender(StreamingSender):
    """Sends what comes first in the order as long as the receiver lacks it."""

    lost_first = True

    def __init__(self, *, chunk_count: int, arrange: Arranger, **common: Any) -> None:
        super().__init__(chunk_count=chunk_count, arrange=arrange, **common)
        self._ranked = arrange(np.arange(chunk_count, dtype=np.int64))
        self._urgent = arrange.urgent
        self._plan: NDArray[np.int64] | None = None
        self._replied = False  # in this transfer: what is known of losses is no older
        self._reply_s: float | None = None  # when an answer came, or the first datagram was sent

    def on_sent(self, count: int, now_s: float) -> None:
        if self._reply_s is None:
            self._reply_s = now_s
        super().on_sent(count, now_s)

    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        first = not self._replied and self.asked_s is None
        feedback = super().on_message(message, now_s)
        if first and self.attentive and self._reply_s is not None:
            self.estimates.on_first_answer(now_s - self._reply_s)
        self._reply_s = now_s
        return feedback

    def silent_from_s(self) -> float | None:
        due_s, usual_s = super().silent_from_s(), self.estimates.first_answer_s
        expects = not self._replied or self.estimates.loss > _FIRST_RISK
        if not expects or self._reply_s is None or usual_s is None or self.asked_s is not None:
            return due_s
        if self.all_settled:  # a second PROBE would say the same, and any ACK seem to answer it
            return due_s
        at_s = self._reply_s + _SILENT * usual_s + _SILENT_S
        return at_s if due_s is None else min(at_s, due_s)

    def at_first(self, arrange: Arranger) -> int | None:
        loss = self.estimates.loss
        if loss > _FIRST_RISK:
            return None
        return math.ceil(arrange.needed / (1 - loss))

    def on_dry(self, now_s: float) -> None:
        if len(self._due.kept) and not self.in_flight:
            self._due.release()  # what was enough has arrived, and the receiver lacks something
        else:
            super().on_dry(now_s)

    def _planned(self) -> NDArray[np.int64] | None:
        """Returns what to send next while much is lost; None otherwise."""
        path = self.estimates
        # While others wait, copies go in their place and feed no queue.
        harmless = self._due.waiting > 0 or not path.queueing
        if self._plan is None and self._replied and path.loss > _FIRST_RISK and harmless:
            self._plan = self._make_plan()
        return self._plan if self._plan is not None and len(self._plan) else None

    def _make_plan(self) -> NDArray[np.int64]:
        scoreboard, most = self.scoreboard, self.copies_needed(_RESIDUAL)
        lacking = ~scoreboard.arrived & (scoreboard.copies < most)
        chunks = self._ranked[lacking[self._ranked]][:_PLANNED]
        copies, urgent = scoreboard.copies[chunks], self._urgent[chunks]
        rounds = np.arange(most)[:, np.newaxis] >= copies[urgent]
        first = np.broadcast_to(chunks[urgent], rounds.shape)[rounds]
        places = np.arange(len(chunks)) + max(1, self.in_flight) * copies
        return np.append(first, chunks[~urgent][np.argsort(places[~urgent], kind="stable")])

    @property
    def remaining(self) -> int:
        if (plan := self._planned()) is None:
            return super().remaining
        return max(0, min(len(plan), self._span_left))

    def upcoming(self, limit: int) -> NDArray[np.int64]:
        if (plan := self._planned()) is None:
            return super().upcoming(limit)
        return plan[: min(limit, self.remaining)]

    def wants_ack(self, count: int, window_left: float) -> bool:
        wants = super().wants_ack(count, window_left)
        # A burst should be noticed when it begins, and when it ends; and few that ask may arrive.
        return wants or self._begins or self._planned() is not None

    @property
    def _begins(self) -> bool:
        return not self._replied and self.scoreboard.next < _ASKING

    @property
    def plannable(self) -> int:
        return 0 if self._begins or self._planned() is not None else super().plannable

    def take(self, count: int, now_s: float) -> None:
        if (plan := self._planned()) is None:
            super().take(count, now_s)
            return
        self._due.take(plan[:count])
        self._copyable, self._plan = None, plan[count:] if len(plan) > count else None

    def _check_dry(self, now_s: float) -> None:
        if self._planned() is None:
            super()._check_dry(now_s)

    def on_change(self, now_s: float) -> None:
        self._plan, self._replied = None, True
        super().on_change(now_s)


@dataclass(frozen=True, kw_only=True)
class Streaming(Repair):
    """The repair `streaming`.

    Attributes:
        lost_first: what comes first in the order goes first until it has arrived.
    """

    lost_first: bool = False

    def sender(self, **common: Any) -> StreamingSender:
        return WorthiestFirstSender(**common) if self.lost_first else StreamingSender(**common)

    def receiver(self, **common: Any) -> AcknowledgingReceiver:
        return AcknowledgingReceiver(overhead=_OVERHEAD, loss_overheads=_LOSS_OVERHEADS, **common)
