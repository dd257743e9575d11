"""Repair in passes: send all, ask, send what is missing (DBLP, arXiv 2605.01989; MLT, NSDI 2024).

The receiver only answers PROBEs: with a BITMAP of what arrived since, LATE_BITMAP where the PROBE
had to wait, or STOP. A sender whose window is full asks within a pass, as the PROBE says.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion.base import Feedback
from testbed.transport.errors import ProtocolError, check_number
from testbed.transport.fast_path import SilenceBudget
from testbed.transport.messages import (
    PASS,
    ControlMessage,
    MessageType,
    pack_arrivals,
    unpack_arrivals,
)
from testbed.transport.order import Arranger
from testbed.transport.path_estimates import PathEstimates
from testbed.transport.repair.base import ReceiverRepair, Repair, SenderRepair
from testbed.transport.tolerance import Progress

# Who walks looks up so often: at this share of the walk, within these bounds.
_STEP_SHARE = 0.01
_SHORTEST_STEP_S, _LONGEST_STEP_S = 1e-4, 1e-3
_ROUNDING_S = 1e-9
_ALWAYS_SILENT = SilenceBudget(math.inf)


class PassesSender(SenderRepair):
    """Sends one pass after another, and waits for the receiver's answer in between."""

    passes: int = 1
    _walking = False

    def __init__(
        self,
        *,
        transfer: int,
        chunk_count: int,
        arrange: Arranger,
        walk_s: NDArray[np.float64] | None = None,
        overlaps: bool = True,
    ) -> None:
        super().__init__()
        self._transfer = transfer
        self._known = np.zeros(chunk_count, dtype=np.bool_)  # to have arrived
        self._left = arrange.count  # not known to have arrived
        self._arrange = arrange
        self._walk_s = walk_s
        self._overlaps = overlaps
        if walk_s is not None:
            step_s = float(walk_s[-1]) * _STEP_SHARE
            self._step_s = min(max(step_s, _SHORTEST_STEP_S), _LONGEST_STEP_S)
        self._walk_began_s: float | None = None
        self._begin_pass(None)
        self._probed = 0  # datagrams in flight when the outstanding PROBE was sent
        self._probed_all = False  # whether that was after the last datagram of its pass
        self._newest_s = self._newest_probed_s = 0.0  # when the newest was sent, and that of those

    def _begin_pass(self, now_s: float | None) -> None:
        """Queues what is missing; a walk begins now, or when the time is first known."""
        self._cursor = 0
        if self._walk_s is None:
            self._queue = self._arrange((~self._known).nonzero()[0])
            self._reached = len(self._queue)
            return
        order = self._arrange(np.arange(len(self._known), dtype=np.int64))
        missing = ~self._known[order]
        self._queue, self._reached = order[missing], 0
        # When each is reached, and when the walk is over.
        self._due_s = self._walk_s[np.append(missing, True)]
        self._walking, self._walk_began_s, self._looked_s = True, now_s, now_s

    @property
    def remaining(self) -> int:
        return self._reached - self._cursor

    def deadline_s(self) -> float | None:
        if not self._walking:
            return None
        if self._walk_began_s is None or self._looked_s is None:
            return -math.inf
        next_s = self._walk_began_s + float(self._due_s[self._reached])
        return max(next_s, self._looked_s + self._step_s)

    def on_deadline(self, now_s: float) -> None:
        if self._walk_began_s is None:
            self._walk_began_s = now_s
        self._looked_s = now_s
        walked_s = now_s - self._walk_began_s + _ROUNDING_S
        reached = int(np.searchsorted(self._due_s, walked_s, side="right"))
        if reached <= len(self._queue):
            self._reached = max(self._reached, reached)  # the walk may have been put off since
        else:
            self._reached, self._walking = len(self._queue), False
        self._end_pass(now_s)

    def upcoming(self, limit: int) -> NDArray[np.int64]:
        return self._queue[self._cursor : min(self._cursor + limit, self._reached)]

    def on_sent(self, count: int, now_s: float) -> None:
        self._cursor += count
        self.in_flight += count
        self._newest_s = now_s
        self._end_pass(now_s)

    @property
    def plannable(self) -> int:
        return 0 if self._walking else self.remaining

    def on_link_time(self, link_s: float) -> None:
        if not self._overlaps and self._walking and self._walk_began_s is not None:
            self._walk_began_s += link_s

    def _end_pass(self, now_s: float) -> None:
        if not (self.remaining or self._walking):
            self.asking = True
            self._ask(now_s)

    @property
    def asks_by_message(self) -> bool:
        return self.asked_s is None

    def on_window_closed(self, now_s: float) -> None:
        if self.in_flight:  # else the window is full of another transfer
            self._ask(now_s)

    def _ask(self, now_s: float) -> None:
        if self.asked_s is None:
            self.asked_s = now_s
            self._probed, self._newest_probed_s = self.in_flight, self._newest_s
            self._probed_all = self.asking
            body = PASS.pack(self.passes, self._probed_all)
            self.outbox.append(ControlMessage(MessageType.PROBE, self._transfer, body))

    def on_message(self, message: ControlMessage, now_s: float) -> Feedback | None:
        if message.type not in (MessageType.BITMAP, MessageType.LATE_BITMAP):
            raise ProtocolError(f"{message.type.name} is not allowed at a sender")
        if self.asked_s is None:
            raise ProtocolError(f"{message.type.name} without a PROBE")
        delivered = self._learn(message)
        timely = message.type is MessageType.BITMAP and self.attentive
        rtt_s = now_s - self.asked_s if timely else None
        probed_s = self.asked_s
        self.asked_s = None
        swept, self.asking = self.asking, False
        # An answer names what arrived before the PROBE, though it was sent after this was composed.
        settled = self._probed if self._probed_all else max(self._probed, delivered)
        self.in_flight = max(0, self.in_flight - settled)
        feedback = Feedback(
            now_s=now_s,
            delivered_bytes=delivered,
            lost_bytes=max(0, self._probed - delivered),
            in_flight_bytes=self.in_flight,
            rtt_s=rtt_s,
            app_limited=swept,
            newest_sent_s=probed_s,
            newest_lost_sent_s=self._newest_probed_s,
            waited=message.type is MessageType.LATE_BITMAP,
        )
        if swept:
            if not self._probed_all:
                # The PROBE was sent before the pass ended, so the answer does not cover all.
                self.asking = True
                self._ask(now_s)
            else:
                self._begin_pass(now_s)
                self.passes += 1
        return feedback

    def _learn(self, message: ControlMessage) -> int:
        chunks = unpack_arrivals(message.body, len(self._known))
        if self._known[chunks].any():
            raise ProtocolError(f"{message.type.name} with a chunk that an earlier one named")
        if self._left <= len(chunks):
            raise ProtocolError(f"{message.type.name} without a gap; STOP was due")
        self._known[chunks] = True
        self._left -= len(chunks)
        return len(chunks)


