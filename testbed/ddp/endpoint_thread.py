"""One end of an exchange, in a thread: data move, and peers are answered, while training computes.

An owner averages the gradients that all other ranks, its workers, send it, and sends them the mean.
What a mean lacks of a rank's gradient is that rank's residual. What does not travel of a mean is
the owner's, so many times as ranks are averaged: in the next step's mean it counts once.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.ddp.settings import Settings
from testbed.training.filling import all_finite, chunk_elements
from testbed.transport import (
    Endpoint,
    EndpointConfig,
    Handle,
    Leg,
    PayloadLayout,
    PeerLost,
    TransferReport,
)
from testbed.transport.tolerance import StopRuleFactory

SERVER = "server"
# So often an end looks for lost peers while others still move.
POLL_S = 0.5


def name_of(rank: int) -> str:
    return f"rank-{rank}"


@dataclass
class Transfers:
    """One leg of a part: the transfers with peers."""

    awaited: list[Handle] = field(default_factory=list)
    behind: list[Handle] = field(default_factory=list)  # with late peers: the part goes on

    @property
    def done(self) -> bool:
        return all(handle.done for handle in self.awaited)

    @property
    def over(self) -> bool:
        """The transfers have all ended, so their memory is free."""
        return self.done and all(handle.done for handle in self.behind)

    @property
    def reports(self) -> dict[str, TransferReport]:
        handles = self.awaited + self.behind
        return {peer: report for handle in handles for peer, report in handle.reports.items()}

    @property
    def failed(self) -> dict[str, str]:
        handles = self.awaited + self.behind
        return {peer: reason for handle in handles for peer, reason in handle.failed.items()}


@dataclass
class Contribution:
    """This rank's gradient of a part, whose memory then takes the mean."""

    number: int  # of the part
    values: NDArray[np.float32]
    lost: NDArray[np.float32]  # takes what is to be added to the next step's; as long, and zero
    padded: NDArray[np.uint8]  # the values' memory or, padded to whole chunks, another
    payload: NDArray[np.uint8]  # as it travels: the same memory or, with a codec, another
    tolerance: float | StopRuleFactory  # of the gather, where this side receives
    done: Callable[["Part"], None]  # is called in the end's thread, when the mean is there
    posted_s: float = field(default_factory=time.monotonic)


@dataclass
class Part:
    """One end's part of one bucket, in one step; the owner alone uses fields from `began_s` on."""

    number: int  # counts the parts of this end; so the rounds of its endpoint
    index: int  # of its tensor in the layout
    layout: PayloadLayout
    owner: int  # the rank that averages it
    tolerance: float | StopRuleFactory
    own: Contribution | None  # None as long as this rank is late, where others have begun
    gather: Transfers = field(default_factory=Transfers)
    broadcast: Transfers = field(default_factory=Transfers)
    gathered_s: float | None = None  # when the gather was over and the broadcast began
    lossy: bool = False  # whether `own.lost` gets anything
    # The chunks of this rank's gradient that the mean lacks, and their contents.
    lost_chunks: tuple[NDArray[np.bool_], NDArray[np.float32]] | None = None
    began_s: float | None = None  # the first gradient was there: lateness counts from here
    own_until_s: float = np.inf  # until then the owner waits for its own gradient
    mean: NDArray[np.uint8] | None = None  # where it did not wait for that, and what it lacks
    mean_lost: NDArray[np.float32] | None = None
    late: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    waited_s: dict[int, float] = field(default_factory=dict)  # by rank, after the first gradient

    def write_lost(self) -> None:
        """Writes to `own.lost` what is not there yet: before, it took less memory."""
        assert self.own is not None
        if self.lost_chunks is not None:
            write_chunks(self.layout, *self.lost_chunks, self.own.lost)
            self.lost_chunks = None
        if self.mean_lost is not None:
            self.own.lost += self.mean_lost


