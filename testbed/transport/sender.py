"""The sending half of a connection: each transfer's `Sender`, and all of them together."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.transport.chunk_energy import MUST
from testbed.transport.congestion.base import Feedback
from testbed.transport.errors import ProtocolError
from testbed.transport.events import Event, Observation, TransferDone, TransferReport
from testbed.transport.fast_path import (
    ASK_FIRST,
    ASK_LAST,
    LEAST_FOR_TWO,
    UNLIMITED,
    SendPlan,
    defines,
)
from testbed.transport.layout import Leg
from testbed.transport.messages import ControlMessage, MessageType, unpack_bitmap
from testbed.transport.order import Arranger, OrderContext
from testbed.transport.sending_path import SendingPath
from testbed.transport.settings import (
    DATA_BLOCKED,
    LATE,
    NEVER,
    NO_NEW_CHUNK,
    REMEMBERED,
    SILENT,
    ConnectionSettings,
    Timeout,
    TransferNumbers,
)
from testbed.transport.wire import new_frames, wire_bytes

_LEAST_QUESTION = 8  # datagrams in flight for a question before the window is full
_STALLED_BATCH = 32  # datagrams between two pauses
# A sender is stalled after so long without a new arrival, and so many replies, or fewer that report
# so many losses. Time alone says little: a busy peer may have replied once a second.
_STALLED_S = 1.0
_STALLED_REPLIES = 16
_STALLED_LOSSES = 2048
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Stall:
    """Makes a sender whose data do not arrive, although replies do, send less, and pause."""

    def __init__(self, now_s: float) -> None:
        self.since_s: float | None = None  # since when replies report no new arrival
        self.resume_s = now_s  # until when to pause, once it is stalled
        self._replies = self._lost = 0
        self._pause_s = _FIRST_PAUSE_S

    def is_stalled(self, now_s: float) -> bool:
        if self.since_s is None or now_s - self.since_s < _STALLED_S:
            return False
        return self._replies >= _STALLED_REPLIES or (
            self._replies > 1 and self._lost >= _STALLED_LOSSES
        )

    def on_reply(self, feedback: Feedback | None, now_s: float) -> None:
        if feedback is None:
            return
        if feedback.delivered_bytes:
            self.reset()
            self._pause_s = _FIRST_PAUSE_S
        elif feedback.lost_bytes:
            self._replies += 1
            self._lost += feedback.lost_bytes  # datagrams, as repairs count
            if self.since_s is None:
                self.since_s = self.resume_s = now_s

    def on_sent(self, now_s: float) -> None:
        """Doubles the pause after each batch of a stalled sender."""
        self.resume_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def reset(self) -> None:
        self.since_s, self._replies, self._lost = None, 0, 0

    def was_away(self, away_s: float) -> None:
        if self.since_s is not None:
            self.since_s += away_s


class Sender:
    """Sends one payload to one receiver until the receiver says STOP."""

    def __init__(
        self,
        *,
        settings: ConnectionSettings,
        transfer: int,
        payload: NDArray[np.uint8],
        path: SendingPath,
        now_s: float,
        arrangers: dict[int, Arranger] | None = None,
        missed: NDArray[np.bool_] | None = None,
    ) -> None:
        """`arrangers` are those of payloads for several peers, by address: this one's is added."""
        self.transfer = transfer
        self._layout = layout = settings.layout_of(transfer)
        rows = layout.rows(payload)
        shared = arrangers is not None
        arrangers = {} if arrangers is None else arrangers
        if (place := rows.ctypes.data) not in arrangers:
            context = OrderContext(
                transfer=transfer,
                layout=layout,
                rows=rows,
                layouts=settings.layout_count,
                shared=shared,
                missed=missed,
            )
            arrangers[place] = settings.order.arranger(context)
        arranger = arrangers[place]
        self._repair = settings.repair.sender(
            transfer=transfer,
            chunk_count=layout.chunk_count,
            arrange=arranger,
            estimates=path.estimates,
        )
        self._energy_levels, self._needed = arranger.energy_levels, arranger.needed
        self._classes = arranger.protected
        # Whether switches are to drop what was offered last after others; None: it is not marked.
        self.protected: bool | None = None
        if self._energy_levels is not None:
            body = self._energy_levels.tobytes()
            self._repair.outbox.append(ControlMessage(MessageType.ENERGY, transfer, body))
        self._path = path
        self._composer = settings.fast_path.composer(
            session=settings.session,
            transfer=transfer,
            layout=layout,
            rows=rows,
            frames=path.frames,
        )
        self._ever_sent = np.zeros(layout.chunk_count, dtype=np.bool_)
        self._received: NDArray[np.bool_] | None = None
        self._offered = np.empty(0, dtype=np.int64)
        self._datagrams_sent = self._left_out = 0
        self._control_bytes = 0
        self._began_s = now_s
        self._ended_s = now_s
        self.stopped = False  # whether the receiver has enough
        self.stall = Stall(now_s)
        self.held = False  # whether the receiver has not asked for this transfer yet
        self.attentive = True  # False while messages come that waited for an unknown time
        path.pacer.fit(arranger.count)
        path.begin(self._repair, now_s)

    @property
    def sending(self) -> bool:
        return not self._repair.asking

    @property
    def waiting(self) -> int:
        """So many datagrams wait while none is on its way; 0 once some are."""
        return 0 if self._repair.in_flight else self._repair.remaining

    @property
    def asked_s(self) -> float | None:
        return self._repair.asked_s

    def missed(self) -> NDArray[np.bool_] | None:
        if self._energy_levels is None or self._received is None:
            return None
        left = (self._energy_levels >= MUST) & ~self._received
        return left if left.any() else None

    def offer(self, now_s: float) -> NDArray[np.uint8]:
        """Returns the datagrams that may go now: shape (k, datagram bytes), k >= 0."""
        room = self._room(now_s) if self.sending else 0
        if not room:
            return self._path.frames[:0]
        chunks = self._offered = self._repair.upcoming(room)
        fits = 0 < len(chunks) <= room  # none would be asked for again without end
        if fits and self._classes is not None:
            chunks = self._offered = self._of_one_class(chunks)
        count, first = len(chunks), self._datagrams_sent
        if not (fits and self._composer.compose(chunks, first, ask=self._asking(count))):
            expected = f"1 to {room} numbers of chunks from 0 to {self._layout.chunk_count - 1}"
            raise own_code.unfit(self._repair, "upcoming", chunks, expected)
        return self._path.frames[:count]

    def _of_one_class(self, chunks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the first chunks that switches are to treat alike; sets `protected`."""
        assert self._classes is not None
        classes = self._classes.take(chunks, mode="clip")  # the composer refuses what is no chunk
        self.protected = bool(classes[0])
        others = np.flatnonzero(classes != classes[0])
        return chunks[: others[0]] if len(others) else chunks

    def send_plan(self) -> SendPlan | None:
        """Returns what may go without an `offer` each; None while that is no more than a batch."""
        path, repair = self._path, self._repair
        if self.stall.since_s is not None or self.held or not self.sending:
            return None
        steady_until_s = path.steady_until_s
        if steady_until_s == -math.inf or not defines(repair, "plannable"):
            return None
        if path.pacer.bytes_per_s != path.rate_bps / 8:
            return None  # the next `offer` changes the pace
        window = self._window()
        room = int(min(window, UNLIMITED))
        question = UNLIMITED
        if room < UNLIMITED and repair.asks_by_message:
            question = int(self._unasked(window)) - path.in_flight
        count = min(repair.plannable, room)
        if question < 0 or count <= path.pacer.quantum:
            return None
        chunks = repair.upcoming(count)
        if self._classes is not None:
            chunks = self._of_one_class(chunks)
            if len(chunks) <= path.pacer.quantum:
                return None
        ask_at, ask_gap = repair.ack_requests(window)
        return SendPlan(
            composer=self._composer,
            chunks=chunks,
            first=self._datagrams_sent,
            beyond=repair.remaining - len(chunks),
            pacer=path.pacer,
            window=room,
            question=question,
            ask_at=ask_at,
            ask_gap=ask_gap,
            rests=not (repair.asks_by_message or ask_gap),
            steady_until_s=steady_until_s,
        )

    def on_plan_sent(self, plan: SendPlan, batches: Sequence[tuple[int, float]]) -> None:
        gone = 0
        for count, now_s in batches:
            self._repair.wants_ack(count, self._window() - count)  # as it was asked
            self._on_taken(plan.chunks[gone : gone + count], count, now_s)
            gone += count

    def _asking(self, count: int) -> int:
        """Returns which of the next `count` datagrams ask for an ACK, for `Composer.compose`."""
        window_left = self._window() - count
        if not self._repair.wants_ack(count, window_left):
            return 0
        if window_left >= 1:
            return ASK_LAST if count >= self._repair.remaining else ASK_FIRST
        return ASK_LAST if count < LEAST_FOR_TWO else ASK_FIRST | ASK_LAST

    def _room(self, now_s: float) -> int:
        path = self._path
        path.pacer.set_rate(path.rate_bps, path.estimates.min_s)
        window = self._window()
        if window < math.inf:
            if path.in_flight > self._unasked(window):
                self._repair.on_window_closed(now_s)
            if window < 1:
                self._repair.on_window_closed(now_s)
                return 0
        remaining = self._repair.remaining
        if self.stall.is_stalled(now_s):
            if now_s < self.stall.resume_s:
                return 0
            remaining = min(remaining, _STALLED_BATCH)
        return int(min(path.pacer.allowance(now_s, remaining), window, remaining))

    def _unasked(self, window: float) -> float:
        """Returns how many may be in flight until the repair asks: early, as answers take time."""
        return max((self._path.in_flight + window) / 4, _LEAST_QUESTION)

    def _window(self) -> float:
        """Returns how many datagrams the window still allows; one is always allowed in flight."""
        window_bytes = self._path.congestion.window_bytes
        whole = self._path.flow_window if math.isinf(self._path.rate_bps) else math.inf
        if window_bytes < math.inf:
            whole = min(whole, max(1, int(window_bytes // self._path.datagram_wire_bytes)))
        held = self._repair.in_flight if self.held else 0
        return whole - self._path.in_flight - held

    def sent(self, count: int, now_s: float, left_out: NDArray[np.bool_] | None = None) -> None:
        """Notes what the network took. To the repair, what was left out is lost like any other."""
        if not count:
            return
        taken = self._offered[:count] if left_out is None else self._offered[:count][~left_out]
        self._path.pacer.spend(len(taken))
        self._on_taken(taken, count, now_s)
        if self.stall.is_stalled(now_s):
            self.stall.on_sent(now_s)
            if self.sending:
                self._repair.on_window_closed(now_s)

    def _on_taken(self, taken: NDArray[np.int64], count: int, now_s: float) -> None:
        """Notes a batch, of which these chunks were not left out."""
        self._ever_sent[taken] = True
        self._datagrams_sent += count
        self._left_out += count - len(taken)
        self._path.congestion.on_sent(count * self._path.datagram_wire_bytes, now_s)
        self._repair.on_sent(count, now_s)
        link_bytes = len(taken) * self._path.datagram_wire_bytes
        self._repair.on_link_time(8 * link_bytes / self._path.rate_bps)
        if self.sending and self._window() < 1:
            # This cannot wait for the next `offer`: the driver may call only at a deadline, and
            # with a full window only the repair sets one.
            self._repair.on_window_closed(now_s)

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        """Takes a control message of the receiver; ProtocolError when it makes no sense."""
        if message.type is MessageType.STOP:
            if message.body:
                self._received = unpack_bitmap(message.body, self._layout.chunk_count)
            self.stopped, self._ended_s = True, now_s
            self._path.end(self._repair)
            return
        if message.type is MessageType.HOLD:
            self.held = True
            self._path.hold(self._repair)
            self.stall.reset()
            return
        # A message that had to wait says nothing of the path's round trip, nor one that was held.
        self._repair.attentive = self.attentive and not self.held
        self.held = False
        self._path.go_on(self._repair, now_s)
        was_asking = self._repair.asking
        feedback = self._repair.on_message(message, now_s)
        if feedback is not None and not self._repair.attentive:
            feedback = replace(feedback, rtt_s=None, newest_sent_s=None, newest_lost_sent_s=None)
        self.stall.on_reply(feedback, now_s)
        self._pass_feedback(feedback)
        self._resume(was_asking, now_s)

    def _pass_feedback(self, feedback: Feedback | None) -> None:
        """Passes the repair's feedback to the congestion control, in bytes instead of datagrams."""
        if feedback is None:
            return
        if feedback.rtt_s is not None:
            self._path.latest_rtt_s = feedback.rtt_s
        size = self._path.datagram_wire_bytes
        self._path.congestion.on_feedback(
            replace(
                feedback,
                delivered_bytes=feedback.delivered_bytes * size,
                lost_bytes=feedback.lost_bytes * size,
                in_flight_bytes=self._path.in_flight * size,
                lost_share=self._path.estimates.loss,
                queueing=self._path.may_queue,
                sent_bytes=self._datagrams_sent * size,
                needed_bytes=self._needed * size,
                # Another transfer had more to send.
                app_limited=feedback.app_limited and not self._path.shared,
            )
        )

    def poll_messages(self) -> list[ControlMessage]:
        if not self._repair.outbox:
            return []
        messages, self._repair.outbox = self._repair.outbox, []
        self._control_bytes += sum(message.wire_bytes for message in messages)
        return messages

    def on_deadline(self, now_s: float) -> None:
        """Must be called when `next_deadline_s` has passed; call `offer` afterwards in any case."""
        deadline_s = self._repair.deadline_s()
        if deadline_s is None or deadline_s > now_s:
            return
        was_asking = self._repair.asking
        self._pass_feedback(self._repair.on_deadline(now_s))
        self._resume(was_asking, now_s)

    def _resume(self, was_asking: bool, now_s: float) -> None:
        """The pacer does not count the time of a question that has ended."""
        if was_asking and self.sending and not self._path.shared:
            self._path.pacer.resume(now_s)

    def next_deadline_s(self, now_s: float, *, planned: bool = False) -> float | None:
        deadline_s = self._repair.deadline_s()
        if planned:
            return deadline_s
        sending = self.sending and self._window() >= 1
        if sending and (remaining := self._repair.remaining):
            next_s = self._path.pacer.next_s(now_s, remaining)
            if self.stall.is_stalled(now_s):
                next_s = max(next_s, self.stall.resume_s)
            return next_s if deadline_s is None else min(next_s, deadline_s)
        return deadline_s

    def observe(self, peer: str, now_s: float) -> Observation:
        return Observation(
            now_s=now_s,
            peer=peer,
            transfer=self.transfer,
            rate_bps=self._path.rate_bps,
            window_bytes=self._path.congestion.window_bytes,
            rtt_s=self._path.latest_rtt_s,
            retransmits=self._repeated(),
        )

    def _repeated(self) -> int:
        return self._on_wire - int(np.count_nonzero(self._ever_sent))

    @property
    def _on_wire(self) -> int:
        return self._datagrams_sent - self._left_out

    def report(self, peer: str) -> TransferReport:
        chunk_bytes = self._layout.chunk_bytes
        return TransferReport(
            transfer=self.transfer,
            peer=peer,
            role="sender",
            chunk_count=self._layout.chunk_count,
            chunks_received=None if self._received is None else int(self._received.sum()),
            received=self._received,
            passes=self._repair.passes,
            chunks_sent=self._on_wire,
            chunks_left_out=self._left_out,
            bytes_sent=wire_bytes(self._on_wire, chunk_bytes),
            control_bytes=self._control_bytes,
            retransmitted_bytes=wire_bytes(self._repeated(), chunk_bytes),
            began_s=self._began_s,
            ended_s=self._ended_s,
        )


class Outgoing:
    """One direction of a `Connection`."""

    def __init__(
        self,
        peer: str,
        settings: ConnectionSettings,
        path: SendingPath | None,
        events: list[Event],
        counters: Counter[str],
    ) -> None:
        self.senders: dict[int, Sender] = {}
        self._peer = peer
        self._settings = settings
        self._path = path
        self._events = events
        self._counters = counters
        self._numbers = TransferNumbers(peer, settings.transfers_in_flight)
        self.nothing = new_frames(0, settings.layout.chunk_bytes)  # an offer without datagrams
        self._held_s: float | None = None
        self._early_stops: dict[int, ControlMessage] = {}
        self._offering: Sender | None = None  # whose datagrams the last offer held
        self._missed: dict[int, NDArray[np.bool_] | None] = {}  # by layout, see OrderContext

    def check(self, transfer: int) -> None:
        self._numbers.check(transfer, len(self.senders))

    def post(
        self,
        transfer: int,
        payload: NDArray[np.uint8],
        now_s: float,
        arrangers: dict[int, Any] | None,
    ) -> None:
        """Begins a transfer; `arrangers` as a `Sender` takes them."""
        self.check(transfer)
        self.senders[transfer] = self._new(transfer, payload, now_s, arrangers)
        self._numbers.last = transfer
        if (stop := self._early_stops.pop(transfer, None)) is not None:
            self.on_message(stop, now_s, waited=True)

    def _new(
        self,
        transfer: int,
        payload: NDArray[np.uint8],
        now_s: float,
        arrangers: dict[int, Any] | None,
    ) -> Sender:
        assert self._path is not None
        return Sender(
            settings=self._settings,
            transfer=transfer,
            payload=payload,
            path=self._path,
            now_s=now_s,
            arrangers=arrangers,
            # What goes to several peers is arranged once, for all of them.
            missed=self._missed.get(self._layout_index(transfer)) if arrangers is None else None,
        )

    def _layout_index(self, transfer: int) -> int:
        return Leg.round_of(transfer) % self._settings.layout_count

    def on_message(self, message: ControlMessage, now_s: float, *, waited: bool) -> None:
        transfer = message.transfer
        sender = self.senders.get(transfer)
        if sender is None:
            if self._is_early_stop(message):
                self._early_stops[transfer] = message
                return
            if not self._numbers.has_finished(transfer):
                raise ProtocolError(
                    f"{message.type.name} for transfer {transfer}, which was not sent"
                )
            self._counters["stale-control"] += 1
            return
        sender.attentive = not waited
        sender.on_message(message, now_s)
        if sender.stopped:
            del self.senders[transfer]
            self._missed[self._layout_index(transfer)] = sender.missed()
            self._numbers.finish(transfer)
            self._events.append(TransferDone(transfer, True, sender.report(self._peer)))
        if not self.held:
            self._held_s = None
        elif self._held_s is None:
            self._held_s = now_s

    def _is_early_stop(self, message: ControlMessage) -> bool:
        """Returns whether the peer has given up a transfer for which this side is late."""
        ahead = message.type is MessageType.STOP and message.transfer > self._numbers.last
        room = len(self._early_stops) < REMEMBERED
        return self._settings.late_s is not None and ahead and room

    def on_deadline(self, now_s: float) -> None:
        for sender in self.senders.values():
            sender.on_deadline(now_s)

    def next_deadline_s(self, now_s: float, *, planned: bool) -> float:
        due_s = math.inf
        for sender in self.senders.values():  # asked for with every wake-up
            deadline_s = sender.next_deadline_s(now_s, planned=planned)
            if deadline_s is not None and deadline_s < due_s:
                due_s = deadline_s
        return due_s

    def offer(self, now_s: float) -> NDArray[np.uint8]:
        """Returns the datagrams that may go now, all of one transfer."""
        for sender in self.senders.values():
            frames = sender.offer(now_s)
            if len(frames):
                self._offering = sender
                return frames
        return self.nothing

    @property
    def protected(self) -> bool | None:
        """Switches are to drop the last offer or plan after others; None: it is not marked."""
        return None if self._offering is None else self._offering.protected

    def sent(self, count: int, now_s: float, left_out: NDArray[np.bool_] | None = None) -> None:
        if self._offering is not None:
            self._offering.sent(count, now_s, left_out)

    def send_plan(self) -> SendPlan | None:
        sending = [sender for sender in self.senders.values() if sender.sending]
        if not sending:
            return None
        self._offering = sending[0]
        plan = self._offering.send_plan()
        # An `offer` must not come to others meanwhile: their batches are no shorter.
        if plan and any(sender.waiting < plan.pacer.quantum for sender in sending[1:]):
            return None
        return plan

    def on_plan_sent(self, plan: SendPlan, batches: Sequence[tuple[int, float]]) -> None:
        if self._offering is not None:
            self._offering.on_plan_sent(plan, batches)

    def poll_messages(self) -> list[ControlMessage]:
        return [message for sender in self.senders.values() for message in sender.poll_messages()]

    @property
    def held(self) -> bool:
        # Asked for with every wake-up, and mostly nothing is under way.
        return bool(self.senders) and any(sender.held for sender in self.senders.values())

    @property
    def held_s(self) -> float | None:
        """Since then the peer lets this side wait; None while it does not."""
        return self._held_s

    def was_away(self, away_s: float) -> None:
        for sender in self.senders.values():
            sender.stall.was_away(away_s)

    def timeout(self, heard_s: float) -> Timeout:
        if not self.senders:
            return NEVER
        timeout_s, late_s = self._settings.peer_timeout_s, self._settings.late_s
        ends = NEVER
        if late_s is not None and self.held_s is not None:
            ends = self.held_s + late_s, LATE, next(iter(self.senders))
        for transfer, sender in self.senders.items():
            if sender.asked_s is not None:
                until_s = max(sender.asked_s, heard_s) + timeout_s
                ends = min(ends, (until_s, SILENT, transfer))
            if sender.stall.since_s is not None:
                until_s = sender.stall.since_s + timeout_s
                ends = min(ends, (until_s, DATA_BLOCKED + NO_NEW_CHUNK, transfer))
        return ends
