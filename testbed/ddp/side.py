"""One end of an exchange: an owner averages what all have sent it, and sends all of them the mean.

An owner is the server of an endpoint, the other ranks its workers. Each end has a thread of its
own, in which its endpoint lives. So data move while the training computes, and a peer that asks is
answered whatever the training does.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.lateness import Lateness, patient
from testbed.ddp.part import Part, Posted
from testbed.training.filling import Filling, SenderMemory, estimate_mean, payload_of
from testbed.training.filling.error_feedback import Residual
from testbed.transport import (
    Endpoint,
    EndpointConfig,
    Leg,
    PayloadLayout,
    PeerLost,
)
from testbed.transport.policies.tolerance import StopRule, StopRuleFactory

SERVER = "server"
# So often a lost peer is looked for while others still move.
_LOOK_S = 0.5


def name_of(rank: int) -> str:
    """A worker's name in an endpoint."""
    return f"rank-{rank}"


class Side(ABC, threading.Thread):
    """An end of the exchange with one owner.

    Attributes:
        owner: that owner's rank.
    """

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        means: list[NDArray[np.uint8]],
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        """`means` are the places of the means, by tensor of the layout.

        `on_failure` is called in the thread, which then ends.
        """
        super().__init__(name=f"bounded-loss-{owner}", daemon=True)
        self.owner = owner
        self.layouts: tuple[PayloadLayout, ...] = config.layout.each
        self._means = means
        self._padded: dict[int, NDArray[np.uint8]] = {}
        self._filling = filling
        self._endpoint = Endpoint(config)
        self._most = config.transfers_in_flight
        self._on_failure = on_failure
        self._new: deque[Part] = deque()
        self._under_way: list[Part] = []
        # Second legs that are not over, each with its tensor.
        self._spreading: list[tuple[int, Posted]] = []
        self._closing = self._finishing = False
        self._posted = 0

    def post(
        self,
        values: NDArray[np.float32],
        tolerance: float | StopRuleFactory,
        done: Callable[[Part], None],
        *,
        turned: Callable[[], None],
    ) -> None:
        """Begins with the next part. They come in the order of the layout, again and again.

        `values` are this rank's, and must stay as they are until it is `done`.
        """
        index = self._posted % len(self.layouts)
        layout, payload = self.layouts[index], values.view(np.uint8)
        if len(payload) != layout.chunk_count * layout.chunk_bytes:  # its last chunk is shorter
            payload = self._padded.setdefault(index, layout.new_buffer())
            layout.floats(payload)[:] = values
        self._new.append(Part(self._posted, self.owner, payload, tolerance, turned, done))
        self._posted += 1
        self._endpoint.wake()

    @abstractmethod
    def _begin(self, endpoint: Endpoint, part: Part) -> Posted:
        """The first leg."""

    @abstractmethod
    def _turn(self, endpoint: Endpoint, part: Part, index: int) -> Posted:
        """The second leg, after the first."""

    def _lose(self, peer: str, reason: str) -> None:
        """A peer is gone: raises PeerLost, or goes on without it."""
        raise PeerLost(peer, reason)

    def owed(self, index: int) -> NDArray[np.float32] | None:
        """What was never delivered of this rank's own part; None where nothing is kept."""
        return None

    def forget(self) -> None:
        """Owes nothing any more."""

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
                self._endpoint.poll(_LOOK_S)
        except Exception as error:
            # Before the endpoint is closed, which others take for this rank's death.
            if not self._closing:
                self._on_failure(self.owner, error)
        finally:
            self._endpoint.close()

    def _index(self, part: Part) -> int:
        return part.number % len(self.layouts)

    def _advance(self) -> None:
        endpoint = self._endpoint
        self._look_for_lost()
        self._spreading = [each for each in self._spreading if not each[1].over]
        # In order, since numbers ascend in both directions.
        for part in self._under_way:
            if len(part.legs) == 2:
                continue
            index = self._index(part)
            in_use = any(index == each for each, _ in self._spreading)
            if not part.legs[0].done or in_use or len(self._spreading) == self._most:
                break
            part.turned()
            part.legs.append(self._turn(endpoint, part, index))
            self._spreading.append((index, part.legs[1]))
        self._look_for_lost()
        for part in [each for each in self._under_way if len(each.legs) == 2]:
            if part.legs[1].done:
                self._under_way.remove(part)
                part.done(part)
        first = sum(not part.legs[0].done for part in self._under_way)
        while self._new and first < self._most:
            part = self._new.popleft()
            part.legs.append(self._begin(endpoint, part))
            self._under_way.append(part)
            first += 1

    def _look_for_lost(self) -> None:
        legs = [leg for part in self._under_way for leg in part.legs]
        for leg in (*legs, *(each for _, each in self._spreading)):
            for peer, reason in leg.failed.items():
                self._lose(peer, reason)