class PassesReceiver(ReceiverRepair):
    """Answers each PROBE with the chunks that arrived since the last answer."""

    has_passes = True
    coalesce_s = 8e-3  # nothing is said before the next PROBE, which calls for all that has arrived
    only_answers = True

    def __init__(self, *, transfer: int) -> None:
        self._transfer = transfer
        self._pass = 1  # of which the sender says that it is in
        self._unsaid = bytearray()  # chunks that no answer has named yet, 4 bytes each

    @property
    def silence(self) -> SilenceBudget:
        return _ALWAYS_SILENT

    def on_new_chunks(self, chunks: NDArray[np.int64]) -> None:
        self._unsaid += chunks.astype(np.uint32).tobytes()

    def counts_as_probe(self, message: ControlMessage) -> bool:
        if len(message.body) != PASS.size:
            raise ProtocolError(f"PROBE with a body of {len(message.body)} bytes, not {PASS.size}")
        number, ends = PASS.unpack(message.body)
        if number != self._pass or ends > 1:
            raise ProtocolError(f"PROBE of pass {number}, end {ends}, during pass {self._pass}")
        self._pass += ends
        return bool(ends)

    def on_probe(
        self, message: ControlMessage, progress: Progress, attentive: bool
    ) -> list[ControlMessage]:
        answer = MessageType.BITMAP if attentive else MessageType.LATE_BITMAP
        chunks = np.sort(np.frombuffer(self._unsaid, dtype=np.uint32)).astype(np.int64)
        self._unsaid = bytearray()
        return [ControlMessage(answer, self._transfer, pack_arrivals(chunks))]


