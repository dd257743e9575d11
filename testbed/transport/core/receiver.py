"""The receiving side of one transfer, without socket, clock or thread.

The code that drives a `Receiver` hands it batches of datagrams and the sender's messages, sends
the messages of `poll_messages`, and calls again at `next_deadline_s` at the latest. It must hand
over a PROBE after the datagrams that arrived before it, or the answer reports them as missing.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.messages import ControlMessage, MessageType, pack_bitmap
from testbed.transport.core.repair import ReceiverRepair, Repair
from testbed.transport.core.reports import TransferReport
from testbed.transport.core.states import (
    RECEIVER_TRANSITIONS,
    Machine,
    ReceiverEvent,
    ReceiverState,
)
from testbed.transport.core.tolerance import Progress, StopRule
from testbed.transport.core.wire import HEADER_BYTES, fields, is_run, wire_bytes

_STAMP_BITS = np.uint64(16)


class Receiver:
    """Collects one payload from one sender until the stop rule is satisfied.

    Attributes:
        received: which chunks have arrived, shape (chunk_count,).
        received_count: how many.
        ignored: datagrams dropped, by reason.
        attentive: the driver sets it to False while it hands over input that waited in the socket
            for an unknown time. Such input gives no sample of the round trip.
    """

    def __init__(
        self,
        *,
        session: int,
        transfer: int,
        layout: PayloadLayout,
        into: NDArray[np.uint8],
        rule: StopRule | None,
        repair: Repair,
        now_s: float,
    ) -> None:
        """`into` is a buffer of the layout; arriving chunks are written to their place in it.

        Without a rule the receiver collects data early, and says nothing until `adopt`.
        """
        self.transfer = transfer
        self.received = np.zeros(layout.chunk_count, dtype=np.bool_)
        self.received_count = 0
        self.ignored: Counter[str] = Counter()
        self.attentive = True
        self._session = session
        self._layout = layout
        self._rows = layout.rows(into)
        self._rule = rule
        self._repair = repair.receiver(
            transfer=transfer, datagram_wire_bytes=wire_bytes(1, layout.chunk_bytes)
        )
        if not isinstance(self._repair, ReceiverRepair):
            raise own_code.unfit(repair, "receiver", self._repair, "a ReceiverRepair")
        self._machine = Machine(ReceiverState.GATHERING, RECEIVER_TRANSITIONS)
        self._outbox: list[ControlMessage] = []
        # The two 64-bit halves of a full chunk's header: (session, sequence), (transfer, length).
        self._full_tail = np.uint64(transfer << 16 | layout.chunk_bytes)
        self._first_head = np.uint64(session << 32)
        last_is_full = int(layout.chunk_lengths[-1]) == layout.chunk_bytes
        full_chunks = layout.chunk_count if last_is_full else layout.chunk_count - 1
        self._has_full_chunks = full_chunks > 0
        self._last_full_head = np.uint64(session << 32 | max(0, full_chunks - 1))
        self._now_s = now_s
        self._ended_s = now_s
        self._first_arrival_s: float | None = None
        self._last_arrival_s: float | None = None
        self._asked = False
        self._probes = 0
        self._pass = 1
        self._datagrams = 0
        self._control_bytes = 0

    @property
    def state(self) -> ReceiverState:
        return self._machine.state

    @property
    def stopped(self) -> bool:
        """Whether enough has arrived."""
        return self.state is ReceiverState.STOPPED

    @property
    def valid_datagrams(self) -> int:
        """Valid datagrams of this transfer so far, duplicates included."""
        return self._datagrams

    def on_datagrams(self, frames: NDArray[np.uint8], now_s: float) -> None:
        """Takes a batch, one datagram per row: shape (k, datagram bytes), contiguous rows.

        A datagram that is no new chunk of this transfer is dropped and counted in `ignored`.
        """
        if not len(frames):
            return
        self._machine.on(ReceiverEvent.DATA)
        self._now_s = now_s
        if frames.shape[1] != HEADER_BYTES + self._layout.chunk_bytes:
            self.ignored["wrong-size"] += len(frames)
            return
        batch = fields(frames, self._layout.chunk_bytes)
        first = self._first_of_new_run(frames)
        if first is None:
            if not self._all_valid(frames):
                batch = self._valid(batch)
            if not len(batch):
                return
        self._datagrams += len(batch)
        if self.stopped:
            self.ignored["late"] += len(batch)
            return
        if self._first_arrival_s is None:
            self._first_arrival_s = now_s
        self._pass = self._probes + 1
        self._repair.on_arrivals(batch["stamp"], now_s, self.attentive)
        gained = self._place(batch) if first is None else self._place_run(first, batch)
        if len(gained):
            self._last_arrival_s = now_s
            self._repair.on_new_chunks(gained)
        self._stop_or(self._repair.on_data)

    def _first_of_new_run(self, frames: NDArray[np.uint8]) -> int | None:
        """The first chunk of a batch of valid, full, consecutive and new chunks; else None.

        Without loss this is the usual case, so it costs two 64-bit comparisons per datagram.
        """
        heads = frames[:, :HEADER_BYTES].view(">u8").astype(np.uint64)
        first_head, count = heads[0, 0], len(heads)
        if not (
            self._first_head <= first_head <= heads[-1, 0] <= self._last_full_head
            and self._has_full_chunks
            and (heads[:, 0] - first_head == np.arange(count, dtype=np.uint64)).all()
            and (heads[:, 1] >> _STAMP_BITS == self._full_tail).all()
        ):
            return None
        first = int(first_head - self._first_head)
        return None if self.received[first : first + count].any() else first

    def _place_run(self, first: int, batch: NDArray[np.void]) -> NDArray[np.int64]:
        """`_place` for consecutive chunks: slices save a third of the work on every datagram."""
        end = first + len(batch)
        self._rows[first:end] = batch["chunk"]
        self.received[first:end] = True
        self.received_count += len(batch)
        return np.arange(first, end, dtype=np.int64)

    def _all_valid(self, frames: NDArray[np.uint8]) -> bool:
        """Whether all headers are those of full chunks of this transfer, the usual case.

        Two 64-bit comparisons replace one per field, because every datagram passes here.
        """
        heads = frames[:, :HEADER_BYTES].view(">u8")
        return self._has_full_chunks and bool(
            (heads[:, 1] >> _STAMP_BITS == self._full_tail).all()
            and (heads[:, 0] >= self._first_head).all()
            and (heads[:, 0] <= self._last_full_head).all()
        )

    def _valid(self, batch: NDArray[np.void]) -> NDArray[np.void]:
        """The records whose header fits this transfer; counts the others."""
        transfers = batch["transfer"]
        sequences = batch["sequence"]
        in_range = sequences < self._layout.chunk_count
        lengths = self._layout.chunk_lengths[np.where(in_range, sequences, 0)]
        faults: Sequence[tuple[str, NDArray[np.bool_]]] = (
            ("wrong-session", batch["session"] != self._session),
            ("stale-transfer", transfers < self.transfer),
            ("early-transfer", transfers > self.transfer),
            ("out-of-range", ~in_range),
            ("wrong-length", batch["length"] != lengths),
        )
        good = ~np.logical_or.reduce([fault for _, fault in faults])
        if good.all():
            return batch
        suspects = ~good
        for reason, fault in faults:
            guilty = suspects & fault
            if guilty.any():
                self.ignored[reason] += int(np.count_nonzero(guilty))
                suspects &= ~fault
        return batch[good]

    def _place(self, batch: NDArray[np.void]) -> NDArray[np.int64]:
        """Writes the new chunks to their rows; returns which were new."""
        chunks = batch["sequence"].astype(np.int64)
        new = ~self.received[chunks]
        if not new.all():
            batch, chunks = batch[new], chunks[new]
        # A chunk may come twice in a batch. Writing it twice does no harm, and counting the new
        # chunks costs less than sorting every batch.
        if len(chunks) and is_run(chunks):
            self._rows[chunks[0] : chunks[-1] + 1] = batch["chunk"]  # much faster
        else:
            self._rows[chunks] = batch["chunk"]
        self.received[chunks] = True
        total = int(np.count_nonzero(self.received))
        gained = total - self.received_count
        self.received_count = total
        duplicates = len(new) - gained
        if duplicates:
            self.ignored["duplicate"] += duplicates
        return chunks if gained == len(chunks) else np.unique(chunks)

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        """Takes a control message of the sender; ProtocolError when it makes no sense."""
        if message.type is not MessageType.PROBE:
            raise ProtocolError(f"{message.type.name} is not allowed at a receiver")
        if message.transfer != self.transfer:
            raise ProtocolError(f"PROBE for transfer {message.transfer} during {self.transfer}")
        self._now_s = now_s
        self._machine.on(ReceiverEvent.PROBE)
        if self.stopped:
            return  # it crossed the STOP, which answers it
        self._asked = True
        self._probes += self._repair.counts_as_probe(message)
        self._stop_or(lambda progress: self._repair.on_probe(message, progress, self.attentive))

    def adopt(self, into: NDArray[np.uint8], rule: StopRule, now_s: float) -> None:
        """Gives data that came early its buffer and its rule."""
        rows = self._layout.rows(into)
        rows[self.received] = self._rows[self.received]
        self._rows, self._rule, self._now_s = rows, rule, now_s
        if self.received_count:
            self._stop_or(self._repair.on_data)

    @property
    def into(self) -> NDArray[np.uint8]:
        """The buffer to which chunks are written."""
        return self._rows.reshape(-1)

    @property
    def asked(self) -> bool:
        """Whether a PROBE has come."""
        return self._asked

    @property
    def progress_s(self) -> float | None:
        """When the latest new chunk arrived; None before the first."""
        return self._last_arrival_s

    def on_deadline(self, now_s: float) -> None:
        """Must be called when `next_deadline_s` has passed."""
        if not self.stopped:
            self._now_s = now_s
            self._stop_or(self._repair.on_deadline)

    def next_deadline_s(self) -> float | None:
        """When to call `on_deadline` if nothing arrives before; None for never."""
        if self.stopped or self._rule is None:
            return None
        progress = self._progress()
        deadlines = [
            deadline_s
            for each in (self._rule, self._repair)
            if (deadline_s := _deadline_s(each, progress)) is not None
        ]
        return min(deadlines, default=None)

    def _stop_or(self, otherwise: Callable[[Progress], list[ControlMessage]]) -> None:
        if self._rule is None:
            return
        progress = self._progress()
        complete = self.received_count == self._layout.chunk_count
        if complete or self._satisfied(self._rule, progress):
            self._machine.on(ReceiverEvent.SATISFIED)
            self._ended_s = self._now_s
            # Only the first STOP carries the bitmap; the sender has it from there.
            bitmap = pack_bitmap(self.received)
            self._outbox.append(ControlMessage(MessageType.STOP, self.transfer, bitmap))
        else:
            self._outbox += otherwise(progress)

    def _satisfied(self, rule: StopRule, progress: Progress) -> bool:
        satisfied = rule.satisfied(progress)
        if not isinstance(satisfied, bool | np.bool_):
            raise own_code.unfit(rule, "satisfied", satisfied, "True or False")
        return bool(satisfied)

    def _progress(self) -> Progress:
        return Progress(
            received=self.received,
            received_count=self.received_count,
            now_s=self._now_s,
            first_arrival_s=self._first_arrival_s,
            last_arrival_s=self._last_arrival_s,
            probes=self._probes,
        )

    def poll_messages(self) -> list[ControlMessage]:
        """The control messages to send now, in order."""
        messages, self._outbox = self._outbox, []
        self._control_bytes += sum(message.wire_bytes for message in messages)
        return messages

    def report(self, peer: str) -> TransferReport:
        """This side's report, complete once `stopped`."""
        return TransferReport(
            transfer=self.transfer,
            peer=peer,
            role="receiver",
            chunk_count=self._layout.chunk_count,
            chunks_received=self.received_count,
            received=self.received,
            passes=self._pass if self._repair.has_passes else None,
            bytes_received=wire_bytes(self._datagrams, self._layout.chunk_bytes),
            control_bytes=self._control_bytes,
            duplicates=self.ignored["duplicate"],
            began_s=self._ended_s if self._first_arrival_s is None else self._first_arrival_s,
            ended_s=self._ended_s,
            ignored=dict(self.ignored),
        )


def _deadline_s(asked: StopRule | ReceiverRepair, progress: Progress) -> float | None:
    deadline_s = asked.deadline_s(progress)
    if deadline_s is not None and not (
        isinstance(deadline_s, own_code.NUMBER) and deadline_s > -math.inf
    ):
        raise own_code.unfit(asked, "deadline_s", deadline_s, "a time in seconds, or None")
    return deadline_s