def _same(rule: StopRule, layout: PayloadLayout) -> StopRule:
    return rule


class OwnerSide(Side):
    """The owner's end."""

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        world: int,
        late_share: float,
        min_ranks: int,
        means: list[NDArray[np.uint8]],
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        super().__init__(config, filling, owner=owner, means=means, on_failure=on_failure)
        self._world = world
        self._min_ranks = min_ranks
        self._lateness = Lateness(late_share)
        self._lost: dict[str, str] = {}
        self._gathered = [
            {peer: layout.new_buffer() for peer in config.peers} for layout in self.layouts
        ]

    def _lose(self, peer: str, reason: str) -> None:
        self._lost[peer] = reason
        if self._world - len(self._lost) < self._min_ranks:
            raise PeerLost(peer, reason)

    def _begin(self, endpoint: Endpoint, part: Part) -> Posted:
        index, transfer = self._index(part), Leg.GATHER.transfer(part.number)
        handles = []
        for rank, peer in self._present():
            patience_s = self._lateness.patience_s(rank, index)
            rule = part.rules[rank] = patient(part.tolerance, self.layouts[index], patience_s)
            into = {peer: self._gathered[index][peer]}
            handles.append(endpoint.post_receive(transfer, partial(_same, rule), into))
        return Posted(handles)

    def _present(self) -> list[tuple[int, str]]:
        """The other ranks that are not lost, and their names."""
        others = ((rank, name_of(rank)) for rank in range(self._world) if rank != self.owner)
        return [(rank, peer) for rank, peer in others if peer not in self._lost]

    def _turn(self, endpoint: Endpoint, part: Part, index: int) -> Posted:
        layout, reports = self.layouts[index], part.legs[0].reports
        buffers, masks = [], []
        for rank in range(self._world):  # sums of floats must not depend on who came first
            if rank == self.owner:
                buffers.append(part.payload)
                masks.append(np.ones(layout.chunk_count, dtype=np.bool_))
                continue
            if (report := reports.get(name_of(rank))) is None:
                part.lost.add(rank)  # the mean is of those that are there
                continue
            rule, received = part.rules[rank], report.received
            self._lateness.note(rank, index, report.ended_s - rule.began_s, late=rule.late)
            if rule.late:
                part.late.add(rank)
            assert received is not None  # a receiver's report always has it
            buffers.append(self._gathered[index][name_of(rank)])
            masks.append(received)
        mean = self._means[index]
        estimate_mean(self._filling, layout, buffers, masks, out=mean)
        late = {name_of(rank) for rank in part.late}
        present = {peer for _, peer in self._present()}
        transfer = Leg.BROADCAST.transfer(part.number)
        return Posted(
            *(
                [endpoint.post_send(transfer, dict.fromkeys(sorted(peers), mean))] if peers else []
                for peers in (present - late, present & late)
            )
        )


class WorkerSide(Side):
    """The end of another rank."""

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        means: list[NDArray[np.uint8]],
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        super().__init__(config, filling, owner=owner, means=means, on_failure=on_failure)
        self._memories: list[SenderMemory] = [
            filling.sender_memory(layout) for layout in self.layouts
        ]

    def _begin(self, endpoint: Endpoint, part: Part) -> Posted:
        payload = payload_of(self._memories[self._index(part)], part.payload)
        return Posted([endpoint.post_send(Leg.GATHER.transfer(part.number), {SERVER: payload})])

    def _turn(self, endpoint: Endpoint, part: Part, index: int) -> Posted:
        self._memories[index].settle(part.legs[0].reports[SERVER])
        # Complete, so that all replicas get the same.
        into = {SERVER: self._means[index]}
        return Posted([endpoint.post_receive(Leg.BROADCAST.transfer(part.number), 0.0, into)])

    def owed(self, index: int) -> NDArray[np.float32] | None:
        memory = self._memories[index]
        return self.layouts[index].floats(memory.owed) if isinstance(memory, Residual) else None

    def forget(self) -> None:
        for memory in self._memories:
            if isinstance(memory, Residual):
                memory.forget()
