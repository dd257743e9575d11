"""The transfers that one side receives from a peer, those that come too early included.

Data of a transfer that nobody has posted yet go into a spare buffer, and its PROBE is answered by
HOLD. Until a PROBE confirms its number, that may be corrupt: it is dropped once nothing new comes.
"""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.connection_settings import (
    DATA_BLOCKED,
    LATE,
    NEVER,
    NO_DOUBT,
    NO_NEW_CHUNK,
    REMEMBERED,
    SILENT,
    ConnectionSettings,
    Numbers,
    Patience,
)
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.events import Event, TransferDone
from testbed.transport.core.hot_path import Arrivals
from testbed.transport.core.messages import SENT, ControlMessage, MessageType
from testbed.transport.core.receiver import Receiver
from testbed.transport.core.routine import GATHERED, Expected, Gathering
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.tolerance import Lookback, StopRule
from testbed.transport.core.wire import MOST_PIECES, fields
from testbed.transport.core.worth import decode

# Fewer datagrams that come before the receiver speaks are not worth being taken without it, nor
# fewer than gather at a time: it would be called as often, and asked before each wait in addition.
_WORTH_TAKING = 4
# WORTH that comes later than so after the first datagram is probably lost. It has a byte for each
# chunk; so it may come at 8 Mbit/s.
_WORTH_LATE_S = 2e-3
_WORTH_LATE_S_PER_CHUNK = 1e-6
# Trials of sizes that are answered within a second.
_MOST_TRIALS_PER_S = 256


