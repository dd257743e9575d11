"""The sending side of one transfer, without socket, clock or thread."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.transport.core.congestion import Feedback
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.events import Observation, TransferReport
from testbed.transport.core.hot_path import ASK_FIRST, ASK_LAST
from testbed.transport.core.messages import ControlMessage, MessageType, unpack_bitmap
from testbed.transport.core.order import Arranger, OrderContext
from testbed.transport.core.repair import Arrange
from testbed.transport.core.routine import Departures, promises
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.states import SenderEvent, SenderState
from testbed.transport.core.wire import wire_bytes
from testbed.transport.core.worth import MUST

# The fewest datagrams in flight that are worth a question before the window is full.
_LEAST_QUESTION = 8
# The fewest datagrams of a batch that are worth two requests for an ACK.
_WORTH_TWO = 4
# An answer is overdue after twice a round trip and so much more; before one is known, it is this.
_OVERDUE_S = 2e-3
_FIRST_ANSWER_S = 1e-2
_STALLED_BATCH = 32  # datagrams between two pauses
# Answers must have named nothing new for so long, and so many of them, or fewer that tell of so
# many losses. Time alone says little: a busy peer may have answered once a second.
_TIME_S = 1.0
_ANSWERS = 16
_LOST = 2048
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Stall:
    """Makes a sender whose data do not arrive, although answers do, send less, and pause."""

    def __init__(self, now_s: float) -> None:
        self.since_s: float | None = None  # since when they have named nothing new
        self.resume_s = now_s  # until when to pause, once it `pauses`
        self.rounds = 0  # batches that went since it pauses
        self._answers = self._lost = 0
        self._pause_s = _FIRST_PAUSE_S

    def pauses(self, now_s: float) -> bool:
        """Whether control messages have come for a while, but no data has arrived."""
        enough = self._answers >= _ANSWERS or (self._answers > 1 and self._lost >= _LOST)
        return self.since_s is not None and enough and now_s - self.since_s >= _TIME_S

    def on_answer(self, feedback: Feedback | None, now_s: float) -> None:
        """Notes whether an answer tells of arrivals, or of losses alone."""
        if feedback is None:
            return
        if feedback.delivered_bytes:
            self.forget()
            self._pause_s = _FIRST_PAUSE_S
        elif feedback.lost_bytes:
            self._answers += 1
            self._lost += feedback.lost_bytes  # datagrams: what a repair tells
            if self.since_s is None:
                self.since_s = self.resume_s = now_s

    def on_sent(self, now_s: float) -> None:
        """A batch went while it pauses: the next one waits, each time longer."""
        self.rounds += 1
        self.resume_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def forget(self) -> None:
        """What was answered says nothing any more."""
        self.since_s, self._answers, self._lost, self.rounds = None, 0, 0, 0

    def was_away(self, away_s: float) -> None:
        """For so long this side sent nothing that an answer could have named."""
        if self.since_s is not None:
            self.since_s += away_s


class Sender:
    """Sends one payload to one receiver until the receiver says STOP.

    Attributes:
        held: whether the receiver has said that it has not asked for this transfer yet.
        attentive: the driver sets it to False while it hands over messages that waited for an
            unknown time.
        protected: whether switches are to drop what was offered last, or the last `departures`,
            after others; None: it is not marked.
    """

    def __init__(
        self,
        *,
        settings: ConnectionSettings,
        transfer: int,
        payload: NDArray[np.uint8],
        path: SendingPath,
        now_s: float,
        arrangers: dict[int, Arrange] | None = None,
        overdue: NDArray[np.bool_] | None = None,
    ) -> None:
        """`payload` is a buffer of the layout; it must not change before the transfer ends.

        `arrangers` are the order's for payloads that are sent to several peers at once, by their
        addresses: that of this one is taken from there, or added. `overdue`: see `OrderContext`.
        """
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
                overdue=overdue,
            )
            arrangers[place] = settings.order.arranger(context)
        arranger = arrangers[place]
        self._repair = settings.repair.sender(
            transfer=transfer,
            chunk_count=layout.chunk_count,
            arrange=arranger,
            estimates=path.estimates,
        )
        self._worth, self._enough, self._classes = None, layout.chunk_count, None
        if isinstance(arranger, Arranger):
            self._worth, self._enough = arranger.worth, arranger.enough
            self._classes = arranger.protected
        self.protected: bool | None = None
        if self._worth is not None:
            told = ControlMessage(MessageType.WORTH, transfer, self._worth.tobytes())
            self._repair.outbox.append(told)
        self._path = path
        self._composer = settings.hot_path.composer(
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
        self._stall = Stall(now_s)
        self.ignored: Counter[str] = Counter()
        self.held = False
        self.attentive = True
        path.pacer.fit(layout.chunk_count)
        path.begin(self._repair, now_s)

    @property
    def state(self) -> SenderState:
        return self._repair.machine.state

    @property
    def stopped(self) -> bool:
        """Whether the receiver has said that it has enough."""
        return self.state is SenderState.STOPPED

    @property
    def asked_s(self) -> float | None:
        """Since when the receiver owes an answer; None while it owes none."""
        return None if self.stopped else self._repair.asked_s

    def overdue_s(self, asked_s: float) -> float:
        """When the answer to a question of `asked_s` is overdue."""
        if self._repair.was_silent:
            return asked_s
        usual_s = self._path.estimates.smoothed_s
        return asked_s + 2 * (_FIRST_ANSWER_S if usual_s is None else usual_s) + _OVERDUE_S

    @property
    def stalled_s(self) -> float | None:
        """Since when the receiver's answers have named nothing new; None while data arrive."""
        return self._stall.since_s

    @property
    def stalled_batches(self) -> int:
        """How many batches went since it pauses because no data arrive."""
        return self._stall.rounds

    def overdue(self) -> NDArray[np.bool_] | None:
        """What was to arrive and did not, once `stopped`: shape (chunk_count,); None: nothing."""
        if self._worth is None or self._received is None:
            return None
        left = (self._worth >= MUST) & ~self._received
        return left if left.any() else None

    def was_away(self, away_s: float) -> None:
        """For so long this side sent nothing that an answer could have named."""
        self._stall.was_away(away_s)

    def offer(self, now_s: float) -> NDArray[np.uint8]:
        """The datagrams that may go now: shape (k, datagram bytes), k >= 0."""
        room = self._room(now_s) if self.state is SenderState.SENDING else 0
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
        """The first of some chunks that switches are to treat alike; sets `protected`."""
        assert self._classes is not None
        each = self._classes.take(chunks, mode="clip")  # who composes refuses what is no chunk
        self.protected = bool(each[0])
        others = np.flatnonzero(each != each[0])
        return chunks[: others[0]] if len(others) else chunks

    def departures(self) -> Departures | None:
        """What may go without an `offer` each; None while that is no more than a batch."""
        path, repair = self._path, self._repair
        alone = path.steady and self.stalled_s is None and not self.held
        alone = alone and promises(repair, "certain") and self.state is SenderState.SENDING
        count = repair.certain if alone else 0
        path.pacer.set_rate(path.rate_bps)  # on which the quantum depends
        if count <= path.pacer.quantum:
            return None
        chunks = repair.upcoming(count)
        if self._classes is not None:
            chunks = self._of_one_class(chunks)
            if len(chunks) <= path.pacer.quantum:
                return None
        return Departures(
            composer=self._composer,
            chunks=chunks,
            first=self._datagrams_sent,
            beyond=repair.remaining - len(chunks),
            pacer=path.pacer,
        )

    def departed(self, departures: Departures, batches: Sequence[tuple[int, float]]) -> None:
        """These batches of `departures` were sent: how many datagrams, and when."""
        count = sum(map(itemgetter(0), batches))
        sent_bytes = count * self._path.datagram_wire_bytes
        self._ever_sent[departures.chunks[:count]] = True
        self._datagrams_sent += count
        self._path.congestion.on_sent(sent_bytes, batches[-1][1])
        self._repair.on_sent_all(batches)
        self._repair.on_link_time(8 * sent_bytes / self._path.rate_bps)

    def _asking(self, count: int) -> int:
        """Which of the next `count` datagrams ask for an ACK, as `Composer.compose` takes it."""
        window_left = self._window() - count
        if not self._repair.wants_ack(count, window_left):
            return 0
        if window_left >= 1:
            return ASK_LAST if count >= self._repair.remaining else ASK_FIRST
        return ASK_LAST if count < _WORTH_TWO else ASK_FIRST | ASK_LAST

    def _room(self, now_s: float) -> int:
        """How many datagrams the pacer and the window allow now."""
        path = self._path
        path.pacer.set_rate(path.rate_bps)
        window = self._window()
        if window < math.inf:
            if path.in_flight > max((path.in_flight + window) / 4, _LEAST_QUESTION):
                # Ask early, so that the answer comes before the window is full.
                self._repair.on_window_closed(now_s)
            if window < 1:
                self._repair.on_window_closed(now_s)
                return 0
        remaining = self._repair.remaining
        if self._stall.pauses(now_s):
            if now_s < self._stall.resume_s:
                return 0
            remaining = min(remaining, _STALLED_BATCH)
        return int(min(path.pacer.allowance(now_s, remaining), window, remaining))

    def _window(self) -> float:
        """Datagrams that the congestion window still allows; one is always allowed in flight."""
        window_bytes = self._path.window_bytes
        whole = self._path.flow_window
        if window_bytes < math.inf:
            whole = min(whole, max(1, int(window_bytes // self._path.datagram_wire_bytes)))
        held = self._repair.in_flight if self.held else 0
        return whole - self._path.in_flight - held

    def sent(self, count: int, now_s: float, left_out: NDArray[np.bool_] | None = None) -> None:
        """`Outgoing.sent`. To the repair, what was left out is lost like any other."""
        if not count:
            return
        taken = self._offered[:count] if left_out is None else self._offered[:count][~left_out]
        self._ever_sent[taken] = True
        self._datagrams_sent += count
        self._left_out += count - len(taken)
        self._path.pacer.spend(len(taken))
        self._path.congestion.on_sent(count * self._path.datagram_wire_bytes, now_s)
        self._repair.on_sent(count, now_s)
        link_bytes = len(taken) * self._path.datagram_wire_bytes
        self._repair.on_link_time(8 * link_bytes / self._path.rate_bps)
        if self._stall.pauses(now_s):
            self._stall.on_sent(now_s)
            if self.state is SenderState.SENDING:
                self._repair.on_window_closed(now_s)
        if self.state is SenderState.SENDING and self._window() < 1:
            # This cannot wait for the next `offer`: the driver may call only at a deadline, and
            # with a full window only the repair sets one.
            self._repair.on_window_closed(now_s)

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        """Takes a control message of the receiver; ProtocolError when it makes no sense."""
        if message.transfer != self.transfer:
            raise ProtocolError(
                f"{message.type.name} for transfer {message.transfer} during {self.transfer}"
            )
        if message.type is MessageType.STOP:
            self._on_stop(message, now_s)
            return
        if self.stopped:
            return  # an answer that crossed the STOP
        if message.type is MessageType.HOLD:
            self.held = True
            self._path.hold(self._repair)
            self._stall.forget()
            return
        # A message that had to wait says nothing of the path's round trip, nor one that was held.
        self._repair.attentive = self.attentive and not self.held
        self.held = False
        self._path.go_on(self._repair, now_s)
        was_asking = self.state is SenderState.ASKING
        feedback = self._repair.on_message(message, now_s)
        if feedback is not None and not self._repair.attentive:
            feedback = replace(feedback, rtt_s=None, newest_sent_s=None, newest_lost_sent_s=None)
        self._stall.on_answer(feedback, now_s)
        self._pass_feedback(feedback)
        if was_asking and self.state is SenderState.SENDING and not self._path.shared:
            self._path.pacer.resume(now_s)

    def _on_stop(self, message: ControlMessage, now_s: float) -> None:
        if not self.stopped:
            if message.body:
                self._received = unpack_bitmap(message.body, self._layout.chunk_count)
            self._ended_s = now_s
            self._path.end(self._repair)
        self._repair.machine.on(SenderEvent.STOP)

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
                enough_bytes=self._enough * size,
                # Another transfer had more to send.
                app_limited=feedback.app_limited and not self._path.shared,
            )
        )

    def poll_messages(self) -> list[ControlMessage]:
        """The control messages to send now, in order."""
        if not self._repair.outbox:
            return []
        messages, self._repair.outbox = self._repair.outbox, []
        if self.stopped:
            return []  # the answers are no longer needed
        self._control_bytes += sum(message.wire_bytes for message in messages)
        return messages

    def on_deadline(self, now_s: float) -> None:
        """Must be called when `next_deadline_s` has passed; call `offer` afterwards in any case."""
        deadline_s = self._repair.deadline_s()
        if self.stopped or deadline_s is None or deadline_s > now_s:
            return
        was_asking = self.state is SenderState.ASKING
        self._pass_feedback(self._repair.on_deadline(now_s))
        if was_asking and self.state is SenderState.SENDING and not self._path.shared:
            self._path.pacer.resume(now_s)

    def next_deadline_s(self, now_s: float, *, departing: bool = False) -> float | None:
        """When to call `on_deadline` and `offer` if nothing else happens before; None for never."""
        if self.stopped:
            return None
        deadline_s = self._repair.deadline_s()
        if departing:
            return deadline_s
        sending = self.state is SenderState.SENDING and self._window() >= 1
        if sending and (remaining := self._repair.remaining):
            next_s = self._path.pacer.next_s(now_s, remaining)
            if self._stall.pauses(now_s):
                next_s = max(next_s, self._stall.resume_s)
            return next_s if deadline_s is None else min(next_s, deadline_s)
        return deadline_s

    def observe(self, peer: str, now_s: float) -> Observation:
        return Observation(
            now_s=now_s,
            peer=peer,
            transfer=self.transfer,
            rate_bps=self._path.rate_bps,
            window_bytes=self._path.window_bytes,
            rtt_s=self._path.latest_rtt_s,
            retransmits=self._repeated(),
        )

    def _repeated(self) -> int:
        """How many datagrams carried a chunk that had been sent before."""
        return self._on_wire - int(np.count_nonzero(self._ever_sent))

    @property
    def _on_wire(self) -> int:
        return self._datagrams_sent - self._left_out

    def report(self, peer: str) -> TransferReport:
        """This side's report, complete once `stopped`."""
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
            ignored=dict(self.ignored),
        )
