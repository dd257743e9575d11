"""The owner's end of an exchange: whom it waits for, for how long, and without whom it goes on.

Lateness follows from recent rounds: a gradient that comes much later after the first one of its
part than most recent ones did is left out of the mean, in a bounded share of a rank's parts.
"""

import math
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.endpoint_thread import (
    POLL_S,
    Contribution,
    EndpointThread,
    Part,
    name_of,
    write_chunks,
)
from testbed.ddp.settings import WINDOW, Settings
from testbed.training.filling import all_finite, chunk_elements, estimate_mean
from testbed.transport import EndpointConfig, Leg, PeerLost
from testbed.transport.chunk_energy import Selection
from testbed.transport.tolerance import Fixed, Progress, StopRule, StopRuleFactory

_FEWEST = 10  # parts to judge by
# Late is what takes so many times as long as nine of ten did, and so long at least: a scheduler's
# moment is no lateness.
_FACTOR = 2.0
_SHORTEST_S = 0.05


class Lateness:
    """One owner remembers how long gradients took, and whose were left out."""

    def __init__(self, share: float) -> None:
        """`share`: in how many of its parts a rank may be left out; 0 for never."""
        self._most = round(share * WINDOW)
        self._recent: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._left_out: dict[int, deque[bool]] = defaultdict(lambda: deque(maxlen=WINDOW))
        # Parts under way that may yet be left out.
        self._at_risk: dict[int, set[int]] = defaultdict(set)

    def timeout_s(self, rank: int, index: int) -> float:
        """Returns how long to wait for the rank's gradient of the part `index`, which begins."""
        recent, at_risk = self._recent[index], self._at_risk[rank]
        if len(recent) < _FEWEST or sum(self._left_out[rank]) + len(at_risk) >= self._most:
            return math.inf
        at_risk.add(index)
        return max(_SHORTEST_S, _FACTOR * statistics.quantiles(recent, n=10)[-1])

    def note(self, rank: int, index: int, took_s: float, *, late: bool) -> None:
        """A rank's gradient has come within this time, or was left out after it."""
        if took_s > 0:  # the first one took no time
            self._recent[index].append(took_s)
        self._left_out[rank].append(late)
        self._at_risk[rank].discard(index)


