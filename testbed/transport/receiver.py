"""The receiving half of a connection: each transfer's `Receiver`, and all of them together.

Data of a transfer that nobody has posted yet go into a spare buffer, and its PROBE is answered by
HOLD. Until a PROBE confirms its number, that may be corrupt: it is dropped once nothing new comes.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from testbed.transport.chunk_energy import decode
from testbed.transport.errors import ProtocolError
from testbed.transport.events import Event, TransferDone, TransferReport
from testbed.transport.fast_path import (
    NO_SILENCE,
    Arrivals,
    Coalescer,
    ReceivePlan,
    SilenceBudget,
    defines,
)
from testbed.transport.messages import ControlMessage, MessageType, pack_bitmap
from testbed.transport.path_estimates import PathEstimates
from testbed.transport.sending_path import SendingPath
from testbed.transport.settings import (
    DATA_BLOCKED,
    LATE,
    NEVER,
    NO_NEW_CHUNK,
    REMEMBERED,
    SILENT,
    ConnectionSettings,
    SlowestPeer,
    Timeout,
    Took,
    TransferNumbers,
)
from testbed.transport.tolerance import MOST_EARLIEST, Progress, StopRule
from testbed.transport.wire import fields, wire_bytes


class TransferTimes:
    """Records what the transfers from one peer took; `estimates` are of the path back to it."""

    def __init__(self, slowest: SlowestPeer, estimates: PathEstimates | None = None) -> None:
        self.recent: deque[Took] = deque(maxlen=slowest.remembered)  # oldest first
        self.earliest: list[Took] = []
        self.slowest = slowest
        self._estimates = estimates

    @property
    def round_trip_s(self) -> float | None:
        """The smallest round trip that this side measured when it sent; None before."""
        if self._estimates is None or self._estimates.min_s == math.inf:
            return None
        return self._estimates.min_s

    def note(self, transfer: int, took: Took) -> None:
        self.recent.append(took)
        if len(self.earliest) < MOST_EARLIEST:
            self.earliest.append(took)
        self.slowest.note(transfer, took)


class Receiver:
    """Collects one payload from one sender until the stop rule is satisfied."""

    awaited_s = -math.inf  # since when it could have progressed, but for its own chunks

    def __init__(
        self,
        *,
        settings: ConnectionSettings,
        transfer: int,
        into: NDArray[np.uint8],
        rule: StopRule | None,
        now_s: float,
        times: TransferTimes | None = None,
    ) -> None:
        """Without a rule it sends nothing until `adopt`."""
        self.transfer = transfer
        self._layout = layout = settings.layout_of(transfer)
        rows = layout.rows(into, written=True)
        self.placement = settings.fast_path.placement(
            session=settings.session, transfer=transfer, layout=layout, rows=rows
        )
        self.received = self.placement.received  # which chunks, shape (chunk_count,)
        self.ignored = self.placement.ignored  # datagrams dropped, by reason
        self.attentive = True  # False for input that waited: it gives no round trip
        self.repair = settings.repair.receiver(
            transfer=transfer, datagram_wire_bytes=wire_bytes(1, layout.chunk_bytes)
        )
        self.stopped = False
        self.asked = False  # whether a PROBE has come
        self.still_s = now_s  # when the latest new chunk arrived, or this began
        self.valid_datagrams = 0  # of this transfer, duplicates included
        self._pass = 1
        self._control_bytes = 0
        self._outbox: list[ControlMessage] = []
        self._times = times or TransferTimes(settings.slowest)
        self.progress = Progress(
            received=self.received,
            expected_count=settings.order.count(layout),
            now_s=now_s,
            recent=self._times.recent,
            earliest=self._times.earliest,
        )
        self._set_rule(rule)

    def _set_rule(self, rule: StopRule | None) -> None:
        self._rule = rule
        self._early_count = self.received_count
        if self.progress.first_sign_s is not None:
            self.progress.first_sign_s = self.progress.now_s
        if rule is not None and rule.needs_slowest:  # it asks all connections
            self.progress.slowest = self._times.slowest.before(self.transfer)

    @property
    def received_count(self) -> int:
        return self.placement.received_count

    @property
    def progress_s(self) -> float | None:
        return self.progress.last_arrival_s

    def on_datagrams(self, frames: NDArray[np.uint8], now_s: float) -> None:
        """Takes a batch, one datagram per row: shape (k, datagram bytes), contiguous rows."""
        self.on_arrivals(self.placement.take(frames), now_s)

    def on_arrivals(self, arrivals: Arrivals, now_s: float) -> None:
        """Notes what `placement` has taken."""
        valid_count, progress = len(arrivals.stamps), self.progress
        self.valid_datagrams += valid_count
        progress.now_s = now_s
        if not valid_count:
            return
        if progress.first_arrival_s is None:
            progress.first_arrival_s = now_s
            self._note_sign()
        self._pass = progress.probes + 1
        # Early data are acknowledged once they are asked for: they give no sample either.
        prompt = self.attentive and self._rule is not None
        self.repair.on_arrivals(arrivals.stamps, now_s, prompt)
        if len(arrivals.new):
            progress.received_count = self.received_count
            progress.last_arrival_s = self.still_s = now_s
            self.repair.on_new_chunks(arrivals.new)
        self._stop_or(self.repair.on_data)

    def _note_sign(self) -> None:
        if self.progress.first_sign_s is None:
            self.progress.first_sign_s = self.progress.now_s

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        """Takes a PROBE or ENERGY of the sender; ProtocolError when it makes no sense."""
        if self.stopped:
            return  # it crossed the STOP, which is its reply
        progress = self.progress
        progress.now_s = now_s
        if message.type is MessageType.ENERGY:
            repeated, count = progress.energy_levels is not None, self._layout.chunk_count
            progress.energy_levels = decode(message.body, chunk_count=count, repeated=repeated)
            self._note_sign()
            self._stop_or(self.repair.on_data)
            return
        self.asked = True
        progress.probes += self.repair.counts_as_probe(message)
        self._stop_or(lambda progress: self._reply(message, progress))

    def _reply(self, message: ControlMessage, progress: Progress) -> list[ControlMessage]:
        assert self._rule is not None
        progress.ends_s = self._rule.deadline_s(progress)
        return self.repair.on_probe(message, progress, self.attentive)

    def adopt(self, into: NDArray[np.uint8], rule: StopRule, now_s: float) -> None:
        """Gives an early transfer its buffer and its rule."""
        self.placement.move(self._layout.rows(into, written=True))
        self.progress.now_s = now_s
        self._set_rule(rule)
        if self.received_count:
            self._stop_or(self.repair.on_data)

    @property
    def took(self) -> Took | None:
        """The time from its first sign to its end, and the chunks since it was asked for."""
        first_s, count = self.progress.first_sign_s, self.received_count - self._early_count
        if first_s is None or not count:
            return None
        return self.progress.now_s - first_s, count

    @property
    def missing(self) -> int:
        """So many more chunks must arrive, at the least, before it stops; 0: unknown."""
        if self._rule is None:
            return 0
        missing = int(self._rule.missing(self.progress) or 0)
        return min(missing, self.progress.expected_count - self.received_count)

    @property
    def silence(self) -> SilenceBudget:
        return self.repair.silence if defines(self.repair, "silence") else NO_SILENCE

    def on_deadline(self, now_s: float) -> None:
        self.progress.now_s = now_s
        self._stop_or(self.repair.on_deadline)

    def next_deadline_s(self) -> float | None:
        if self._rule is None:
            return None
        deadlines = self._rule.deadline_s(self.progress), self.repair.deadline_s(self.progress)
        return min((at_s for at_s in deadlines if at_s is not None), default=None)

    def _stop_or(self, otherwise: Callable[[Progress], list[ControlMessage]]) -> None:
        if self._rule is None:
            return
        progress = self.progress
        progress.round_trip_s = self._times.round_trip_s
        complete = self.received_count >= progress.expected_count
        if complete or self._rule.satisfied(progress):
            self.stopped = True
            # Only the first STOP carries the bitmap; the sender has it from there.
            bitmap = pack_bitmap(self.received)
            # The sender of the last chunk asks at once; one that is stopped earlier would go on.
            stop = ControlMessage(MessageType.STOP, self.transfer, bitmap, asked_for=complete)
            self._outbox.append(stop)
        else:
            self._outbox += otherwise(progress)

    def poll_messages(self) -> list[ControlMessage]:
        messages, self._outbox = self._outbox, []
        self._control_bytes += sum(message.wire_bytes for message in messages)
        return messages

    def report(self, peer: str) -> TransferReport:
        first_s, ended_s = self.progress.first_arrival_s, self.progress.now_s
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
            began_s=ended_s if first_s is None else first_s,
            ended_s=ended_s,
            ignored=dict(self.ignored),
        )


_LEAST_PLANNED = 4  # a plan of fewer datagrams, or of fewer than gather at a time, saves nothing


class Incoming:
    """One direction of a `Connection`."""

    def __init__(
        self,
        peer: str,
        settings: ConnectionSettings,
        events: list[Event],
        counters: Counter[str],
        path: SendingPath | None = None,
    ) -> None:
        """The connection owns `events` and `counters`."""
        self.receivers: dict[int, Receiver] = {}
        self._peer = peer
        self._settings = settings
        self._events = events
        self._counters = counters
        self._numbers = TransferNumbers(peer, settings.transfers_in_flight)
        # Of transfers that the peer began before they were posted: data, and the latest messages.
        self._early: dict[int, Receiver] = {}
        self._early_energy: dict[int, ControlMessage] = {}
        self._early_probes: dict[int, ControlMessage] = {}
        self._unasked_s: float | None = None  # since when there are any of these; None without
        estimates = None if path is None else path.estimates
        self._times = TransferTimes(settings.slowest, estimates)
        settings.slowest.sides.add(self)
        self._spares: list[NDArray[np.uint8]] = []
        self._lent: dict[int, NDArray[np.uint8]] = {}  # the spares that hold early transfers
        self._outbox: list[ControlMessage] = []
        self._coalescer = Coalescer()
        self._planned: Receiver  # whose data the latest plan receives

    def check(self, transfer: int) -> None:
        """Raises ValueError unless a transfer of this number can be posted now."""
        self._numbers.check(transfer, len(self.receivers))

    def post(self, transfer: int, rule: StopRule, into: NDArray[np.uint8], now_s: float) -> None:
        """Begins a transfer; ProtocolError when the peer has begun one that this one skips."""
        self.check(transfer)
        self._settings.layout_of(transfer).rows(into, written=True)
        self._numbers.last = transfer
        skipped = min((*self._early_energy, *self._early_probes), default=transfer)
        if skipped < transfer:
            raise ProtocolError(self._mismatch(skipped))
        for lower in [number for number in self._early if number < transfer]:
            self._drop_early(lower)  # no PROBE has confirmed it
        receiver = self._early.pop(transfer, None)
        if receiver is None:
            receiver = self._new(transfer, rule, into, now_s)
        else:
            self._spares.append(self._lent.pop(transfer))
            receiver.adopt(into, rule, now_s)
        receiver.awaited_s = now_s
        self.receivers[transfer] = receiver
        for kept in (self._early_energy, self._early_probes):
            if (message := kept.pop(transfer, None)) is not None:
                receiver.attentive = False
                receiver.on_message(message, now_s)
        self._unasked_s = now_s if self._early_probes else None
        self._finish_if_stopped(receiver)

    def _new(
        self, transfer: int, rule: StopRule | None, into: NDArray[np.uint8], now_s: float
    ) -> Receiver:
        return Receiver(
            settings=self._settings,
            transfer=transfer,
            into=into,
            rule=rule,
            now_s=now_s,
            times=self._times,
        )

    def on_datagrams(
        self, frames: NDArray[np.uint8], now_s: float, *, waited: bool, may_be_early: bool
    ) -> bool:
        """Takes datagrams, one per row; returns whether any was the peer's."""
        self._coalescer.arrived(len(frames), now_s)
        only = self._settings.fast_path.transfer_of(frames)
        if only is not None:
            return self._data(only, frames, now_s, waited, may_be_early)
        records = fields(frames, self._settings.layout.chunk_bytes)
        transfers = records["transfer"]
        ours = np.unique(transfers[records["session"] == self._settings.session])
        # However many it names: behind so many that are lower there is no place for one.
        new = ours[ours > self._numbers.last][: self._settings.transfers_in_flight]
        possible = {*self.receivers, *self._early, *new.tolist()}
        any_valid = False
        left = np.ones(len(frames), dtype=np.bool_)
        for transfer in sorted(possible.intersection(transfers.tolist())):
            chosen = transfers == transfer
            left &= ~chosen
            rows = np.ascontiguousarray(frames[chosen])
            any_valid |= self._data(transfer, rows, now_s, waited, may_be_early)
        self._ignore(records[left])
        return any_valid

    def _data(
        self,
        transfer: int,
        frames: NDArray[np.uint8],
        now_s: float,
        waited: bool,
        may_be_early: bool,
    ) -> bool:
        receiver = self.receivers.get(transfer) or self._early.get(transfer)
        if receiver is None and may_be_early:
            receiver = self._collect_early(transfer, frames, now_s)
        if receiver is None:
            self._ignore(fields(frames, self._settings.layout.chunk_bytes))
            return False
        valid_before = receiver.valid_datagrams
        receiver.attentive = not waited
        receiver.on_datagrams(frames, now_s)
        self._finish_if_stopped(receiver)
        return receiver.valid_datagrams > valid_before

    def _ignore(self, records: NDArray[np.void]) -> None:
        """Counts datagrams that have no place here."""
        ours = records["session"] == self._settings.session
        stale = records["transfer"] <= self._numbers.last
        for reason, ignored in (
            ("wrong-session", ~ours),
            ("stale-transfer", ours & stale),
            ("early-transfer", ours & ~stale),
        ):
            if count := int(np.count_nonzero(ignored)):
                self._counters[reason] += count

    @property
    def datagrams_until_action(self) -> float:
        """So many datagrams may come before one can make a difference; 0: unknown."""
        fewest = math.inf
        for receiver in self.receivers.values():  # asked for with every wake-up
            if receiver.silence.budget < math.inf:
                return 0.0
            fewest = min(fewest, receiver.missing)
        return fewest

    def coalesce_s(self, most_s: float, *, measured: bool) -> float:
        """Returns for how long datagrams may gather in the socket; 0 while each one counts."""
        if len(self.receivers) != 1:
            return 0.0
        if any(
            number in self._early_probes or not self._coalescer.paused(receiver.still_s)
            for number, receiver in self._early.items()
        ):
            return 0.0
        (receiver,) = self.receivers.values()
        if not (most_s := min(most_s, self._longest_wait_s(receiver, measured))):
            return 0.0
        return self._coalescer.wait_s(receiver.missing, most_s)

    def _longest_wait_s(self, receiver: Receiver, measured: bool) -> float:
        """Returns 0 where the sender would take the wait for the path's."""
        repair = receiver.repair
        return 0.0 if measured and not repair.only_answers else repair.coalesce_s

    def receive_plan(self, most_s: float, *, measured: bool) -> ReceivePlan | None:
        if self._early or not self.receivers:
            return None
        # Data of another one end the plan. What comes last goes on.
        receivers = self.receivers.values()
        receiver = max(receivers, key=lambda receiver: receiver.progress_s or -math.inf)
        self._planned = receiver
        # Asked for with every wake-up, so what is seldom true comes first. Where they come faster
        # than they could gather, each wake-up has many in any case.
        coalescer = self._coalescer
        if not coalescer.wait_s(2 * coalescer.most_datagrams, math.inf):
            return None
        silence, most_s = receiver.silence, min(most_s, self._longest_wait_s(receiver, measured))
        if len(receivers) > 1:
            most_s = 0.0
        if silence.budget < _LEAST_PLANNED or not (missing := receiver.missing):
            return None
        at_a_time = coalescer.wait_s(missing, most_s) * coalescer.rate
        if silence.likely < max(_LEAST_PLANNED, at_a_time):
            return None
        return ReceivePlan(
            placement=receiver.placement,
            coalescer=coalescer,
            missing=missing,
            most_s=most_s,
            silence=silence,
        )

    def on_plan_received(self, arrivals: Arrivals, now_s: float, *, waited: bool) -> None:
        receiver = self._planned
        receiver.attentive = not waited
        receiver.on_arrivals(arrivals, now_s)
        self._finish_if_stopped(receiver)

    def _collect_early(
        self, transfer: int, frames: NDArray[np.uint8], now_s: float
    ) -> Receiver | None:
        """Returns a receiver for a transfer that was not posted yet; None if there is no room."""
        settings = self._settings
        sessions = fields(frames, settings.layout.chunk_bytes)["session"]
        if transfer <= self._numbers.last or not (sessions == settings.session).any():
            return None
        if len(self._early) >= settings.transfers_in_flight:
            last = max(self._early)  # transfers are asked for in order, so it is needed last
            if last < transfer:
                return None
            self._spares.append(self._drop_early(last))
        # Large enough for any transfer, so that spares fit whichever comes next.
        whole = self._spares.pop() if self._spares else settings.largest_layout.new_buffer()
        layout = settings.layout_of(transfer)
        into = whole[: layout.chunk_count * layout.chunk_bytes]
        receiver = self._early[transfer] = self._new(transfer, None, into, now_s)
        self._lent[transfer] = whole
        return receiver

    def _drop_early(self, transfer: int) -> NDArray[np.uint8]:
        """Returns the buffer."""
        receiver = self._early.pop(transfer)
        self._counters["early-transfer"] += receiver.valid_datagrams
        invalid = {why: n for why, n in receiver.ignored.items() if why != "duplicate"}
        self._counters.update(invalid)
        return self._lent.pop(transfer)

    def _kept_until_s(self) -> dict[int, float]:
        """Returns the early transfers that no PROBE has confirmed, and when to drop each."""
        return {
            number: receiver.still_s + self._settings.peer_timeout_s
            for number, receiver in self._early.items()
            if number not in self._early_probes
        }

    def on_message(self, message: ControlMessage, now_s: float, *, waited: bool) -> None:
        """Takes a sender's PROBE or ENERGY; ProtocolError when it makes no sense."""
        transfer = message.transfer
        receiver = self.receivers.get(transfer)
        if receiver is not None:
            receiver.attentive = not waited
            receiver.on_message(message, now_s)
            self._finish_if_stopped(receiver)
        elif self._numbers.has_finished(transfer):
            self._counters["stale-control"] += 1  # it crossed the STOP, which is its reply
        elif transfer <= self._numbers.last:
            raise ProtocolError(self._mismatch(transfer))
        elif message.type is MessageType.PROBE:
            self._keep(message, self._early_probes, REMEMBERED)
            self._unasked_s = now_s if self._unasked_s is None else self._unasked_s
            self._outbox.append(ControlMessage(MessageType.HOLD, transfer))
        else:
            count = self._settings.layout_of(transfer).chunk_count
            decode(message.body, chunk_count=count, repeated=transfer in self._early_energy)
            # A byte for each chunk is much. A sender says it once for each transfer in flight.
            self._keep(message, self._early_energy, self._settings.transfers_in_flight)

    def _keep(self, message: ControlMessage, kept: dict[int, ControlMessage], most: int) -> None:
        if message.transfer not in kept and len(kept) >= most:
            raise ProtocolError(
                f"{message.type.name}s for {most + 1} transfers that nobody asked for; "
                f"valid: at most {most}"
            )
        kept[message.transfer] = message

    def _mismatch(self, transfer: int) -> str:
        return (
            f"it sends transfer {transfer}, which this side has skipped: it is at "
            f"{self._numbers.last}"
        )

    def _finish_if_stopped(self, receiver: Receiver) -> None:
        """Reports a transfer that has ended, once its STOP is on its way."""
        if not receiver.stopped:
            return
        self._outbox += receiver.poll_messages()
        transfer = receiver.transfer
        del self.receivers[transfer]
        for behind in self.receivers.values():
            if behind.transfer > transfer and receiver.progress_s is not None:
                behind.awaited_s = max(behind.awaited_s, receiver.progress_s)
        self._numbers.finish(transfer)
        self._counters.update(receiver.ignored)
        if receiver.took is not None:
            self._times.note(transfer, receiver.took)
        self._events.append(TransferDone(transfer, False, receiver.report(self._peer)))

    def on_deadline(self, now_s: float) -> None:
        for receiver in list(self.receivers.values()):
            deadline_s = receiver.next_deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                receiver.on_deadline(now_s)
                self._finish_if_stopped(receiver)
        for transfer, until_s in self._kept_until_s().items():
            if until_s <= now_s:
                self._drop_early(transfer)

    def next_deadline_s(self) -> float:
        deadlines = [receiver.next_deadline_s() for receiver in self.receivers.values()]
        deadlines += self._kept_until_s().values()
        return min((at_s for at_s in deadlines if at_s is not None), default=math.inf)

    def begun(self, transfer: int) -> bool:
        """Returns whether the peer has begun with a transfer that was not posted here."""
        return transfer in self._early or transfer in self._early_probes

    def poll_messages(self) -> list[ControlMessage]:
        messages, self._outbox = self._outbox, []
        for receiver in self.receivers.values():
            messages += receiver.poll_messages()
        return messages

    @property
    def unasked_s(self) -> float | None:
        """Since then the peer has waited with transfers while nothing is received; or None."""
        return None if self.receivers else self._unasked_s

    def _standing(self) -> Iterator[tuple[Receiver, float]]:
        """Yields the transfers, each with since when it could have progressed."""
        progress_s = -math.inf
        for receiver in self.receivers.values():
            progress_s = max(progress_s, receiver.progress_s or -math.inf)
            yield receiver, max(receiver.awaited_s, progress_s)

    def was_away(self, away_s: float) -> None:
        """Adds the time for which this side did nothing to its timeouts."""
        for receiver, since_s in self._standing():
            receiver.awaited_s = since_s + away_s

    def _may_be_late(self, receiver: Receiver) -> bool:
        begun = receiver.asked or receiver.progress_s is not None
        return self._settings.late_s is not None and not begun

    @property
    def late(self) -> bool:
        """The peer may be late with a transfer, as long as it replies."""
        return any(map(self._may_be_late, self.receivers.values()))

    def timeout(self, heard_s: float, silent_s: float) -> Timeout:
        """Returns when to give up the peer, and why."""
        ends = NEVER
        for receiver, since_s in self._standing():
            transfer = receiver.transfer
            if self._settings.late_s is not None and self._may_be_late(receiver):
                until_s = max(since_s, silent_s) + self._settings.peer_timeout_s
                late = since_s + self._settings.late_s, LATE, transfer
                ends = min(ends, late, (until_s, SILENT, transfer))
            elif since_s + self._settings.peer_timeout_s < ends[0]:
                why = self._why_silent(receiver, heard_s > since_s)
                ends = since_s + self._settings.peer_timeout_s, why + NO_NEW_CHUNK, transfer
        return ends

    def _why_silent(self, receiver: Receiver, is_alive: bool) -> str:
        others = self._early.keys() | self._early_probes.keys()
        if not is_alive:
            return "silent"
        if receiver.asked:
            return DATA_BLOCKED
        return f"it sends transfer {min(others)} instead" if others else "it sends nothing"
