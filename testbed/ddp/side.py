"""One end of an exchange: an owner averages what all have sent it, and sends all of them the mean.

An owner is the server of an endpoint, the other ranks its workers. Each end has a thread of its
own, in which its endpoint lives. So data move while the training computes, and a peer that asks is
answered whatever the training does.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.training.filling import Filling, SenderMemory, estimate_mean, payload_of
from testbed.training.filling.error_feedback import Residual
from testbed.transport import (
    Endpoint,
    EndpointConfig,
    Handle,
    Leg,
    PayloadLayout,
    PeerLost,
    TransferReport,
)
from testbed.transport.policies.tolerance import StopRuleFactory

SERVER = "server"
# So often a lost peer is looked for while others still move.
_LOOK_S = 0.5


def name_of(rank: int) -> str:
    """A worker's name in an endpoint."""
    return f"rank-{rank}"


@dataclass
class Part:
    """One end's part of one bucket, in one step.

    Attributes:
        number: counts the parts of this end; so the rounds of its endpoint.
        tolerance: of the first leg, where this side receives it.
        done: called in the end's thread with the mean, which is valid until the next step, and
            with the first and the second leg's reports.
    """

    number: int
    tolerance: float | StopRuleFactory
    done: Callable[
        [NDArray[np.float32], Mapping[str, TransferReport], Mapping[str, TransferReport]], None
    ]
    legs: list[Handle] = field(default_factory=list)


class Side(ABC, threading.Thread):
    """An end of the exchange with one owner.

    Attributes:
        owner: that owner's rank.
        own: this rank's payloads, by tensor of the layout.
    """

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        """`on_failure` is called in the thread, which then ends."""
        super().__init__(name=f"bounded-loss-{owner}", daemon=True)
        self.owner = owner
        self.layouts: tuple[PayloadLayout, ...] = config.layout.each
        self.own = [layout.new_buffer() for layout in self.layouts]
        self._filling = filling
        self._endpoint = Endpoint(config)
        self._most = config.transfers_in_flight
        self._on_failure = on_failure
        self._new: deque[Part] = deque()
        self._under_way: list[Part] = []
        self._closing = False
        self._posted = 0

    def values(self, index: int) -> NDArray[np.float32]:
        """This rank's part of the bucket, to be filled before `post`."""
        return self.layouts[index].floats(self.own[index])

    def post(self, tolerance: float | StopRuleFactory, done: Callable[..., None]) -> None:
        """Begins with the next part. They come in the order of the layout, again and again."""
        self._new.append(Part(self._posted, tolerance, done))
        self._posted += 1
        self._endpoint.wake()

    @abstractmethod
    def _begin(self, endpoint: Endpoint, part: Part) -> Handle:
        """The first leg."""

    @abstractmethod
    def _turn(self, endpoint: Endpoint, part: Part, index: int) -> Handle:
        """The second leg, after the first."""

    @abstractmethod
    def _mean(self, index: int) -> NDArray[np.uint8]:
        """The buffer in which the mean stands after both legs."""

    def owed(self, index: int) -> NDArray[np.float32] | None:
        """What was never delivered of this rank's own part; None where nothing is kept."""
        return None

    def forget(self) -> None:
        """Owes nothing any more."""

    def stop(self) -> None:
        """Lets the thread end, and with it the endpoint; what was said before still arrives."""
        self._closing = True
        self._endpoint.wake()

    def run(self) -> None:
        """The thread."""
        try:
            self._endpoint.open()
            while not self._closing:
                self._advance()
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
        for part in self._under_way:
            for leg in part.legs:
                if leg.failed:
                    raise PeerLost(*next(iter(leg.failed.items())))
        # In order, since numbers ascend in both directions.
        second = sum(len(part.legs) == 2 and not part.legs[1].done for part in self._under_way)
        for part in self._under_way:
            if len(part.legs) == 2:
                continue
            if not part.legs[0].done or second == self._most:
                break
            part.legs.append(self._turn(endpoint, part, self._index(part)))
            second += 1
        for part in [each for each in self._under_way if len(each.legs) == 2]:
            if part.legs[1].done and not part.legs[1].failed:
                self._under_way.remove(part)
                mean = self.layouts[self._index(part)].floats(self._mean(self._index(part)))
                part.done(mean, part.legs[0].reports, part.legs[1].reports)
        first = sum(not part.legs[0].done for part in self._under_way)
        while self._new and first < self._most:
            part = self._new.popleft()
            part.legs.append(self._begin(endpoint, part))
            self._under_way.append(part)
            first += 1


class OwnerSide(Side):
    """The owner's end."""

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        world: int,
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        super().__init__(config, filling, owner=owner, on_failure=on_failure)
        self._world = world
        self._means = [layout.new_buffer() for layout in self.layouts]
        self._gathered = [
            {peer: layout.new_buffer() for peer in config.peers} for layout in self.layouts
        ]

    def _begin(self, endpoint: Endpoint, part: Part) -> Handle:
        return endpoint.post_receive(
            Leg.GATHER.transfer(part.number), part.tolerance, self._gathered[self._index(part)]
        )

    def _turn(self, endpoint: Endpoint, part: Part, index: int) -> Handle:
        layout, reports = self.layouts[index], part.legs[0].reports
        buffers, masks = [], []
        for rank in range(self._world):  # sums of floats must not depend on who came first
            if rank == self.owner:
                buffers.append(self.own[index])
                masks.append(np.ones(layout.chunk_count, dtype=np.bool_))
                continue
            received = reports[name_of(rank)].received
            assert received is not None  # a receiver's report always has it
            buffers.append(self._gathered[index][name_of(rank)])
            masks.append(received)
        mean = self._means[index]
        estimate_mean(self._filling, layout, buffers, masks, out=mean)
        peers = dict.fromkeys(self._gathered[index], mean)
        return endpoint.post_send(Leg.BROADCAST.transfer(part.number), peers)

    def _mean(self, index: int) -> NDArray[np.uint8]:
        return self._means[index]


class WorkerSide(Side):
    """The end of another rank."""

    def __init__(
        self,
        config: EndpointConfig,
        filling: Filling,
        *,
        owner: int,
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        super().__init__(config, filling, owner=owner, on_failure=on_failure)
        self._memories: list[SenderMemory] = [
            filling.sender_memory(layout) for layout in self.layouts
        ]
        self._means = [layout.new_buffer() for layout in self.layouts]

    def _begin(self, endpoint: Endpoint, part: Part) -> Handle:
        index = self._index(part)
        payload = payload_of(self._memories[index], self.own[index])
        return endpoint.post_send(Leg.GATHER.transfer(part.number), {SERVER: payload})

    def _turn(self, endpoint: Endpoint, part: Part, index: int) -> Handle:
        self._memories[index].settle(part.legs[0].reports[SERVER])
        # Complete, so that all replicas get the same.
        into = {SERVER: self._means[index]}
        return endpoint.post_receive(Leg.BROADCAST.transfer(part.number), 0.0, into)

    def _mean(self, index: int) -> NDArray[np.uint8]:
        return self._means[index]

    def owed(self, index: int) -> NDArray[np.float32] | None:
        memory = self._memories[index]
        return self.layouts[index].floats(memory.owed) if isinstance(memory, Residual) else None

    def forget(self) -> None:
        for index in range(len(self.layouts)):
            if (owed := self.owed(index)) is not None:
                owed[:] = 0