def write_chunks(
    layout: PayloadLayout,
    chunks: NDArray[np.bool_],
    contents: NDArray[np.float32],
    into: NDArray[np.float32],
) -> None:
    """Writes the contents of some chunks, one per row, to their places among all elements."""
    whole, last = divmod(layout.element_count, layout.elements_per_chunk)
    end = layout.element_count - last
    count = np.count_nonzero(chunks[:whole])
    into[:end].reshape(whole, layout.elements_per_chunk)[chunks[:whole]] = contents[:count]
    if count < len(contents):
        into[end:] = contents[-1, :last]


class EndpointThread(ABC, threading.Thread):
    """An end of the exchange with one owner, which is a rank."""

    def __init__(
        self,
        config: EndpointConfig,
        settings: Settings,
        *,
        owner: int,
        at_once: int,
        on_gathered: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """`at_once` gathers may be under way. The thread calls the functions."""
        super().__init__(name=f"bounded-loss-{owner}", daemon=True)
        self.owner = owner
        self.layouts: tuple[PayloadLayout, ...] = config.layout.of_tensors
        self._padded: dict[int, NDArray[np.uint8]] = {}
        self._payloads: dict[int, NDArray[np.uint8]] = {}
        self._settings = settings
        self._seed = (config.seed << 16) + owner  # of this rank's roundings
        self._endpoint = Endpoint(config)
        self._at_once = at_once
        self._on_gathered = on_gathered
        self._on_failure = on_failure
        self._new: deque[Contribution] = deque()
        self._under_way: list[Part] = []
        self._broadcasts: list[Transfers] = []  # that are not over
        self._most_broadcasts = config.transfers_in_flight
        self._stopped = self._finishing = False
        self.next_number = 0  # of the part that is posted next

    def post(
        self,
        values: NDArray[np.float32],
        lost: NDArray[np.float32],
        tolerance: float | StopRuleFactory,
        done: Callable[[Part], None],
    ) -> None:
        """Begins with the layout's next part, which owns both vectors until it is done."""
        index = self.next_number % len(self.layouts)
        layout = self.layouts[index]
        plain, padded = layout.plain, values.view(np.uint8)
        if len(padded) != plain.chunk_count * plain.chunk_bytes:  # its last chunk is shorter
            padded = self._padded.setdefault(index, plain.new_buffer())
            plain.floats(padded)[:] = values
        payload = padded
        if layout is not plain:
            payload = self._payloads.setdefault(index, layout.new_buffer())
        own = Contribution(self.next_number, values, lost, padded, payload, tolerance, done)
        self._new.append(own)
        self.next_number += 1
        self._endpoint.wake()

    def end(self, *, finish: bool) -> None:
        """Ends the thread: at once, or when all peers have their means, also late ones."""
        self._finishing |= finish
        self._stopped |= not finish
        self._endpoint.wake()

    def run(self) -> None:
        try:
            self._endpoint.open()
            self._endpoint.await_start()  # a step with other buckets may end it before a transfer
            while not self._stopped:
                self._advance()
                if self._finishing and not self._broadcasts:
                    break
                self._wait()
        except Exception as error:
            # Before the endpoint is closed, which others take for this rank's death.
            if not self._stopped:
                if isinstance(error, PeerLost) and error.peer == SERVER:
                    error = PeerLost(name_of(self.owner), error.reason)
                self._on_failure(error)
        finally:
            self._endpoint.close()

    def _wait(self) -> None:
        self._endpoint.poll(POLL_S)

    def _advance(self) -> None:
        self._check_for_lost()
        self._broadcasts = [transfers for transfers in self._broadcasts if not transfers.over]
        # In order, since numbers ascend in both directions.
        for part in (part for part in self._under_way if part.gathered_s is None):
            if not self._is_gathered(part) or len(self._broadcasts) == self._most_broadcasts:
                break
            part.gathered_s = time.monotonic()
            if part.own is not None:
                self._on_gathered()
            self._broadcast(part)
            self._broadcasts.append(part.broadcast)
        self._check_for_lost()
        for part in [part for part in self._under_way if part.gathered_s is not None]:
            if part.own is not None and part.broadcast.done:
                self._under_way.remove(part)
                self._take_mean(part, part.own)
                if part.index in self._padded:
                    part.own.values[:] = part.layout.plain.floats(part.own.padded)
                part.own.done(part)
        while self._gathering < self._at_once and (begun := self._next()) is not None:
            self._gather(begun)
            self._under_way.append(begun)

    @property
    def _gathering(self) -> int:
        return sum(part.gathered_s is None for part in self._under_way)

    def _next(self) -> Part | None:
        if not self._new:
            return None
        own = self._new.popleft()
        return self._part(own.number, own.tolerance, own)

    def _part(
        self, number: int, tolerance: float | StopRuleFactory, own: Contribution | None
    ) -> Part:
        index = number % len(self.layouts)
        return Part(number, index, self.layouts[index], self.owner, tolerance, own)

    def _is_gathered(self, part: Part) -> bool:
        return part.gather.done

    @abstractmethod
    def _gather(self, part: Part) -> None:
        """Begins the first leg."""

    @abstractmethod
    def _broadcast(self, part: Part) -> None:
        """Begins the second leg, after the first."""

    def _take_mean(self, part: Part, own: Contribution) -> None:
        """Puts the mean that has come in the gradient's place."""

    def _encode(
        self,
        part: Part,
        values: NDArray[np.float32],
        payload: NDArray[np.uint8],
        lost: NDArray[np.float32],
        transfer: int,
    ) -> None:
        """Writes the values as they travel, and keeps what the codec loses."""
        layout = part.layout
        if layout is not layout.plain:
            layout.write(values, payload, seed=self._seed, transfer=transfer, residual=lost)
            part.lossy = True

    def _keep_lost(self, part: Part, received: NDArray[np.bool_] | None) -> None:
        """Keeps what the mean lacks of this rank's gradient; `received` None: nothing."""
        if self._settings.keeps_residuals and received is not None and not received.all():
            assert part.own is not None
            contents = chunk_elements(part.layout.plain, part.own.padded)[~received]
            part.lost_chunks, part.lossy = (~received, contents), True

    def _check_for_lost(self) -> None:
        # What this rank has not come to yet cannot fail: others may have ended well before it.
        own = [part for part in self._under_way if part.own is not None]
        legs = [transfers for part in own for transfers in (part.gather, part.broadcast)]
        for transfers in (*legs, *self._broadcasts):
            for peer, reason in transfers.failed.items():
                self._lose(peer, reason)

    def _lose(self, peer: str, reason: str) -> None:
        """Raises PeerLost for a peer that is gone, or goes on without it."""
        raise PeerLost(peer, reason)


class WorkerThread(EndpointThread):
    def _gather(self, part: Part) -> None:
        assert part.own is not None
        elements = part.layout.plain.floats(part.own.padded)
        # All ranks are to see that a gradient is not finite, whichever chunks are lost.
        if part.tolerance != 0.0 and not all_finite(elements):
            elements[:] = np.nan
        transfer = Leg.GATHER.transfer(part.number)
        self._encode(part, elements, part.own.payload, part.own.lost, transfer)
        part.gather.awaited.append(self._endpoint.post_send(transfer, {SERVER: part.own.payload}))

    def _broadcast(self, part: Part) -> None:
        assert part.own is not None
        self._keep_lost(part, part.gather.reports[SERVER].received)
        # Without a tolerance all that is sent, so that all replicas get the same.
        transfer, into = Leg.BROADCAST.transfer(part.number), {SERVER: part.own.payload}
        tolerance = self._settings.broadcast_tolerance
        part.broadcast.awaited.append(self._endpoint.post_receive(transfer, tolerance, into))

    def _take_mean(self, part: Part, own: Contribution) -> None:
        if self._settings.broadcast_tolerance:
            return  # it arrived in the gradient's memory, which keeps its own where nothing came
        received = part.broadcast.reports[SERVER].received
        assert received is not None  # a receiver's report always has it
        plain = part.layout.plain
        plain.rows(own.padded)[~received] = 0
        part.layout.read(own.payload, plain.floats(own.padded), received=received)
