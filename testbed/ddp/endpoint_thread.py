"""One end of an exchange: an owner averages what all have sent it, and sends all of them the mean.

Each end has a thread of its own: data move, and peers are answered, while the training computes.
The owner's goes on without a rank that is late (itself too) or lost.
"""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.lateness import Lateness, Patient, patient
from testbed.ddp.residuals import Residual
from testbed.training.filling import Filling, all_finite, estimate_mean
from testbed.training.fillings import ErrorFeedback
from testbed.transport import (
    Endpoint,
    EndpointConfig,
    Handle,
    Leg,
    PayloadLayout,
    PeerLost,
    TransferReport,
)
from testbed.transport.tolerance import StopRule, StopRuleFactory

SERVER = "server"
# So often a lost peer is looked for while others still move.
_LOOK_S = 0.5


def name_of(rank: int) -> str:
    """A worker's name in an endpoint."""
    return f"rank-{rank}"


@dataclass
class Posted:
    """One leg: a transfer with each of several peers."""

    awaited: list[Handle]  # those that the part needs
    behind: list[Handle] = field(default_factory=list)  # to late peers: it does not wait for them

    @property
    def _all(self) -> list[Handle]:
        return self.awaited + self.behind

    @property
    def done(self) -> bool:
        """Whether the part may go on."""
        return all(each.done for each in self.awaited)

    @property
    def over(self) -> bool:
        """Whether all have ended, so that the memory is free."""
        return all(each.done for each in self._all)

    @property
    def reports(self) -> dict[str, TransferReport]:
        """By peer, of those that have ended well."""
        return {peer: report for each in self._all for peer, report in each.reports.items()}

    @property
    def failed(self) -> dict[str, str]:
        """Peers that were lost, each with the reason."""
        return {peer: why for each in self._all for peer, why in each.failed.items()}


@dataclass
class Contribution:
    """What the training gives to a part; the callbacks run in the end's thread."""

    values: NDArray[np.float32]  # this rank's gradient, and then the mean
    payload: NDArray[np.uint8]  # the same in the part's layout: their memory or, padded, another
    turned: Callable[[], None]  # the first leg is over
    done: Callable[["Part"], None]  # the mean stands in its place
    at_s: float = field(default_factory=time.monotonic)


@dataclass
class Part:
    """One end's part of one bucket, in one step; what only the owner knows begins with `rules`."""

    number: int  # counts the parts of this end; so the rounds of its endpoint
    index: int  # of its tensor in the layout
    layout: PayloadLayout
    owner: int  # the rank that averages it
    tolerance: float | StopRuleFactory  # of the first leg, where this side receives it
    own: Contribution | None = None  # None as long as this rank is late, where others have begun
    legs: list[Posted] = field(default_factory=list)  # the gradients, the mean
    turned_s: float = -math.inf  # when the first leg was over
    rules: dict[int, Patient] = field(default_factory=dict)  # by rank, for the first leg
    began_s: float | None = None  # the first gradient was there: lateness counts from here
    own_until_s: float = math.inf  # until then it waits for its own gradient
    mean: NDArray[np.uint8] | None = None  # where it did not wait for its own gradient
    late: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    waited_s: dict[int, float] = field(default_factory=dict)  # by rank, after the first gradient


