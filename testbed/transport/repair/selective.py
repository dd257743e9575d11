"""Selective repair: out-of-order acknowledgements while data flows, as LTP and APNet'19 have them.

A datagram is lost if one sent `reordering` places later arrived (RFC 9002, section 6.1.1), or any
later one or a PROBE's answer, and a round trip plus a margin has passed (RACK, RFC 8985). If the
receiver is silent while the window is full or nothing is left to send, the sender sends a PROBE.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion.base import Feedback
from testbed.transport.errors import ProtocolError
from testbed.transport.fast_path import NO_SILENCE, UNLIMITED, SilenceBudget
from testbed.transport.messages import (
    SENT,
    WIRE_OVERHEAD_BYTES,
    Ack,
    ControlMessage,
    MessageType,
)
from testbed.transport.order import Arranger
from testbed.transport.pacing import MAX_BATCH
from testbed.transport.path_estimates import PathEstimates
from testbed.transport.repair.base import ReceiverRepair, Repair, SenderRepair
from testbed.transport.tolerance import Progress
from testbed.transport.wire import (
    ACK_REQUESTED,
    NUMBER_MODULUS,
    SEND_INDEX_MODULUS,
    ahead_of,
    numbers_of,
)

_IN_FLIGHT, _ARRIVED, _LOST = 1, 2, 3
# Older datagrams are forgotten, because no ACK can name them any more.
_KEPT = SEND_INDEX_MODULUS
_ROWS = 1 << 10
_ONE = np.int32(1)  # `ufunc.at` is fast where both types are the same

Chunks = NDArray[np.int64]


class Arrivals(NamedTuple):
    """An ACK adds these."""

    datagrams: int  # how many arrivals are new
    newest: int  # their largest send index, -1 for none
    overtaken: int  # how many of them had been declared lost
    extent: int  # by how many datagrams the worst of those was overtaken
    chunks: Chunks  # chunks that are newly known to be at the receiver


class Scoreboard:
    """The state of all datagrams of a transfer."""

    def __init__(self, chunk_count: int) -> None:
        self.next = 0  # the send index of the next datagram, equal to the number sent
        self.in_flight = 0  # how many have neither arrived nor been declared lost
        self.largest = -1  # the largest send index that is known to have arrived, -1 for none
        self.arrived = np.zeros(chunk_count, dtype=np.bool_)
        self.copies = np.zeros(chunk_count, dtype=np.int32)
        self.losses = np.zeros(chunk_count, dtype=np.int32)
        self.last_sent = np.full(chunk_count, -1, dtype=np.int64)
        self._base = 0  # the send index of row 0
        self._oldest = 0  # nothing before this is in flight
        self._chunk = np.empty(_ROWS, dtype=np.int64)
        self._sent_s = np.empty(_ROWS, dtype=np.float64)
        self._fate = np.zeros(_ROWS, dtype=np.uint8)

    def record(self, chunks: Chunks, now_s: float) -> None:
        count = len(chunks)
        self._make_room(count)
        rows = slice(self.next - self._base, self.next - self._base + count)
        self._chunk[rows] = chunks
        self._sent_s[rows] = now_s
        self._fate[rows] = _IN_FLIGHT
        np.add.at(self.copies, chunks, _ONE)
        self.last_sent[chunks] = np.arange(self.next, self.next + count)
        self.next += count
        self.in_flight += count

    def _make_room(self, count: int) -> None:
        used = self.next - self._base
        if used + count <= len(self._fate):
            return
        forgotten = max(0, min(self._oldest, self.next - _KEPT) - self._base)
        rows = len(self._fate)
        if forgotten < rows // 2:
            rows = max(2 * rows, used + count)
        kept = slice(forgotten, used)
        for name in ("_chunk", "_sent_s", "_fate"):
            old = getattr(self, name)
            new = np.zeros(rows, dtype=old.dtype)
            new[: used - forgotten] = old[kept]
            setattr(self, name, new)
        self._base += forgotten

    def index(self, stamp: int) -> int:
        """The latest send index before `next` with these lower bits; negative for none."""
        return self.next - 1 - (self.next - 1 - stamp) % SEND_INDEX_MODULUS

    def sent_s(self, index: int) -> float | None:
        """Returns when a datagram was sent; None where that is forgotten."""
        if not self._base <= index < self.next:
            return None
        return float(self._sent_s[index - self._base])

    def arrive(self, indices: NDArray[np.int64]) -> Arrivals:
        """Records arrivals by ascending send index; ignores unknown indices."""
        rows = indices[(indices >= self._base) & (indices < self.next)] - self._base
        fates = self._fate[rows]
        flying, late = rows[fates == _IN_FLIGHT], rows[fates == _LOST]
        np.subtract.at(self.copies, self._chunk[flying], _ONE)
        self.in_flight -= len(flying)
        news = np.concatenate((late, flying)) if len(late) else flying
        self._fate[news] = _ARRIVED
        newest = int(news.max()) + self._base if len(news) else -1
        self.largest = max(self.largest, newest)
        chunks = self._chunk[news]
        chunks = chunks[~self.arrived[chunks]]
        if (chunks[1:] <= chunks[:-1]).any():
            chunks = np.unique(chunks)
        self.arrived[chunks] = True
        self._advance()
        extent = self.largest - self._base - int(late[0]) if len(late) else 0
        return Arrivals(len(news), newest, len(late), extent, chunks)

    def declare_lost(
        self, *, sent_by: int, ahead: int, sent_before_s: float
    ) -> tuple[int, float | None, Chunks]:
        """Declares datagrams lost that should have arrived by now."""
        low, high = self._oldest - self._base, sent_by - self._base
        if high <= low:
            return 0, None, self._chunk[:0]
        flying = np.flatnonzero(self._fate[low:high] == _IN_FLIGHT) + low
        overtaken = flying <= self.largest - self._base - ahead
        lost = flying[overtaken | (self._sent_s[flying] <= sent_before_s)]
        if not len(lost):
            return 0, None, self._chunk[:0]
        self._fate[lost] = _LOST
        self.in_flight -= len(lost)
        chunks = self._chunk[lost]
        np.subtract.at(self.copies, chunks, _ONE)
        np.add.at(self.losses, chunks, _ONE)
        gone = chunks[~self.arrived[chunks] & (self.copies[chunks] == 0)]
        newest_s = float(self._sent_s[lost[-1]])
        self._advance()
        if len(gone) > 1:
            gone = gone[np.sort(np.unique(gone, return_index=True)[1])]
        return len(lost), newest_s, gone

    def oldest_sent_s(self, sent_by: int) -> float | None:
        """Returns when the oldest datagram in flight was sent, if its index is below `sent_by`."""
        return self.sent_s(self._oldest) if self._oldest < sent_by else None

    def _advance(self) -> None:
        if not self.in_flight:
            self._oldest = self.next
            return
        rows = self._fate[self._oldest - self._base : self.next - self._base]
        self._oldest += int((rows == _IN_FLIGHT).argmax())


class SendQueue:
    """The chunks of a transfer of which no copy is in flight or at the receiver."""

    def __init__(self, chunks: Chunks, *, lost_first: bool, at_first: int | None = None) -> None:
        """`chunks` wait, in this order. With `lost_first`, lost chunks go first, else last."""
        self.all = chunks
        self._fresh, self.kept = chunks[:at_first], chunks[len(chunks[:at_first]) :]
        self._lost = chunks[:0]
        self._lost_first = lost_first

    @property
    def waiting(self) -> int:
        return len(self._lost) + len(self._fresh)

    def release(self) -> None:
        """Queues the withheld chunks, too."""
        self._fresh, self.kept = np.concatenate((self._fresh, self.kept)), self.kept[:0]

    def peek(self, count: int) -> Chunks:
        """Returns the next chunks, at most `count`; valid until the next change."""
        first, then = self._lost, self._fresh
        if not self._lost_first:
            first, then = then, first
        if not len(first) or not len(then):
            return (first if len(first) else then)[:count]
        return np.concatenate((first[:count], then[: max(0, count - len(first))]))

    def drop(self, count: int) -> None:
        """Removes the next `count` chunks, which are sent."""
        if self._lost_first:
            again = min(count, len(self._lost))
        else:
            again = max(0, count - len(self._fresh))
        self._lost = self._lost[again:]
        self._fresh = self._fresh[count - again :]

    def take(self, chunks: Chunks) -> None:
        """Removes these, wherever they wait."""
        taken = np.zeros(int(self.all.max()) + 1, dtype=np.bool_)
        taken[chunks] = True
        self._lost, self._fresh, self.kept = (
            part[~taken[part]] for part in (self._lost, self._fresh, self.kept)
        )

    def push_lost(self, chunks: Chunks) -> None:
        if len(chunks):
            self._lost = np.concatenate((self._lost, chunks))

    def remove(self, arrived: NDArray[np.bool_]) -> None:
        """Removes lost chunks that have arrived after all, those where the mask is True."""
        if len(self._lost):
            self._lost = self._lost[~arrived[self._lost]]


# Send indices are unambiguous while the newest is less than half the modulus ahead of what the
# receiver knows to have been sent.
_SPAN = SEND_INDEX_MODULUS // 2 - 1
# The silence after which the sender asks: before a round trip is known, and added to it later.
_FIRST_SILENCE_S = 0.02
_LEAST_SILENCE_S = 1e-3
# Datagrams between two requests for an ACK, unless the window is full or nothing is left.
_LEAST_REQUEST_GAP = 8
# Large clock values are rounded; that must not make a deadline be missed.
_ROUNDING_S = 1e-6


class SelectiveSender(SenderRepair):
    """Tracks every datagram, and sends a chunk again when its last copy is known to be lost."""

    lost_first = True  # whether lost chunks go before those never sent, or after them

    def __init__(
        self, *, transfer: int, chunk_count: int, arrange: Arranger, estimates: PathEstimates
    ) -> None:
        super().__init__()
        self.estimates = estimates
        estimates.on_transfer_begin()
        self.scoreboard = Scoreboard(chunk_count)
        self._transfer = transfer
        chunks = arrange(np.arange(chunk_count, dtype=np.int64))
        first = self.at_first(arrange)
        self._due = SendQueue(chunks, lost_first=self.lost_first, at_first=first)
        self.scoreboard.arrived[:] = True  # what is not sent at all is not missing
        self.scoreboard.arrived[chunks] = False
        self._missing = len(chunks)  # not known to have arrived
        self._settled = 0  # an answered PROBE named this many datagrams
        self._asked_at = 0
        self._requested_at = 0
        self._requesting: int | None = None  # `_requested_at`, once this has been sent
        self._waiting = False  # for room in the window
        self._last_s = -math.inf  # when something was last sent or received
        self._overdue_s: float | None = None  # when the next datagram will count as lost
        # Datagrams from `_thin_from` on were sent after the sender had run dry; those from
        # `_thin_to` on after the path had filled again.
        self._thin_from = self._thin_to = UNLIMITED

    # What subclasses define.

    def at_first(self, arrange: Arranger) -> int | None:
        """Returns how many chunks are queued at first, the others being withheld; None: all."""
        return None

    def on_dry(self, now_s: float) -> None:
        """Called when there is nothing to send; the timer for a silent receiver runs anyway."""

    def copyable(self) -> NDArray[np.int64]:
        """Returns chunks in flight of which copies may be sent when nothing else is left."""
        return np.empty(0, dtype=np.int64)

    def on_copies_sent(self, count: int, now_s: float) -> None:
        """Called when copies of the first `count` copyable chunks were sent."""

    def on_change(self, now_s: float) -> None:
        """Called when datagrams arrived or were lost."""

    # Sending.

    @property
    def remaining(self) -> int:
        return max(0, min(self._due.waiting or len(self.copyable()), self._span_left))

    @property
    def _span_left(self) -> int:
        settled = max(self.scoreboard.largest + 1, self._settled)
        return _SPAN - (self.scoreboard.next - settled)

    @property
    def plannable(self) -> int:
        """All queued chunks but the last, which ask for an ACK, as copies do."""
        return max(0, min(self._due.waiting, self._span_left) - MAX_BATCH)

    def upcoming(self, limit: int) -> NDArray[np.int64]:
        limit = min(limit, self.remaining)
        return self._due.peek(limit) if self._due.waiting else self.copyable()[:limit]

    def on_sent(self, count: int, now_s: float) -> None:
        self.scoreboard.record(self.upcoming(count), now_s)
        self.in_flight = self.scoreboard.in_flight
        if self._requesting == self.scoreboard.next:
            self._requested_at = self.scoreboard.next
        self._last_s = now_s
        self._waiting = False
        self.take(count, now_s)
        self._check_dry(now_s)

    def take(self, count: int, now_s: float) -> None:
        """The first `count` upcoming chunks are on their way."""
        if self._due.waiting:
            self._due.drop(count)
        else:
            self.on_copies_sent(count, now_s)

    def _check_dry(self, now_s: float) -> None:
        if not self._due.waiting and not len(self.copyable()):
            self._thin_from = self._thin_to = self.scoreboard.next
            self.on_dry(now_s)

    @property
    def asks_by_message(self) -> bool:
        return False  # but by a datagram, or when the receiver is silent

    def on_window_closed(self, now_s: float) -> None:
        self._waiting = True

    def wants_ack(self, count: int, window_left: float) -> bool:
        end = self.scoreboard.next + count
        gap = end - self._requested_at
        requesting = (
            window_left < 1
            or (gap >= 2 and count >= self.remaining)
            or gap >= self._request_gap(count + window_left)
        )
        self._requesting = end if requesting else None
        return requesting

    def _request_gap(self, window: float) -> int:
        """Returns after how many datagrams one asks: a quarter of what may be in flight."""
        if math.isinf(window):
            return UNLIMITED
        return max(math.ceil((self.in_flight + window) / 4), _LEAST_REQUEST_GAP)

    def ack_requests(self, window: float) -> tuple[int, int]:
        gap = self._request_gap(window)
        return gap + self._requested_at - self.scoreboard.next, gap

    # Asking.

    def ask(self, now_s: float) -> None:
        """Sends a PROBE unless one awaits its answer."""
        if self.asked_s is None:
            self.asked_s = now_s
            self._asked_at = self.scoreboard.next
            body = SENT.pack(self.scoreboard.next)
            self.outbox.append(ControlMessage(MessageType.PROBE, self._transfer, body))

    @property
    def all_settled(self) -> bool:
        """The reply to a PROBE has covered all datagrams sent."""
        return self._settled == self.scoreboard.next

    def silent_from_s(self) -> float | None:
        """Returns when the receiver is silent for too long; None if no reply is due."""
        waiting = self._waiting or not self.remaining
        if not waiting or self.asked_s is not None or not self.in_flight or self.all_settled:
            return None
        path = self.estimates
        if path.smoothed_s is None:
            return self._last_s + _FIRST_SILENCE_S
        spread_s = max(4 * path.deviation_s, _LEAST_SILENCE_S)
        return self._last_s + path.smoothed_s + spread_s

    def deadline_s(self) -> float | None:
        deadlines = (self._overdue_s, self.silent_from_s())
        return min((at_s for at_s in deadlines if at_s is not None), default=None)

    def on_deadline(self, now_s: float) -> Feedback | None:
        feedback = None
        if self._overdue_s is not None and self._overdue_s <= now_s:
            lost, newest_s = self._declare_lost(now_s)
            if lost:
                self.asking = False
                self.on_change(now_s)
                feedback = Feedback(
                    now_s=now_s,
                    delivered_bytes=0,
                    lost_bytes=lost,
                    in_flight_bytes=self.in_flight,
                    newest_lost_sent_s=newest_s,
                )
                self._check_dry(now_s)
        silent_s = self.silent_from_s()
        if silent_s is not None and silent_s <= now_s:
            self.ask(now_s)
            self.asking = self.asking or not self.remaining
        return feedback

    # Receiving.

    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        if message.type is not MessageType.ACK:
            raise ProtocolError(f"{message.type.name} is not allowed at a sender")
        ack = Ack.parse(message.body)
        if ack.probed > self._asked_at:
            raise ProtocolError("ACK that answers a PROBE which was never sent")
        dry = not self._due.waiting
        first = self.scoreboard.index(ack.first)
        known_to = self.scoreboard.largest
        arrivals = self.scoreboard.arrive(first + np.flatnonzero(ack.arrived))
        self._missing -= len(arrivals.chunks)
        if self.scoreboard.largest >= self._thin_from == self._thin_to:
            self._thin_to = self.scoreboard.next
        rtt_s = self._round_trip_s(ack, now_s)
        if arrivals.overtaken:
            self.estimates.on_overtaken(arrivals.overtaken, arrivals.extent)
        if len(arrivals.chunks):
            self._due.remove(self.scoreboard.arrived)
        if not self._missing:
            self._start_over()
        self._settled = max(self._settled, ack.probed)
        if self._settled >= self._asked_at:
            self.asked_s = None
        self.estimates.on_fates(arrived=arrivals.datagrams - arrivals.overtaken)
        lost, newest_lost_s = self._declare_lost(now_s)
        # It names the newest datagram, unless that waited in the receiver's socket.
        waited = ack.echo is None and arrivals.newest > known_to
        self._last_s = now_s
        self._waiting = False
        self.asking = False
        self.on_change(now_s)
        feedback = Feedback(
            now_s=now_s,
            delivered_bytes=arrivals.datagrams,
            lost_bytes=lost,
            in_flight_bytes=self.in_flight,
            rtt_s=rtt_s,
            app_limited=dry or self._thin_from <= arrivals.newest < self._thin_to,
            newest_sent_s=self.scoreboard.sent_s(arrivals.newest),
            newest_lost_sent_s=newest_lost_s,
            waited=waited,
        )
        self._check_dry(now_s)
        return feedback

    def _start_over(self) -> None:
        """Sends all again: the ACKs name all chunks, yet no STOP has come."""
        self.scoreboard.arrived[self._due.all] = False
        self._missing = len(self._due.all)
        self._due = SendQueue(self._due.all, lost_first=self.lost_first)

    def _round_trip_s(self, ack: Ack, now_s: float) -> float | None:
        """Returns the ACK's sample of the round trip, and adds it to the estimates."""
        sent_s = None
        if ack.echo is not None:
            sent_s = self.scoreboard.sent_s(self.scoreboard.index(ack.echo))
        if sent_s is not None:
            sample_s = now_s - sent_s - ack.held_s
        elif ack.at_once and self.asked_s is not None:
            sample_s = now_s - self.asked_s
        else:
            return None
        if sample_s <= 0 or not self.attentive:
            return None
        self.estimates.on_round_trip(sample_s)
        return sample_s

    def _declare_lost(self, now_s: float) -> tuple[int, float | None]:
        """Declares overdue datagrams lost; returns how many, and when the newest was sent."""
        path = self.estimates
        patience_s = max(path.smoothed_s or 0.0, path.latest_s) + path.overtaking_s()
        sent_by = max(self.scoreboard.largest + 1, self._settled)
        lost, newest_s, chunks = self.scoreboard.declare_lost(
            sent_by=sent_by, ahead=path.reordering, sent_before_s=now_s - patience_s + _ROUNDING_S
        )
        path.on_fates(lost=lost)
        self._due.push_lost(chunks)
        self.in_flight = self.scoreboard.in_flight
        oldest_s = self.scoreboard.oldest_sent_s(sent_by)
        self._overdue_s = None if oldest_s is None else oldest_s + patience_s
        return lost, newest_s


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


@dataclass(frozen=True, kw_only=True)
class Selective(Repair):
    """The repair `selective`."""

    def sender(self, **common: Any) -> SelectiveSender:
        return SelectiveSender(**common)

    def receiver(self, **common: Any) -> AcknowledgingReceiver:
        return AcknowledgingReceiver(overhead=_OVERHEAD, **common)
