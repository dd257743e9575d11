"""The owner's end: it averages, and goes on without a rank that is late (itself too) or lost."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.lateness import Lateness, patient
from testbed.ddp.side import _LOOK_S, Part, Posted, Side, name_of
from testbed.training.filling import Filling, estimate_mean
from testbed.transport import Endpoint, EndpointConfig, Leg, PeerLost
from testbed.transport.core.tolerance import StopRule, StopRuleFactory


def _always(rule: StopRule) -> StopRuleFactory:
    return lambda layout: rule


class OwnerSide(Side):
    """The owner's end."""

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        at_once: int,
        world: int,
        late_share: float,
        min_ranks: int,
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        """As `Side`; `late_share` and `min_ranks` as `BoundedLoss` says."""
        super().__init__(config, filling, owner=owner, at_once=at_once, on_failure=on_failure)
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
        begun = any(part.given is None for part in self._under_way)
        if not begun and not any(each.failed for each in self._spreading):
            back = self._lost.keys() & self._endpoint.here
            self.returning = frozenset(rank for rank in range(self._world) if name_of(rank) in back)

    def _wait(self) -> None:
        now_s = time.monotonic()
        own_s = (part.own_until_s for part in self._under_way if part.given is None)
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
        ahead = sum(part.given is None for part in self._under_way)
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
            part = Part(self._begun, self.owner, self._tolerance)
        while self._readmitted and self._readmitted[0][0] <= part.number:
            self._lost.pop(name_of(self._readmitted.popleft()[1]), None)
        self._begun = part.number + 1
        self._tolerance = part.tolerance
        return part

    def _meet(self, came: Part) -> None:
        """This rank has come to a part that has begun without it."""
        part = next(each for each in self._under_way if each.number == came.number)
        assert came.given is not None
        part.given, self._tolerance = came.given, came.tolerance
        self._payload(part)
        if part.mean is not None:
            self._note(part, np.zeros(self.layouts[self._index(part)].chunk_count, dtype=np.bool_))
            part.given.payload[:] = part.mean
            part.given.turned()

    # The gradients.

    def _begin(self, endpoint: Endpoint, part: Part) -> Posted:
        index, transfer = self._index(part), Leg.GATHER.transfer(part.number)
        if part.given is not None:
            self._payload(part)
        handles = []
        for rank, peer in self._present():
            rule = part.rules[rank] = patient(part.tolerance, self.layouts[index])
            into = {peer: self._place(part, peer)}
            handles.append(endpoint.post_receive(transfer, _always(rule), into))
        return Posted(handles)

    def _place(self, part: Part, peer: str) -> NDArray[np.uint8]:
        """Where a peer's gradient arrives. A later part that uses it waits for this one's mean."""
        layout = self.layouts[self._index(part)]
        place = self._gathered[part.number % len(self._gathered)]
        return place[peer][: layout.chunk_count * layout.chunk_bytes]

    def _present(self) -> list[tuple[int, str]]:
        """The other ranks that are not lost, and their names."""
        others = ((rank, name_of(rank)) for rank in range(self._world) if rank != self.owner)
        return [(rank, peer) for rank, peer in others if peer not in self._lost]

    def _start_clock(self, part: Part) -> None:
        """Whoever comes after the first gradient is waited for."""
        if part.began_s is not None or not (part.given or part.legs[0].reports):
            return
        part.began_s, index = time.monotonic(), self._index(part)
        for rank, rule in part.rules.items():
            rule.wait_until(part.began_s + self._lateness.patience_s(rank, index))
        if part.given is None:
            part.own_until_s = part.began_s + self._lateness.patience_s(self.owner, index)

    def _is_ready(self, part: Part) -> bool:
        if part.given is not None:
            return part.legs[0].done
        late = time.monotonic() >= part.own_until_s
        return late and part.legs[0].done and not part.legs[0].failed

    # The mean.

    def _turn(self, endpoint: Endpoint, part: Part) -> Posted:
        index = self._index(part)
        layout, own = self.layouts[index], part.given is not None
        buffers, masks = [], []
        for rank in range(self._world):  # sums of floats must not depend on who came first
            if (gradient := self._gradient(part, rank, index)) is None:
                part.lost.add(rank)  # the mean is of those that are there
                continue
            buffers.append(gradient[0])
            masks.append(gradient[1])
        if part.given is not None:
            mean = part.given.payload
        else:
            mean = part.mean = layout.new_buffer()
        estimate_mean(self._filling, layout, buffers, masks, out=mean)
        if own:
            self._note(part, None)
        present = {peer for _, peer in self._present()}
        late = present & {name_of(rank) for rank in part.late}
        transfer = Leg.BROADCAST.transfer(part.number)
        # A late rank may take it when the training uses that memory already.
        kept = mean.copy() if late and own else mean
        return Posted(
            *(
                [endpoint.post_send(transfer, dict.fromkeys(sorted(peers), sent))] if peers else []
                for peers, sent in ((present - late, mean), (late, kept))
            )
        )

    def _gradient(
        self, part: Part, rank: int, index: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.bool_]] | None:
        """What has come of a rank's: the buffer, and which chunks; None where it is lost."""
        assert part.began_s is not None
        count, late = self.layouts[index].chunk_count, False
        if rank == self.owner:
            here = np.full(count, part.given is not None)
            came_s, late = time.monotonic(), part.given is None
            if part.given is not None:
                came_s, buffer = part.given.at_s, part.given.payload
            else:
                buffer = self.layouts[index].new_buffer()
        else:
            if (report := part.legs[0].reports.get(name_of(rank))) is None:
                return None
            assert report.received is not None  # a receiver's report always has it
            buffer, here = self._place(part, name_of(rank)), report.received
            came_s, late = report.ended_s, part.rules[rank].late
        took_s = max(0.0, came_s - part.began_s)
        part.waited_s[rank] = took_s
        self._lateness.note(rank, index, took_s, late=late)
        if late:
            part.late.add(rank)
        return buffer, here