class EndpointThread(ABC, threading.Thread):
    """An end of the exchange with one owner, which is a rank."""

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        at_once: int,
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        # Of `at_once` parts the first leg may be under way; of the second leg, as many as the
        # endpoint can hold. `on_failure` is called in the thread, which then ends.
        super().__init__(name=f"bounded-loss-{owner}", daemon=True)
        self.owner = owner
        self.layouts: tuple[PayloadLayout, ...] = config.layout.each
        self._padded: dict[int, NDArray[np.uint8]] = {}
        self._filling = filling
        owes = isinstance(filling, ErrorFeedback)
        # By tensor of the layout; they are the thread's while parts are under way.
        self.residuals = [Residual(layout) for layout in self.layouts] if owes else []
        self._endpoint = Endpoint(config)
        self._at_once = at_once
        self._on_failure = on_failure
        self._new: deque[Part] = deque()
        self._under_way: list[Part] = []
        # Second legs that are not over.
        self._spreading: list[Posted] = []
        self._closing = self._finishing = False
        self._most_spreading = config.transfers_in_flight
        self._posted = 0

    def post(
        self,
        values: NDArray[np.float32],
        tolerance: float | StopRuleFactory,
        done: Callable[[Part], None],
        *,
        turned: Callable[[], None],
    ) -> None:
        """Begins with the next part. They come in the order of the layout, again and again."""
        # The values belong to this end until the part is done, and then are the mean.
        part = self._part(self._posted, tolerance)
        layout, payload = part.layout, values.view(np.uint8)
        if len(payload) != layout.chunk_count * layout.chunk_bytes:  # its last chunk is shorter
            payload = self._padded.setdefault(part.index, layout.new_buffer())
            layout.floats(payload)[:] = values
        part.own = Contribution(values, payload, turned, done)
        self._new.append(part)
        self._posted += 1
        self._endpoint.wake()

    def _part(self, number: int, tolerance: float | StopRuleFactory) -> Part:
        index = number % len(self.layouts)
        return Part(number, index, self.layouts[index], self.owner, tolerance)

    def go_on_at(self, part: int) -> None:
        """The next part that is posted has this number."""
        self._posted = part

    @abstractmethod
    def _begin(self, part: Part) -> Posted:
        """The first leg."""

    @abstractmethod
    def _turn(self, part: Part) -> Posted:
        """The second leg, after the first."""

    def _lose(self, peer: str, reason: str) -> None:
        """A peer is gone: raises PeerLost, or goes on without it."""
        raise PeerLost(peer, reason)

    def _payload(self, part: Part) -> NDArray[np.uint8]:
        """What this rank gives to a part, with what it owes; to be called once."""
        assert part.own is not None
        if self.residuals:
            self.residuals[part.index].add_to(part.own.payload)
        return part.own.payload

    def _note(self, part: Part, received: NDArray[np.bool_] | None) -> None:
        """These chunks of what it gave count in the mean; None: all."""
        if self.residuals:
            assert part.own is not None
            self.residuals[part.index].note(part.own.payload, received)

    def stop(self) -> None:
        """Lets the thread end, and with it the endpoint; what was said before still arrives."""
        self._closing = True
        self._endpoint.wake()

    def finish(self) -> None:
        """Lets the thread end once all peers have what they were promised, also late ones."""
        self._finishing = True
        self._endpoint.wake()

    def run(self) -> None:
        """The thread."""
        try:
            self._endpoint.open()
            while not self._closing:
                self._advance()
                if self._finishing and not self._spreading:
                    break
                self._wait()
        except Exception as error:
            # Before the endpoint is closed, which others take for this rank's death.
            if not self._closing:
                self._on_failure(self.owner, error)
        finally:
            self._endpoint.close()

    def _wait(self) -> None:
        self._endpoint.poll(_LOOK_S)

    def _advance(self) -> None:
        self._look_for_lost()
        self._spreading = [each for each in self._spreading if not each.over]
        # In order, since numbers ascend in both directions.
        for part in self._under_way:
            if len(part.legs) == 2:
                continue
            if not self._is_ready(part) or len(self._spreading) == self._most_spreading:
                break
            part.turned_s = time.monotonic()
            if part.own is not None:
                part.own.turned()
            part.legs.append(self._turn(part))
            self._spreading.append(part.legs[1])
        self._look_for_lost()
        for part in [each for each in self._under_way if len(each.legs) == 2]:
            if part.own is not None and part.legs[1].done:
                self._under_way.remove(part)
                if part.index in self._padded:
                    part.own.values[:] = part.layout.floats(part.own.payload)
                part.own.done(part)
        first = sum(len(part.legs) == 1 for part in self._under_way)
        while first < self._at_once and (begun := self._next()) is not None:
            begun.legs.append(self._begin(begun))
            self._under_way.append(begun)
            first += 1

    def _is_ready(self, part: Part) -> bool:
        """Whether the part's first leg is over."""
        return part.legs[0].done

    def _next(self) -> Part | None:
        """The part that may begin now."""
        return self._new.popleft() if self._new else None

    def _look_for_lost(self) -> None:
        # What this rank has not come to yet cannot fail: others may have ended well before it.
        legs = [leg for part in self._under_way if part.own is not None for leg in part.legs]
        for leg in (*legs, *self._spreading):
            for peer, reason in leg.failed.items():
                self._lose(peer, reason)


