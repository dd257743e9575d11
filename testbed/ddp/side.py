"""One end of an exchange: an owner averages what all have sent it, and sends all of them the mean.

Each end has a thread of its own: data move, and peers are answered, while the training computes.
"""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.lateness import Patient
from testbed.ddp.owed import Debt
from testbed.training.filling import ErrorFeedback, Filling
from testbed.training.vectors import all_finite
from testbed.transport import (
    Endpoint,
    EndpointConfig,
    Handle,
    Leg,
    PayloadLayout,
    PeerLost,
    TransferReport,
)
from testbed.transport.core.tolerance import StopRuleFactory

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
    def done(self) -> bool:
        """Whether the part may go on."""
        return all(each.done for each in self.awaited)

    @property
    def over(self) -> bool:
        """Whether all have ended, so that the memory is free."""
        return self.done and all(each.done for each in self.behind)

    @property
    def reports(self) -> dict[str, TransferReport]:
        """By peer, of those that have ended well."""
        all_ = (*self.awaited, *self.behind)
        return {peer: report for each in all_ for peer, report in each.reports.items()}

    @property
    def failed(self) -> dict[str, str]:
        """Peers that were lost, each with the reason."""
        all_ = (*self.awaited, *self.behind)
        return {peer: why for each in all_ for peer, why in each.failed.items()}


@dataclass
class Given:
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
    owner: int  # the rank that averages it
    tolerance: float | StopRuleFactory  # of the first leg, where this side receives it
    given: Given | None = None  # None as long as this rank is late, where others have begun
    legs: list[Posted] = field(default_factory=list)  # the gradients, the mean
    turned_s: float = -math.inf  # when the first leg was over
    rules: dict[int, Patient] = field(default_factory=dict)  # by rank, for the first leg
    began_s: float | None = None  # the first gradient was there: lateness counts from here
    own_until_s: float = math.inf  # until then it waits for its own gradient
    mean: NDArray[np.uint8] | None = None  # where it did not wait for its own gradient
    late: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    waited_s: dict[int, float] = field(default_factory=dict)  # by rank, after the first gradient


class Side(ABC, threading.Thread):
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
        """Of `at_once` parts the first leg may be under way; of the second leg, as many as the
        endpoint can hold. `on_failure` is called in the thread, which then ends.
        """
        super().__init__(name=f"bounded-loss-{owner}", daemon=True)
        self.owner = owner
        self.layouts: tuple[PayloadLayout, ...] = config.layout.each
        self._padded: dict[int, NDArray[np.uint8]] = {}
        self._filling = filling
        owes = isinstance(filling, ErrorFeedback)
        # By tensor of the layout; they are the thread's while parts are under way.
        self.debts = [Debt(layout) for layout in self.layouts] if owes else []
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
        index = self._posted % len(self.layouts)
        layout, payload = self.layouts[index], values.view(np.uint8)
        if len(payload) != layout.chunk_count * layout.chunk_bytes:  # its last chunk is shorter
            payload = self._padded.setdefault(index, layout.new_buffer())
            layout.floats(payload)[:] = values
        given = Given(values, payload, turned, done)
        self._new.append(Part(self._posted, self.owner, tolerance, given))
        self._posted += 1
        self._endpoint.wake()

    def go_on_at(self, part: int) -> None:
        """The next part that is posted has this number."""
        self._posted = part

    @abstractmethod
    def _begin(self, endpoint: Endpoint, part: Part) -> Posted:
        """The first leg."""

    @abstractmethod
    def _turn(self, endpoint: Endpoint, part: Part) -> Posted:
        """The second leg, after the first."""

    def _lose(self, peer: str, reason: str) -> None:
        """A peer is gone: raises PeerLost, or goes on without it."""
        raise PeerLost(peer, reason)

    def _payload(self, part: Part) -> NDArray[np.uint8]:
        """What this rank gives to a part, with what it owes; to be called once."""
        assert part.given is not None
        if self.debts:
            self.debts[self._index(part)].add_to(part.given.payload)
        return part.given.payload

    def _note(self, part: Part, received: NDArray[np.bool_] | None) -> None:
        """These chunks of what it gave count in the mean; None: all."""
        if self.debts:
            assert part.given is not None
            self.debts[self._index(part)].note(part.given.payload, received)

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

    def _index(self, part: Part) -> int:
        return part.number % len(self.layouts)

    def _advance(self) -> None:
        endpoint = self._endpoint
        self._look_for_lost()
        self._spreading = [each for each in self._spreading if not each.over]
        # In order, since numbers ascend in both directions.
        for part in self._under_way:
            if len(part.legs) == 2:
                continue
            if not self._is_ready(part) or len(self._spreading) == self._most_spreading:
                break
            part.turned_s = time.monotonic()
            if part.given is not None:
                part.given.turned()
            part.legs.append(self._turn(endpoint, part))
            self._spreading.append(part.legs[1])
        self._look_for_lost()
        for part in [each for each in self._under_way if len(each.legs) == 2]:
            if part.given is not None and part.legs[1].done:
                self._under_way.remove(part)
                if (index := self._index(part)) in self._padded:
                    part.given.values[:] = self.layouts[index].floats(part.given.payload)
                part.given.done(part)
        first = sum(len(part.legs) == 1 for part in self._under_way)
        while first < self._at_once and (begun := self._next()) is not None:
            begun.legs.append(self._begin(endpoint, begun))
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
        legs = [leg for part in self._under_way if part.given is not None for leg in part.legs]
        for leg in (*legs, *self._spreading):
            for peer, reason in leg.failed.items():
                self._lose(peer, reason)


class WorkerSide(Side):
    """The end of another rank."""

    def _begin(self, endpoint: Endpoint, part: Part) -> Posted:
        payload = self._payload(part)
        elements = self.layouts[self._index(part)].floats(payload)
        # All ranks are to see that a gradient is not finite, whichever chunks are lost.
        if part.tolerance != 0.0 and not all_finite(elements):
            elements[:] = np.nan
        return Posted([endpoint.post_send(Leg.GATHER.transfer(part.number), {SERVER: payload})])

    def _turn(self, endpoint: Endpoint, part: Part) -> Posted:
        self._note(part, part.legs[0].reports[SERVER].received)
        # Complete, so that all replicas get the same.
        assert part.given is not None
        into = {SERVER: part.given.payload}
        return Posted([endpoint.post_receive(Leg.BROADCAST.transfer(part.number), 0.0, into)])