@dataclass(frozen=True, kw_only=True)
class Passes(Repair):
    """Repair in passes: send all, ask, send what is missing (DBLP; MLT, NSDI 2024).

    By default a pass costs nothing beside its datagrams. DBLP's published code (August 2025) walks
    all chunk indices in every pass, and waits: 12 microseconds a chunk, as we measured it.

    Attributes:
        walk_s_per_chunk: seconds that each index of a pass costs, whether its chunk is sent or not.
        poll_every: after so many indices the sender waits; 0 for never.
        poll_s: for so many seconds.
        overlaps: whether the sender walks on while the link carries what it has sent. The published
            code at 1 Gbit/s did not.
    """

    walk_s_per_chunk: float = 0.0
    poll_every: int = 0
    poll_s: float = 0.0
    overlaps: bool = True

    def __post_init__(self) -> None:
        check_number("walk_s_per_chunk", self.walk_s_per_chunk, least=0, most=1)
        check_number("poll_s", self.poll_s, least=0, most=1)
        check_number("poll_every", self.poll_every, least=0, whole=True)
        if bool(self.poll_every) != bool(self.poll_s):
            raise ValueError(
                f"poll_every is {self.poll_every} and poll_s is {self.poll_s}; "
                "valid: both above 0, or none"
            )

    def walk_s(self, chunk_count: int) -> NDArray[np.float64] | None:
        """It times a walk to each index, and its end, shape (chunk_count + 1,); None: no price."""
        if not (self.walk_s_per_chunk or self.poll_every):
            return None
        walked = np.arange(1, chunk_count + 1)
        polls = np.arange(chunk_count + 1) // self.poll_every if self.poll_every else 0
        return np.append(walked, chunk_count) * self.walk_s_per_chunk + polls * self.poll_s

    def sender(self, *, arrange: Arranger, estimates: PathEstimates, **common: Any) -> PassesSender:
        walk_s, overlaps = self.walk_s(arrange.count), self.overlaps
        return PassesSender(arrange=arrange, walk_s=walk_s, overlaps=overlaps, **common)

    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> PassesReceiver:
        return PassesReceiver(transfer=transfer)


class OnceReceiver(PassesReceiver):
    """Answers the PROBE at the end of a pass only once the stop rule has no time to look again."""

    def __init__(self, *, transfer: int) -> None:
        super().__init__(transfer=transfer)
        self._waiting: tuple[ControlMessage, float] | None = None  # until when

    @property
    def silence(self) -> SilenceBudget:  # not inherited: see `defines`
        return super().silence

    def on_probe(
        self, message: ControlMessage, progress: Progress, attentive: bool
    ) -> list[ControlMessage]:
        _, ends = PASS.unpack(message.body)
        if not ends or progress.ends_s is None:
            return super().on_probe(message, progress, attentive)
        self._waiting = message, progress.ends_s
        return []

    def deadline_s(self, progress: Progress) -> float | None:
        return None if self._waiting is None else self._waiting[1]

    def on_deadline(self, progress: Progress) -> list[ControlMessage]:
        if self._waiting is None or progress.now_s < self._waiting[1]:
            return []
        (message, _), self._waiting = self._waiting, None
        return super().on_probe(message, progress, attentive=False)


@dataclass(frozen=True, kw_only=True)
class Once(Repair):
    """No repair while a stop rule will end the transfer by itself (OptiReduce, NSDI 2025)."""

    def sender(self, *, estimates: PathEstimates, **common: Any) -> PassesSender:
        return PassesSender(**common)

    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> OnceReceiver:
        return OnceReceiver(transfer=transfer)