class UntilLate(StopRule):
    """Another rule, until the sender is late."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self.until_s = math.inf  # on the monotonic clock
        self.late = False

    def satisfied(self, progress: Progress) -> bool:
        satisfied = self._rule.satisfied(progress)
        self.late = not satisfied and progress.now_s >= self.until_s
        return satisfied or self.late

    def deadline_s(self, progress: Progress) -> float | None:
        deadline_s = self._rule.deadline_s(progress)
        if math.isinf(self.until_s):
            return deadline_s
        return self.until_s if deadline_s is None else min(deadline_s, self.until_s)

    def missing(self, progress: Progress) -> int | None:
        return self._rule.missing(progress)


def _always(rule: StopRule) -> StopRuleFactory:
    return lambda layout: rule


class OwnerThread(EndpointThread):
    def __init__(self, config: EndpointConfig, settings: Settings, **more: Any) -> None:
        super().__init__(config, settings, **more)
        self._filling = settings.filling_in_use
        self._world = len(config.peers) + 1
        self._min_ranks = settings.min_ranks or self._world
        self._lateness = Lateness(settings.late_share)
        self._rules: dict[tuple[int, int], UntilLate] = {}  # by part and rank, of gathers
        self.credentials = config.credentials
        self._lost: dict[str, str] = {}
        self.away: frozenset[int] = frozenset()  # lost, and not joined again
        self.returning: frozenset[int] = frozenset()  # joined again, and not taking part yet
        self._readmitted: deque[tuple[int, int]] = deque()  # from which part on, and which rank
        self._begun = 0  # the number of parts
        self._tolerance: float | StopRuleFactory = 0.0  # of the latest part that was posted
        self._values: dict[str, NDArray[np.uint8]] = {}  # of each peer's gradient, with a codec
        # Where gradients arrive, for as many parts as may be gathered at once.
        sizes = [layout.chunk_count * layout.chunk_bytes for layout in self.layouts]
        if self._at_once * max(sizes) < sum(sizes):
            sizes = self._at_once * [max(sizes)]
        self._gathered = [
            {peer: np.zeros(size, dtype=np.uint8) for peer in config.peers} for size in sizes
        ]

    # Ranks that are lost, and come back.

    def _lose(self, peer: str, reason: str) -> None:
        self._lost[peer] = reason
        if self._world - len(self._lost) < self._min_ranks:
            raise PeerLost(peer, reason)

    def _present(self) -> list[tuple[int, str]]:
        """Returns the other ranks that are not lost, with their names."""
        others = ((rank, name_of(rank)) for rank in range(self._world) if rank != self.owner)
        return [(rank, peer) for rank, peer in others if peer not in self._lost]

    def readmit(self, ranks: Iterable[int]) -> int:
        """These take part from the next part that is posted on; returns its number."""
        self._readmitted += [(self.next_number, rank) for rank in ranks]
        self.returning = frozenset()
        return self.next_number

    def _check_for_returning(self) -> None:
        """Ranks that have joined again may return when no part has begun without them."""
        joined = self._lost.keys() & self._endpoint.here
        self.away = self._ranks_of(self._lost.keys() - joined)
        ahead = any(part.own is None for part in self._under_way)
        if not ahead and not any(transfers.failed for transfers in self._broadcasts):
            self.returning = self._ranks_of(joined)

    def _ranks_of(self, peers: Set[str]) -> frozenset[int]:
        return frozenset(rank for rank in range(self._world) if name_of(rank) in peers)

    # The thread's loop, and this rank's own gradient, without which parts may begin and end.

    def _wait(self) -> None:
        now_s = time.monotonic()
        own_s = (part.own_until_s for part in self._under_way if part.own is None)
        left_s = min((until_s - now_s for until_s in own_s if until_s > now_s), default=math.inf)
        ahead = Leg.GATHER.transfer(self._begun) if self._may_run_ahead else None
        self._endpoint.poll(min(POLL_S, left_s), unless_begun=ahead)

    def _advance(self) -> None:
        while self._new and self._new[0].number < self._begun:
            self._take_late(self._new.popleft())
        if self._lost or self.returning:
            self._check_for_returning()
        self._start_clocks()
        super()._advance()
        self._start_clocks()

    @property
    def _may_run_ahead(self) -> bool:
        """The next part may begin before this rank has come to it."""
        ahead = sum(part.own is None for part in self._under_way)
        return (
            self._settings.late_share > 0
            and not self.returning
            and self._begun > 0
            and not self._new
            and self._gathering < min(self._at_once, len(self.layouts))
            and ahead < self._most_broadcasts
        )

    def _next(self) -> Part | None:
        if self._new and self._new[0].number < self._begun:
            return None  # it has come just now, and its wake ends the next wait
        part = super()._next()
        if part is None:
            if not (self._may_run_ahead and self._endpoint.begun(Leg.GATHER.transfer(self._begun))):
                return None
            part = self._part(self._begun, self._tolerance, own=None)
        while self._readmitted and self._readmitted[0][0] <= part.number:
            self._lost.pop(name_of(self._readmitted.popleft()[1]), None)
        self._begun = part.number + 1
        self._tolerance = part.tolerance
        return part

    def _take_late(self, own: Contribution) -> None:
        """This rank has come to a part that has begun without it."""
        part = next(part for part in self._under_way if part.number == own.number)
        part.own, self._tolerance = own, own.tolerance
        if part.mean is not None:
            self._keep_lost(part, np.zeros(part.layout.chunk_count, dtype=np.bool_))
            own.padded[:] = part.mean
            self._on_gathered()

    def _start_clocks(self) -> None:
        """Begins to count how late ranks are, once a part's first gradient is there."""
        for part in self._under_way:
            if part.began_s is not None or not (part.own or part.gather.reports):
                continue
            part.began_s = time.monotonic()
            for rank in range(self._world):
                if rule := self._rules.get((part.number, rank)):
                    rule.until_s = part.began_s + self._lateness.timeout_s(rank, part.index)
            if part.own is None:
                own_s = self._lateness.timeout_s(self.owner, part.index)
                part.own_until_s = part.began_s + own_s

    # The two legs.

    def _gather(self, part: Part) -> None:
        tolerance = part.tolerance
        make = tolerance if callable(tolerance) else Fixed(tolerance).stop_rule(critical=False)
        transfer = Leg.GATHER.transfer(part.number)
        for rank, peer in self._present():
            rule = self._rules[part.number, rank] = UntilLate(make(part.layout))
            into = {peer: self._arriving(part, peer)}
            handle = self._endpoint.post_receive(transfer, _always(rule), into)
            part.gather.awaited.append(handle)

    def _arriving(self, part: Part, peer: str) -> NDArray[np.uint8]:
        """A peer's gradient arrives here. A later part that uses it waits for this one's mean."""
        buffer = self._gathered[part.number % len(self._gathered)][peer]
        return buffer[: part.layout.chunk_count * part.layout.chunk_bytes]

    def _decoded(self, part: Part, peer: str) -> NDArray[np.uint8]:
        """Returns a peer's gradient as values, in memory that serves until the next mean."""
        layout, plain, arrived = part.layout, part.layout.plain, self._arriving(part, peer)
        if layout is plain:
            return arrived
        size = plain.chunk_count * plain.chunk_bytes
        if len(self._values.get(peer, b"")) < size:
            self._values[peer] = np.zeros(size, dtype=np.uint8)
        into = self._values[peer][:size]
        layout.read(arrived, plain.floats(into), received=part.gather.reports[peer].received)
        return into

    def _is_gathered(self, part: Part) -> bool:
        if part.own is not None:
            return part.gather.done
        late = time.monotonic() >= part.own_until_s
        return late and part.gather.done and not part.gather.failed

    def _broadcast(self, part: Part) -> None:
        buffers, masks = [], []
        for rank in range(self._world):  # sums of floats must not depend on who came first
            gradient = self._gradient(part, rank)
            if gradient is None:
                part.lost.add(rank)  # the mean is of those that are there
            else:
                buffers.append(gradient[0])
                masks.append(gradient[1])
        plain = part.layout.plain
        if part.own is not None:
            mean = part.own.padded
        else:
            mean = part.mean = plain.new_buffer()
        estimate_mean(self._filling, plain, buffers, masks, out=mean)
        if self._settings.broadcast_tolerance and not all_finite(elements := plain.floats(mean)):
            elements[:] = np.nan  # all ranks are to see it, whichever chunks are lost
        transfer = Leg.BROADCAST.transfer(part.number)
        payload = self._compress(part, mean, len(buffers), transfer)
        in_time = [peer for rank, peer in self._present() if rank not in part.late]
        late = [peer for rank, peer in self._present() if rank in part.late]
        if in_time:
            handle = self._endpoint.post_send(transfer, dict.fromkeys(in_time, payload))
            part.broadcast.awaited.append(handle)
        if late:
            # A late rank may take it when the training uses that memory already.
            kept = payload if part.own is None else payload.copy()
            handle = self._endpoint.post_send(transfer, dict.fromkeys(late, kept))
            part.broadcast.behind.append(handle)

    def _compress(
        self, part: Part, mean: NDArray[np.uint8], ranks: int, transfer: int
    ) -> NDArray[np.uint8]:
        """Returns the mean as it travels, and leaves of it what all ranks get then."""
        layout, plain, keep = part.layout, part.layout.plain, self._settings.protocol_config.keep
        if layout is plain and keep == 1:
            return mean
        elements, payload = plain.floats(mean), mean
        if part.own is not None:
            lost = part.own.lost
        else:
            lost = part.mean_lost = np.zeros(plain.element_count, dtype=np.float32)
        if layout is not plain:
            payload = layout.new_buffer() if part.own is None else part.own.payload
            self._encode(part, elements, payload, lost, transfer)
        # Of equal bytes the sender chooses the same. Those that are not sent may be zero before.
        chosen = Selection(keep).chosen(layout, layout.rows(payload))
        by_chunk = chunk_elements(plain, mean)
        write_chunks(plain, ~chosen, by_chunk[~chosen], lost)
        by_chunk[~chosen] = 0
        layout.read(payload, elements, received=chosen)
        lost *= ranks
        part.lossy = True
        return payload

    def _gradient(
        self, part: Part, rank: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]] | None:
        """Returns a rank's gradient, and which chunks have arrived; None where it is lost."""
        assert part.began_s is not None
        if rank == self.owner:
            late = part.own is None
            received = np.full(part.layout.chunk_count, not late)
            buffer = part.layout.plain.new_buffer() if part.own is None else part.own.padded
            came_s = time.monotonic() if part.own is None else part.own.posted_s
        else:
            report = part.gather.reports.get(name_of(rank))
            rule = self._rules.pop((part.number, rank), None)
            if report is None or rule is None:
                return None
            assert report.received is not None  # a receiver's report always has it
            buffer, received = self._decoded(part, name_of(rank)), report.received
            came_s, late = report.ended_s, rule.late
        took_s = max(0.0, came_s - part.began_s)
        part.waited_s[rank] = took_s
        self._lateness.note(rank, part.index, took_s, late=late)
        if late:
            part.late.add(rank)
        return buffer, received
