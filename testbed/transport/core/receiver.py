"""The receiving side of one transfer, without socket, clock or thread.

Its driver hands over a PROBE after the datagrams that arrived before it, or the answer reports
them as missing, and calls again at `next_deadline_s` at the latest.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.events import TransferReport
from testbed.transport.core.hot_path import Arrivals
from testbed.transport.core.messages import ControlMessage, MessageType, pack_bitmap
from testbed.transport.core.repair import ReceiverRepair
from testbed.transport.core.routine import NOT_QUIET, Quiet, promises
from testbed.transport.core.tolerance import Lookback, Progress, StopRule, Took
from testbed.transport.core.wire import HEADER_BYTES, wire_bytes
from testbed.transport.core.worth import decode


class Receiver:
    """Collects one payload from one sender until the stop rule is satisfied.

    Attributes:
        received: which chunks have arrived, shape (chunk_count,).
        ignored: datagrams dropped, by reason.
        placement: takes its datagrams.
        attentive: the driver sets it to False while it hands over input that waited in the socket
            for an unknown time. Such input gives no sample of the round trip.
    """

    def __init__(
        self,
        *,
        settings: ConnectionSettings,
        transfer: int,
        into: NDArray[np.uint8],
        rule: StopRule | None,
        now_s: float,
        lookback: Lookback | None = None,
    ) -> None:
        """`into` is a buffer of the layout; arriving chunks are written to their place in it.

        Without a rule the receiver collects data early, and says nothing until `adopt`.
        `lookback` is for the rule: what earlier transfers took.
        """
        self.transfer = transfer
        self._layout = layout = settings.layout_of(transfer)
        rows = layout.rows(into, written=True)
        self.placement = settings.hot_path.placement(
            session=settings.session, transfer=transfer, layout=layout, rows=rows
        )
        self.received = self.placement.received
        self.ignored = self.placement.ignored
        self.attentive = True
        self.repair = settings.repair.receiver(
            transfer=transfer, datagram_wire_bytes=wire_bytes(1, layout.chunk_bytes)
        )
        self._go_by(rule)
        self.stopped = False  # whether enough has arrived
        self._outbox: list[ControlMessage] = []
        self._now_s = now_s
        self._began_s = now_s
        self._ended_s = now_s
        self._first_arrival_s: float | None = None
        self._worth_s: float | None = None  # when it was told what chunks are worth
        self.progress_s: float | None = None  # when the latest new chunk arrived
        self.asked = False  # whether a PROBE has come
        self._probes = 0
        self._pass = 1
        self.valid_datagrams = 0  # of this transfer, duplicates included
        self._control_bytes = 0
        self._lookback = lookback or Lookback()
        self._slowest = self._looked_back()
        self._posted_s = now_s  # when this side asked for it
        self._early_count = 0  # chunks that came before
        self._worth: NDArray[np.uint8] | None = None

    def _go_by(self, rule: StopRule | None) -> None:
        self._rule = rule
        both: tuple[StopRule | ReceiverRepair | None, ...] = (rule, self.repair)
        self._timed = [each for each in both if each is not None and _may_set_deadlines(each)]

    def _looked_back(self) -> Sequence[Took]:
        """What the slowest peers took; that asks all of them, so only if the rule wants it."""
        wants = self._rule is not None and self._rule.looks_back
        return self._lookback.slowest.before(self.transfer) if wants else ()

    @property
    def received_count(self) -> int:
        """How many chunks have arrived."""
        return self.placement.received_count

    def on_datagrams(self, frames: NDArray[np.uint8], now_s: float) -> None:
        """Takes a batch, one datagram per row: shape (k, datagram bytes), contiguous rows."""
        if not len(frames):
            return
        self._now_s = now_s
        if frames.shape[1] != HEADER_BYTES + self._layout.chunk_bytes:
            self.ignored["wrong-size"] += len(frames)
            return
        self._note(self.placement.take(frames, place=not self.stopped), now_s)

    def arrived(self, arrivals: Arrivals, now_s: float) -> None:
        """What was `expected` has come, and `placement` has taken it."""
        self._now_s = now_s
        self._note(arrivals, now_s)

    def _note(self, arrivals: Arrivals, now_s: float) -> None:
        valid_count = len(arrivals.stamps)
        if not valid_count:
            return
        self.valid_datagrams += valid_count
        if self.stopped:
            self.ignored["late"] += valid_count
            return
        if self._first_arrival_s is None:
            self._first_arrival_s = now_s
        self._pass = self._probes + 1
        # What comes early is answered once it is asked for: it gives no sample either.
        prompt = self.attentive and self._rule is not None
        self.repair.on_arrivals(arrivals.stamps, now_s, prompt)
        if len(arrivals.new):
            self.progress_s = now_s
            self.repair.on_new_chunks(arrivals.new)
        self._stop_or(self.repair.on_data)

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        """Takes a control message of the sender; ProtocolError when it makes no sense."""
        if message.type not in (MessageType.PROBE, MessageType.WORTH):
            raise ProtocolError(f"{message.type.name} is not allowed at a receiver")
        if message.transfer != self.transfer:
            raise ProtocolError(
                f"{message.type.name} for transfer {message.transfer} during {self.transfer}"
            )
        self._now_s = now_s
        if message.type is MessageType.WORTH:
            self._learn(message.body)
            return
        if self.stopped:
            return  # it crossed the STOP, which answers it
        self.asked = True
        self._probes += self.repair.counts_as_probe(message)
        self._stop_or(lambda progress: self._answer(message, progress))

    def _answer(self, message: ControlMessage, progress: Progress) -> list[ControlMessage]:
        assert self._rule is not None
        progress = replace(progress, ends_s=self._rule.deadline_s(progress))
        return self.repair.on_probe(message, progress, self.attentive)

    def _learn(self, worth: bytes) -> None:
        """The sender has said what its chunks are worth."""
        known, count = self._worth is not None, self._layout.chunk_count
        self._worth = decode(worth, chunk_count=count, known=known)
        self._worth_s = self._now_s
        if not self.stopped:
            self._stop_or(self.repair.on_data)

    def adopt(self, into: NDArray[np.uint8], rule: StopRule, now_s: float) -> None:
        """Gives data that came early its buffer and its rule."""
        self.placement.move(self._layout.rows(into, written=True))
        self._go_by(rule)
        self._now_s = now_s
        self._posted_s, self._early_count = now_s, self.received_count
        self._slowest = self._looked_back()
        if self.received_count:
            self._stop_or(self.repair.on_data)

    @property
    def into(self) -> NDArray[np.uint8]:
        """The buffer to which chunks are written."""
        return self.placement.rows.reshape(-1)

    @property
    def still_s(self) -> float:
        """Since when it stands still: the latest new chunk, or its beginning."""
        return self._began_s if self.progress_s is None else self.progress_s

    @property
    def _first_sign_s(self) -> float | None:
        first_s, worth_s = self._first_arrival_s, self._worth_s  # asked for with every wake-up
        if first_s is None or (worth_s is not None and worth_s < first_s):
            first_s = worth_s
        return None if first_s is None else max(first_s, self._posted_s)

    @property
    def worth_lacks_s(self) -> float | None:
        """Since when data come without WORTH, or since they were asked for; None: they do not."""
        if self._worth is not None or self._first_arrival_s is None:
            return None
        return max(self._first_arrival_s, self._posted_s)

    @property
    def took(self) -> tuple[float, int] | None:
        """How long it took from its first sign, and the chunks that came since it was asked for."""
        first_s, count = self._first_sign_s, self.received_count - self._early_count
        if first_s is None or not self.stopped or not count:
            return None
        return self._ended_s - first_s, count

    @property
    def missing(self) -> int:
        """How many more chunks must arrive, at the least, before it stops; 0 for unknown."""
        if self._rule is None or self.stopped:
            return 0
        missing = self._rule.missing(self._progress())
        if missing is None:
            return 0
        return min(int(missing), self._layout.chunk_count - self.received_count)

    @property
    def quiet(self) -> Quiet:
        """How many datagrams may come before its repair says anything."""
        return self.repair.quiet if promises(self.repair, "quiet") else NOT_QUIET

    def on_deadline(self, now_s: float) -> None:
        """Must be called when `next_deadline_s` has passed."""
        if not self.stopped:
            self._now_s = now_s
            self._stop_or(self.repair.on_deadline)

    def next_deadline_s(self) -> float | None:
        """When to call `on_deadline` if nothing arrives before; None for never."""
        if self.stopped or self._rule is None:
            return None
        if not self._timed:  # asked for with every wake-up, and usual
            return None
        progress = self._progress()
        deadlines = [
            deadline_s
            for each in self._timed
            if (deadline_s := each.deadline_s(progress)) is not None
        ]
        return min(deadlines, default=None)

    def _stop_or(self, otherwise: Callable[[Progress], list[ControlMessage]]) -> None:
        if self._rule is None:
            return
        progress = self._progress()
        complete = self.received_count == self._layout.chunk_count
        if complete or self._rule.satisfied(progress):
            self.stopped = True
            self._ended_s = self._now_s
            # Only the first STOP carries the bitmap; the sender has it from there.
            bitmap = pack_bitmap(self.received)
            self._outbox.append(ControlMessage(MessageType.STOP, self.transfer, bitmap))
        else:
            self._outbox += otherwise(progress)

    def _progress(self) -> Progress:
        return Progress(
            received=self.received,
            received_count=self.received_count,
            now_s=self._now_s,
            first_arrival_s=self._first_arrival_s,
            last_arrival_s=self.progress_s,
            probes=self._probes,
            worth=self._worth,
            first_sign_s=self._first_sign_s,
            recent=self._lookback.recent,
            earliest=self._lookback.earliest,
            slowest=self._slowest,
            round_trip_s=self._lookback.round_trip_s,
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
            passes=self._pass if self.repair.has_passes else None,
            bytes_received=wire_bytes(self.valid_datagrams, self._layout.chunk_bytes),
            control_bytes=self._control_bytes,
            duplicates=self.ignored["duplicate"],
            began_s=self._ended_s if self._first_arrival_s is None else self._first_arrival_s,
            ended_s=self._ended_s,
            ignored=dict(self.ignored),
        )


def _may_set_deadlines(asked: StopRule | ReceiverRepair) -> bool:
    """Whether its `deadline_s` is its own."""
    method = getattr(asked.deadline_s, "__func__", None)
    return method not in (StopRule.deadline_s, ReceiverRepair.deadline_s)