class Unasked:
    """The messages of transfers that were not posted."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.probes: dict[int, ControlMessage] = {}  # the latest of each transfer
        self.since_s: float | None = None  # since when there are any; None without
        self._settings = settings
        self._worth: dict[int, ControlMessage] = {}

    def lowest(self, otherwise: int) -> int:
        """The lowest transfer of which something was said; `otherwise` for none."""
        return min((*self.probes, *self._worth), default=otherwise)

    def take(self, message: ControlMessage, now_s: float) -> None:
        """Keeps a PROBE or WORTH; ProtocolError where it makes no sense, or there are too many."""
        if message.type is MessageType.PROBE:
            self._keep(message, self.probes, REMEMBERED)
            self.since_s = now_s if self.since_s is None else self.since_s
            return
        transfer, worth = message.transfer, self._worth
        count = self._settings.layout_of(transfer).chunk_count
        decode(message.body, chunk_count=count, known=transfer in worth)
        # A byte for each chunk is much. A sender says it once for each transfer in flight.
        self._keep(message, worth, self._settings.transfers_in_flight)

    def _keep(self, message: ControlMessage, kept: dict[int, ControlMessage], most: int) -> None:
        if message.transfer not in kept and len(kept) >= most:
            raise ProtocolError(
                f"{message.type.name}s for {most + 1} transfers that nobody asked for; "
                f"valid: at most {most}"
            )
        kept[message.transfer] = message

    def pop(self, transfer: int, now_s: float) -> list[ControlMessage]:
        """What was said of a transfer that is posted now, WORTH first, as it was sent."""
        said = [self._worth.pop(transfer, None), self.probes.pop(transfer, None)]
        self.since_s = now_s if self.probes else None
        return [each for each in said if each is not None]


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
        """Adds to `events` and `counters`, which belong to the connection."""
        self.receivers: dict[int, Receiver] = {}
        self.pieces = 1  # in how many datagrams each chunk comes
        self._answered_s, self._answered = -math.inf, 0
        self._peer = peer
        self._settings = settings
        self._events = events
        self._counters = counters
        self._numbers = Numbers(peer, settings.transfers_in_flight)
        self._awaited_s: dict[int, float] = {}  # since when each was, before its latest progress
        self._early: dict[int, Receiver] = {}
        self._unasked = Unasked(settings)
        back = None if path is None else path.estimates
        self._lookback = Lookback(settings.layout_count, settings.slowest, back)
        settings.slowest.join(self)
        self._spares: list[NDArray[np.uint8]] = []
        self._lent: dict[int, NDArray[np.uint8]] = {}  # the spares that hold early transfers
        self._outbox: list[ControlMessage] = []
        self._gathering = Gathering()

    def check(self, transfer: int) -> None:
        """Raises ValueError unless a transfer of this number can be posted now."""
        self._numbers.check(transfer, len(self.receivers))

    def post(self, transfer: int, rule: StopRule, into: NDArray[np.uint8], now_s: float) -> None:
        """Begins a transfer; ProtocolError when the peer has begun one that this one skips."""
        self.check(transfer)
        self._settings.layout_of(transfer).rows(into, written=True)
        self._numbers.begin(transfer)
        if (skipped := self._unasked.lowest(otherwise=transfer)) < transfer:
            raise ProtocolError(self._mismatch(skipped))
        for number in [each for each in self._early if each < transfer]:
            self._drop_early(number)  # no PROBE has confirmed it
        self._awaited_s[transfer] = now_s
        receiver = self._early.pop(transfer, None)
        if receiver is None:
            receiver = self._new(transfer, rule, into, now_s)
        else:
            self._spares.append(self._lent.pop(transfer))
            receiver.adopt(into, rule, now_s)
        self.receivers[transfer] = receiver
        for message in self._unasked.pop(transfer, now_s):
            receiver.attentive = False
            receiver.on_message(message, now_s)
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
            lookback=self._lookback,
        )

    def on_datagrams(
        self, frames: NDArray[np.uint8], now_s: float, *, waited: bool, may_be_early: bool
    ) -> bool:
        """Takes datagrams, one per row; returns whether any was the peer's."""
        self._gathering.arrived(len(frames), now_s)
        only = self._settings.hot_path.transfer_of(frames)
        if only is not None:
            return self._data(only, frames, now_s, waited, may_be_early)
        records = fields(frames, self._settings.layout.chunk_bytes)
        transfers = records["transfer"]
        ours = np.unique(transfers[records["session"] == self._settings.session])
        # However many it names: behind so many that are lower there is no place for one.
        new = ours[ours > self._numbers.last][: self._settings.transfers_in_flight]
        known = {*self.receivers, *self._early, *new.tolist()}
        heard = False
        left = np.ones(len(frames), dtype=np.bool_)
        for transfer in sorted(known.intersection(transfers.tolist())):
            chosen = transfers == transfer
            left &= ~chosen
            rows = np.ascontiguousarray(frames[chosen])
            heard |= self._data(transfer, rows, now_s, waited, may_be_early)
        self._ignore(records[left])
        return heard

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

    def on_trial(self, number: int, now_s: float) -> None:
        """A datagram that tries a size has come: says so, so often that a flood costs little."""
        if now_s >= self._answered_s + 1:
            self._answered_s, self._answered = now_s, 0
        self._answered += 1
        if self._answered <= _MOST_TRIALS_PER_S:
            self._outbox.append(ControlMessage(MessageType.TRIED, body=SENT.pack(number)))

    def cut(self, pieces: int) -> None:
        """The peer cuts each chunk; ProtocolError where that cannot be."""
        if not 1 <= pieces <= min(MOST_PIECES, self._settings.layout.chunk_bytes):
            raise ProtocolError(f"chunks in {pieces} pieces")
        self.pieces = pieces

    def _ignore(self, records: NDArray[np.void]) -> None:
        """Counts datagrams that have no place here."""
        ours = records["session"] == self._settings.session
        stale = records["transfer"] <= self._numbers.last
        for reason, guilty in (
            ("wrong-session", ~ours),
            ("stale-transfer", ours & stale),
            ("early-transfer", ours & ~stale),
        ):
            if count := int(np.count_nonzero(guilty)):
                self._counters[reason] += count

    @property
    def indifferent(self) -> float:
        """How many datagrams may come before one can make a difference; 0 where that is unknown."""
        fewest = math.inf
        for receiver in self.receivers.values():  # asked for with every wake-up
            if receiver.quiet.budget < math.inf:
                return 0.0
            fewest = min(fewest, receiver.missing)
        return fewest

    def gather_s(self, most_s: float, *, measured: bool) -> float:
        """For how long the next datagrams may gather in the socket; 0 while each counts."""
        if len(self.receivers) != 1:
            return 0.0
        if any(
            number in self._unasked.probes or not self._gathering.ceased(receiver.still_s)
            for number, receiver in self._early.items()
        ):
            return 0.0
        (receiver,) = self.receivers.values()
        if not (most_s := min(most_s, self._rest_s(receiver, measured))):
            return 0.0
        return self._gathering.wait_s(receiver.missing, most_s)

    def _rest_s(self, receiver: Receiver, measured: bool) -> float:
        """For how long datagrams may gather; 0 where the sender would take that for the path's."""
        repair = receiver.repair
        return 0.0 if measured and not repair.only_answers else repair.gather_s

    def expected(self, most_s: float, *, measured: bool) -> Expected | None:
        """`Connection.expected`."""
        if self._early or len(self.receivers) != 1:
            return None
        (receiver,) = self.receivers.values()
        # Asked for with every wake-up, so what is seldom true comes first. Where they come faster
        # than they could gather, each wake-up has many in any case.
        gathering = self._gathering
        if not gathering.wait_s(2 * GATHERED, math.inf):
            return None
        quiet, most_s = receiver.quiet, min(most_s, self._rest_s(receiver, measured))
        if quiet.budget < _WORTH_TAKING or not (missing := receiver.missing):
            return None
        at_a_time = gathering.wait_s(missing, most_s) * gathering.rate
        if quiet.likely < max(_WORTH_TAKING, at_a_time):
            return None
        return Expected(
            placement=receiver.placement,
            gathering=gathering,
            missing=missing,
            most_s=most_s,
            quiet=quiet,
        )

    def arrived(self, arrivals: Arrivals, now_s: float, *, waited: bool) -> None:
        """`Connection.arrived`."""
        (receiver,) = self.receivers.values()
        receiver.attentive = not waited
        receiver.arrived(arrivals, now_s)
        self._finish_if_stopped(receiver)

    def _collect_early(
        self, transfer: int, frames: NDArray[np.uint8], now_s: float
    ) -> Receiver | None:
        """A place for a transfer that nobody has posted yet; None if there is no room for it."""
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

    def _unconfirmed(self) -> dict[int, float]:
        """Those that came early without a PROBE, and since when each stands still."""
        return {
            number: receiver.still_s
            for number, receiver in self._early.items()
            if number not in self._unasked.probes
        }

    def on_message(self, message: ControlMessage, now_s: float, *, waited: bool) -> None:
        """Takes a sender's PROBE or WORTH; ProtocolError when it makes no sense."""
        transfer = message.transfer
        receiver = self.receivers.get(transfer)
        if receiver is not None:
            receiver.attentive = not waited
            receiver.on_message(message, now_s)
            self._finish_if_stopped(receiver)
        elif self._numbers.has_finished(transfer):
            self._counters["stale-control"] += 1  # it crossed the STOP, which answers it
        elif transfer <= self._numbers.last:
            raise ProtocolError(self._mismatch(transfer))
        else:
            self._unasked.take(message, now_s)
            if message.type is MessageType.PROBE:
                self._outbox.append(ControlMessage(MessageType.HOLD, transfer))

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
        del self.receivers[transfer], self._awaited_s[transfer]
        for behind, since_s in self._awaited_s.items():
            if behind > transfer:
                self._awaited_s[behind] = max(since_s, receiver.progress_s or since_s)
        self._numbers.finish(transfer)
        self._counters.update(receiver.ignored)
        if receiver.took is not None:
            self._lookback.note(transfer, receiver.took)
        self._events.append(TransferDone(transfer, False, receiver.report(self._peer)))

    def on_deadline(self, now_s: float) -> None:
        for receiver in list(self.receivers.values()):
            deadline_s = receiver.next_deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                receiver.on_deadline(now_s)
                self._finish_if_stopped(receiver)
        for transfer, still_s in self._unconfirmed().items():
            if still_s + self._settings.peer_timeout_s <= now_s:
                self._drop_early(transfer)

    def next_deadline_s(self) -> float:
        """When `on_deadline` is due; math.inf for never."""
        due_s = math.inf
        for receiver in self.receivers.values():  # asked for with every wake-up
            each = receiver.next_deadline_s()
            if each is not None and each < due_s:
                due_s = each
        if self._early:
            for still_s in self._unconfirmed().values():
                due_s = min(due_s, still_s + self._settings.peer_timeout_s)
        return due_s

    def doubt(self, after_s: float) -> tuple[float, float]:
        """`Connection.doubt`, of WORTH, which goes with the first datagrams."""
        due = NO_DOUBT
        if self._settings.order.tells_worth:
            for receiver in self.receivers.values():  # asked for with every wake-up
                since_s = receiver.worth_lacks_s
                if since_s is not None and since_s > after_s:
                    chunk_count = self._settings.layout_of(receiver.transfer).chunk_count
                    late_s = _WORTH_LATE_S + _WORTH_LATE_S_PER_CHUNK * chunk_count
                    due = min(due, (since_s + late_s, since_s))
        return due

    def begun(self, transfer: int) -> bool:
        """Whether the peer has begun with a transfer that was not posted here."""
        return transfer in self._early or transfer in self._unasked.probes

    def poll_messages(self) -> list[ControlMessage]:
        """The control messages to send now, in order."""
        messages, self._outbox = self._outbox, []
        for receiver in self.receivers.values():
            messages += receiver.poll_messages()
        return messages

    @property
    def unasked_s(self) -> float | None:
        """Since when the peer has waited with transfers while nothing is received; or None."""
        return None if self.receivers else self._unasked.since_s

    def _standing(self) -> Iterator[tuple[Receiver, float]]:
        """The transfers, each with since when the peer could have brought something new of it."""
        progress_s = -math.inf
        for transfer, receiver in self.receivers.items():
            progress_s = max(progress_s, receiver.progress_s or -math.inf)
            yield receiver, max(self._awaited_s[transfer], progress_s)

    def was_away(self, away_s: float) -> None:
        """This side has done nothing for so long, which is added to its patience."""
        for receiver, since_s in self._standing():
            self._awaited_s[receiver.transfer] = since_s + away_s

    def _may_be_late(self, receiver: Receiver) -> bool:
        begun = receiver.asked or receiver.progress_s is not None
        return self._settings.late_s is not None and not begun

    @property
    def late(self) -> bool:
        """Whether the peer may be late with a transfer, as long as it answers."""
        late_s = self._settings.late_s
        return late_s is not None and any(map(self._may_be_late, self.receivers.values()))

    def patience(self, heard_s: float, silent_s: float) -> Patience:
        """When to give up the peer, and why."""
        ends = NEVER
        if not self.receivers:
            return ends
        for receiver, since_s in self._standing():
            transfer = receiver.transfer
            if self._settings.late_s is not None and self._may_be_late(receiver):
                until_s = max(since_s, silent_s) + self._settings.peer_timeout_s
                late = since_s + self._settings.late_s, LATE, transfer
                ends = min(ends, late, (until_s, SILENT, transfer))
            elif since_s + self._settings.peer_timeout_s < ends[0]:
                why = self._why_nothing_comes(receiver, heard_s > since_s)
                ends = since_s + self._settings.peer_timeout_s, why + NO_NEW_CHUNK, transfer
        return ends

    def _why_nothing_comes(self, receiver: Receiver, heard: bool) -> str:
        others = self._early.keys() | self._unasked.probes.keys()
        if not heard:
            return "silent"
        if receiver.asked:
            return DATA_BLOCKED
        return f"it sends transfer {min(others)} instead" if others else "it sends nothing"