class WorkerThread(EndpointThread):
    """The end of another rank."""

    def _begin(self, part: Part) -> Posted:
        payload = self._payload(part)
        elements = part.layout.floats(payload)
        # All ranks are to see that a gradient is not finite, whichever chunks are lost.
        if part.tolerance != 0.0 and not all_finite(elements):
            elements[:] = np.nan
        return Posted(
            [self._endpoint.post_send(Leg.GATHER.transfer(part.number), {SERVER: payload})]
        )

    def _turn(self, part: Part) -> Posted:
        self._note(part, part.legs[0].reports[SERVER].received)
        # Complete, so that all replicas get the same.
        assert part.own is not None
        into = {SERVER: part.own.payload}
        return Posted([self._endpoint.post_receive(Leg.BROADCAST.transfer(part.number), 0.0, into)])


def _always(rule: StopRule) -> StopRuleFactory:
    return lambda layout: rule


class OwnerThread(EndpointThread):
    """The owner's end."""

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        at_once: int,
        world: int,
        late_share: float,
        min_ranks: int,
        **common: Any,
    ) -> None:
        """As `EndpointThread`; `late_share` and `min_ranks` as `BoundedLoss` says."""
        super().__init__(config, filling, at_once=at_once, **common)
        self._world = world
        self._min_ranks = min_ranks
        self._lateness = Lateness(late_share)
        self._credentials = config.credentials
        self._lost: dict[str, str] = {}
        self.returning: frozenset[int] = frozenset()  # joined again, and not taking part yet
        self._begun = 0  # the number of parts
        self._readmitted: deque[tuple[int, int]] = deque()  # from which part on, and which rank
        self._tolerance: float | StopRuleFactory = 0.0  # of the latest part that was given
        # Where gradients arrive, for as many parts as may be on their first leg.
        sizes = [layout.chunk_count * layout.chunk_bytes for layout in self.layouts]
        if at_once * max(sizes) < sum(sizes):
            sizes = at_once * [max(sizes)]
        self._gathered = [
            {peer: np.zeros(size, dtype=np.uint8) for peer in config.peers} for size in sizes
        ]

    def _lose(self, peer: str, reason: str) -> None:
        self._lost[peer] = reason
        if self._world - len(self._lost) < self._min_ranks:
            raise PeerLost(peer, reason)

    @property
    def lost(self) -> list[int]:
        """The ranks without which it goes on."""
        return [rank for rank in range(self._world) if name_of(rank) in self._lost]

    def trust(self, certificate: str) -> None:
        """Lets in a rank that returns with a new key; a PEM text."""
        if self._credentials is not None:
            self._credentials.trust(certificate)

    def readmit(self, ranks: Iterable[int]) -> int:
        """These take part from the next part that is posted on; returns its number."""
        self._readmitted += [(self._posted, rank) for rank in ranks]
        self.returning = frozenset()
        return self._posted

    def _look_for_returns(self) -> None:
        """Who was lost and has joined again may come back when no part has begun without it."""
        begun = any(part.own is None for part in self._under_way)
        if not begun and not any(each.failed for each in self._spreading):
            back = self._lost.keys() & self._endpoint.here
            self.returning = frozenset(rank for rank in range(self._world) if name_of(rank) in back)

    def _wait(self) -> None:
        now_s = time.monotonic()
        own_s = (part.own_until_s for part in self._under_way if part.own is None)
        left_s = min((each - now_s for each in own_s if each > now_s), default=math.inf)
        ahead = Leg.GATHER.transfer(self._begun) if self._may_run_ahead else None
        self._endpoint.poll(min(_LOOK_S, left_s), unless_begun=ahead)

    def _advance(self) -> None:
        while self._new and self._new[0].number < self._begun:
            self._meet(self._new.popleft())
        if self._lost or self.returning:
            self._look_for_returns()
        for part in self._under_way:
            self._start_clock(part)
        super()._advance()
        for part in self._under_way:
            self._start_clock(part)

    # This rank's own gradient.

    @property
    def _may_run_ahead(self) -> bool:
        """Whether the next part may begin before this rank has come to it."""
        unturned = sum(len(part.legs) == 1 for part in self._under_way)
        ahead = sum(part.own is None for part in self._under_way)
        return (
            self._lateness.allowed
            and not self.returning
            and self._begun > 0
            and not self._new
            and unturned < min(self._at_once, len(self.layouts))
            and ahead < self._most_spreading
        )

    def _next(self) -> Part | None:
        if self._new and self._new[0].number < self._begun:
            return None  # it has come just now, and its wake ends the next wait
        part = super()._next()
        if part is None:
            following = Leg.GATHER.transfer(self._begun)
            if not (self._may_run_ahead and self._endpoint.begun(following)):
                return None
            part = self._part(self._begun, self._tolerance)
        while self._readmitted and self._readmitted[0][0] <= part.number:
            self._lost.pop(name_of(self._readmitted.popleft()[1]), None)
        self._begun = part.number + 1
        self._tolerance = part.tolerance
        return part

    def _meet(self, came: Part) -> None:
        """This rank has come to a part that has begun without it."""
        part = next(each for each in self._under_way if each.number == came.number)
        assert came.own is not None
        part.own, self._tolerance = came.own, came.tolerance
        self._payload(part)
        if part.mean is not None:
            self._note(part, np.zeros(part.layout.chunk_count, dtype=np.bool_))
            part.own.payload[:] = part.mean
            part.own.turned()

    # The gradients.

    def _begin(self, part: Part) -> Posted:
        transfer = Leg.GATHER.transfer(part.number)
        if part.own is not None:
            self._payload(part)
        handles = []
        for rank, peer in self._present():
            rule = part.rules[rank] = patient(part.tolerance, part.layout)
            into = {peer: self._place(part, peer)}
            handles.append(self._endpoint.post_receive(transfer, _always(rule), into))
        return Posted(handles)

    def _place(self, part: Part, peer: str) -> NDArray[np.uint8]:
        """Where a peer's gradient arrives. A later part that uses it waits for this one's mean."""
        place = self._gathered[part.number % len(self._gathered)]
        return place[peer][: part.layout.chunk_count * part.layout.chunk_bytes]

    def _present(self) -> list[tuple[int, str]]:
        """The other ranks that are not lost, and their names."""
        others = ((rank, name_of(rank)) for rank in range(self._world) if rank != self.owner)
        return [(rank, peer) for rank, peer in others if peer not in self._lost]

    def _start_clock(self, part: Part) -> None:
        """Whoever comes after the first gradient is waited for."""
        if part.began_s is not None or not (part.own or part.legs[0].reports):
            return
        part.began_s = time.monotonic()
        for rank, rule in part.rules.items():
            rule.wait_until(part.began_s + self._lateness.patience_s(rank, part.index))
        if part.own is None:
            part.own_until_s = part.began_s + self._lateness.patience_s(self.owner, part.index)

    def _is_ready(self, part: Part) -> bool:
        if part.own is not None:
            return part.legs[0].done
        late = time.monotonic() >= part.own_until_s
        return late and part.legs[0].done and not part.legs[0].failed

    # The mean.

    def _turn(self, part: Part) -> Posted:
        buffers, masks = [], []
        for rank in range(self._world):  # sums of floats must not depend on who came first
            if (gradient := self._gradient(part, rank)) is None:
                part.lost.add(rank)  # the mean is of those that are there
                continue
            buffers.append(gradient[0])
            masks.append(gradient[1])
        if part.own is not None:
            mean = part.own.payload
        else:
            mean = part.mean = part.layout.new_buffer()
        estimate_mean(self._filling, part.layout, buffers, masks, out=mean)
        if part.own is not None:
            self._note(part, None)
        present = {peer for _, peer in self._present()}
        late = present & {name_of(rank) for rank in part.late}
        transfer = Leg.BROADCAST.transfer(part.number)
        # A late rank may take it when the training uses that memory already.
        kept = mean.copy() if late and part.own is not None else mean
        return Posted(
            *(
                [self._endpoint.post_send(transfer, dict.fromkeys(sorted(peers), sent))]
                if peers
                else []
                for peers, sent in ((present - late, mean), (late, kept))
            )
        )

    def _gradient(
        self, part: Part, rank: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]] | None:
        """What has come of a rank's: the buffer, and which chunks; None where it is lost."""
        assert part.began_s is not None
        count, late = part.layout.chunk_count, False
        if rank == self.owner:
            here = np.full(count, part.own is not None)
            came_s, late = time.monotonic(), part.own is None
            if part.own is not None:
                came_s, buffer = part.own.at_s, part.own.payload
            else:
                buffer = part.layout.new_buffer()
        else:
            if (report := part.legs[0].reports.get(name_of(rank))) is None:
                return None
            assert report.received is not None  # a receiver's report always has it
            buffer, here = self._place(part, name_of(rank)), report.received
            came_s, late = report.ended_s, part.rules[rank].late
        took_s = max(0.0, came_s - part.began_s)
        part.waited_s[rank] = took_s
        self._lateness.note(rank, part.index, took_s, late=late)
        if late:
            part.late.add(rank)
        return buffer, here
