"""The transfers that one side sends to a peer."""

import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from testbed.transport.core.layout import Leg
from testbed.transport.core.messages import SENT, ControlMessage, MessageType
from testbed.transport.core.routine import Departures
from testbed.transport.core.sender import Sender
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.wire import new_frames

# So many small datagrams of each size go beside each batch of full ones. In so many rounds some of
# a size must have arrived, and so many in all, and no full one meanwhile: a path that loses nine of
# ten of every size, or all for a while, does not look like that.
_TRIALS = 8
_ROUNDS = 3
_ENOUGH = 16


class SizeSearch:
    """Looks for a size of datagrams that arrives: the MTU may have shrunk (RFC 8899)."""

    def __init__(self, rounds: int = 0) -> None:
        self.rounds = rounds  # batches of full datagrams beside which trials went
        self._tried: dict[int, tuple[int, int]] = {}
        self._came: dict[int, Counter[int]] = {}  # by size: how many of each round

    def trials(self, sizes: Iterable[int]) -> list[tuple[int, int]]:
        """What to try beside the next batch: a number that nobody can guess, and its size."""
        self.rounds += 1
        trials = [(secrets.randbits(32), size) for size in sizes for _ in range(_TRIALS)]
        self._tried |= {number: (size, self.rounds) for number, size in trials}
        return trials

    def arrived(self, number: int) -> None:
        """The peer says that it has this one; it can only know the number from there."""
        if (trial := self._tried.pop(number, None)) is not None:
            self._came.setdefault(trial[0], Counter())[trial[1]] += 1

    @property
    def proven(self) -> int | None:
        """The first of the sizes that arrive; None while that is not sure."""
        sure = [
            rounds.total()
            for rounds in self._came.values()
            if len(rounds) >= _ROUNDS and rounds.total() >= _ENOUGH
        ]
        if not sure:
            return None
        # Of one that arrives, too, chance may have lost more.
        return min(size for size, rounds in self._came.items() if rounds.total() >= max(sure) / 2)


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
        """Adds to `events` and `counters`, which belong to the connection."""
        self.senders: dict[int, Sender] = {}
        self._peer = peer
        self._settings = settings
        self._path = path
        self._events = events
        self._counters = counters
        self._numbers = Numbers(peer, settings.transfers_in_flight)
        self.nothing = new_frames(0, settings.layout.chunk_bytes)  # an offer without datagrams
        self.pieces = 1  # in how many datagrams each chunk goes
        self.sizes: Mapping[int, int] = {}
        self.likely: Sequence[int] = ()  # those that are tried where full datagrams vanish
        self._search: SizeSearch | None = None
        self._outbox: list[ControlMessage] = []
        self._held_s: float | None = None
        self._early_stops: dict[int, ControlMessage] = {}
        self._offering: Sender | None = None  # whose datagrams the last offer held
        self._overdue: dict[int, NDArray[np.bool_] | None] = {}  # by layout, see OrderContext

    def check(self, transfer: int) -> None:
        """Raises ValueError unless a transfer of this number can be posted now."""
        self._numbers.check(transfer, len(self.senders))

    def prepare(self, transfer: int, payload: NDArray[np.uint8], arrangers: dict[int, Any]) -> None:
        """Finds what is wrong with a payload for several peers, before any is sent one."""

    def post(
        self,
        transfer: int,
        payload: NDArray[np.uint8],
        now_s: float,
        arrangers: dict[int, Any] | None,
    ) -> None:
        """Begins a transfer; `arrangers` as a `Sender` takes them, or what `prepare` has made."""
        self.check(transfer)
        self.senders[transfer] = self._new(transfer, payload, now_s, arrangers)
        self._numbers.begin(transfer)
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
            overdue=self._overdue.get(self._place(transfer)) if arrangers is None else None,
        )

    def _place(self, transfer: int) -> int:
        """Of the layout: transfers with the same one have the same place."""
        return Leg.round_of(transfer) % self._settings.layout_count

    def on_message(self, message: ControlMessage, now_s: float, *, waited: bool) -> None:
        """Takes a receiver's message; ProtocolError when it makes no sense."""
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
            self._overdue[self._place(transfer)] = sender.overdue()
            self._numbers.finish(transfer)
            self._counters.update(sender.ignored)
            self._events.append(TransferDone(transfer, True, sender.report(self._peer)))
        if not self.held:
            self._held_s = None
        elif self._held_s is None:
            self._held_s = now_s

    def _is_early_stop(self, message: ControlMessage) -> bool:
        """Whether the peer has given up a transfer for which this side is late."""
        ahead = message.type is MessageType.STOP and message.transfer > self._numbers.last
        room = len(self._early_stops) < REMEMBERED
        return self._settings.late_s is not None and ahead and room

    def on_deadline(self, now_s: float) -> None:
        for sender in self.senders.values():
            sender.on_deadline(now_s)

    def next_deadline_s(self, now_s: float, *, departing: bool) -> float:
        """When `on_deadline` or `offer` is due; math.inf for never."""
        due_s = math.inf
        for sender in self.senders.values():  # asked for with every wake-up
            each = sender.next_deadline_s(now_s, departing=departing)
            if each is not None and each < due_s:
                due_s = each
        return due_s

    def offer(self, now_s: float) -> NDArray[np.uint8]:
        """The datagrams that may go now, of one transfer: shape (k, datagram bytes), k >= 0."""
        for sender in self.senders.values():
            frames = sender.offer(now_s)
            if len(frames):
                self._offering = sender
                return frames
        return self.nothing

    @property
    def protected(self) -> bool | None:
        """Whether switches are to drop what the last offer or the last `departures` hold last."""
        return None if self._offering is None else self._offering.protected

    def sent(self, count: int, now_s: float, left_out: NDArray[np.bool_] | None = None) -> None:
        """The network took the first `count` datagrams of the last offer."""
        if self._offering is not None:
            self._offering.sent(count, now_s, left_out)

    def departures(self) -> Departures | None:
        """`Connection.departures`."""
        if len(self.senders) != 1:
            return None
        (self._offering,) = self.senders.values()
        return self._offering.departures()

    def departed(self, departures: Departures, batches: Sequence[tuple[int, float]]) -> None:
        """Of the `departures` these batches were sent: how many datagrams, and when."""
        if self._offering is not None:
            self._offering.departed(departures, batches)

    def cut(self, pieces: int) -> None:
        """The path takes no full datagrams: each chunk goes in so many from now on."""
        assert self._path is not None
        self.pieces = pieces
        self._path.occupy(self.sizes[pieces])
        self._outbox.append(ControlMessage(MessageType.PIECES, body=SENT.pack(pieces)))

    def trials(self) -> list[tuple[int, int]]:
        """Datagrams to send now beside those of the last offer, because none of these arrive."""
        rounds = 0
        for sender in self.senders.values():  # asked for with every wake-up
            rounds = rounds or sender.stalled_batches
        smaller = [pieces for pieces in self.likely if pieces > self.pieces] if rounds else []
        if not smaller:
            self._search = None
            return []
        if self._search is None:
            self._search = SizeSearch(rounds - 1)
        if rounds <= self._search.rounds:
            return []
        if (proven := self._search.proven) is not None:
            self.cut(proven)
            self._search = SizeSearch(rounds)
            return []
        return self._search.trials(smaller)

    def tried(self, number: int) -> None:
        """The peer has received one of the `trials`."""
        if self._search is not None:
            self._search.arrived(number)

    def poll_messages(self) -> list[ControlMessage]:
        """The control messages to send now, in order."""
        messages, self._outbox = self._outbox, []
        for sender in self.senders.values():
            messages += sender.poll_messages()
        return messages

    def doubt(self, after_s: float) -> tuple[float, float]:
        """`Connection.doubt`, of answers."""
        due = NO_DOUBT
        for sender in self.senders.values():  # asked for with every wake-up
            asked_s = sender.asked_s
            if asked_s is not None and asked_s > after_s and not sender.held:
                due = min(due, (sender.overdue_s(asked_s), asked_s))
        return due

    @property
    def held(self) -> bool:
        """Whether a receiver has told us to wait."""
        # Asked for with every wake-up, and mostly nothing is under way.
        return bool(self.senders) and any(sender.held for sender in self.senders.values())

    @property
    def held_s(self) -> float | None:
        """Since when the peer lets this side wait; None while it does not."""
        return self._held_s

    def was_away(self, away_s: float) -> None:
        """This side has done nothing for so long, which is added to its patience."""
        for sender in self.senders.values():
            sender.was_away(away_s)

    def patience(self, heard_s: float) -> Patience:
        """When to give up the peer, which was heard at `heard_s`, and why."""
        if not self.senders:
            return NEVER
        timeout_s, late_s, held_s = (
            self._settings.peer_timeout_s,
            self._settings.late_s,
            self.held_s,
        )
        ends = NEVER
        if late_s is not None and held_s is not None:
            ends = held_s + late_s, LATE, next(iter(self.senders))
        for transfer, sender in self.senders.items():
            if sender.asked_s is not None:
                until_s = max(sender.asked_s, heard_s) + timeout_s
                ends = min(ends, (until_s, SILENT, transfer))
            if sender.stalled_s is not None:
                until_s = sender.stalled_s + timeout_s
                ends = min(ends, (until_s, DATA_BLOCKED + NO_NEW_CHUNK, transfer))
        return ends
