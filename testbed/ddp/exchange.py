"""The exchange of known buckets: who averages which part, and all ends that a rank has in it.

With `min_ranks`, a rank that was lost can join again: it leaves a request in the store, with a
ticket and its new certificate. Rank 0 answers that it is trusted, and later that it is admitted.
"""

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from testbed.ddp.endpoint_thread import SERVER, EndpointThread, WorkerThread, name_of
from testbed.ddp.meeting import Identity, Rendezvous, on_one_machine, own_address
from testbed.ddp.owner import OwnerThread
from testbed.ddp.settings import Settings, require_equal
from testbed.shared.input_error import InputError
from testbed.transport import EndpointConfig, PayloadLayout, PeerLost
from testbed.transport.codec import CODECS
from testbed.transport.wire import U32_MAX

# For a late rank's last mean; an end that has failed is over at once.
_JOIN_S = 60.0
_MEET_S = 60.0
# The threads of a rank answer while it computes, so one that does not has stopped or is cut off.
_SILENT_S = 30.0
# So many steps the others may be ahead of a late rank, and so many means at most wait for it.
_STEPS_AHEAD = 2
_MOST_AHEAD = 32  # a peer remembers twice as many transfers that were given up before it came
_POLL_S = 0.1
_SWITCH_INTERVAL_S = 1e-4
# A part costs all ranks milliseconds of processor time, however small it is. So a bucket with fewer
# bytes for each owner has one.
LEAST_BYTES = 1 << 13
_OPENING = "opening"


@dataclass(frozen=True)
class Bucket:
    elements: int
    dtype: str
    slots: tuple[int, ...]  # its parameters' numbers, in order


# A step's buckets, in the order in which they come.
Plan = tuple[Bucket, ...]


def shard(elements: int, place: int, count: int, per_chunk: int) -> slice:
    """Returns the part of a bucket that the owner at `place` of `count` averages; maybe empty."""
    # All but the last are of whole chunks, so that each is a payload as it lies in memory.
    chunks = -(-elements // per_chunk)
    first, end = (chunks * at // count * per_chunk for at in (place, place + 1))
    return slice(min(first, elements), min(end, elements))


@dataclass(frozen=True)
class Opening:
    """A rank must know this to take part in an exchange; it is equal on all ranks."""

    addresses: list[str]  # by rank
    chunk_bytes: int
    session: int
    control_ports: list[int]  # by rank
    data_ports: list[int]  # the first one of each rank
    plan: Plan

    def require_same(self, plan: Plan) -> None:
        """InputError where a rank that returns has other buckets."""
        if plan != self.plan:
            ours = [bucket.elements for bucket in plan]
            theirs = [bucket.elements for bucket in self.plan]
            raise InputError(
                f"the buckets of the rank that returns are {ours}, and the others' {theirs}; "
                "valid: the same model and DistributedDataParallel"
            )


class Exchange:
    """This rank's ends of one exchange."""

    # The classes of its ends: where this rank averages, and elsewhere.
    ends: tuple[type[EndpointThread], type[EndpointThread]] = (OwnerThread, WorkerThread)
    _small_have_one = True  # an owner for all of a small bucket

    def __init__(
        self,
        settings: Settings,
        rendezvous: Rendezvous,
        opening: Opening,
        *,
        on_gathered: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Makes the ends, whose threads call the functions; `start` opens them."""
        self.plan = opening.plan
        self._settings = settings
        self._rendezvous = rendezvous
        self._opening = opening
        self._codec = settings.protocol_config.codec
        # The ranks that average, each a part of every bucket.
        self._owners = [0] if settings.collective == "server" else list(range(rendezvous.world))
        self._on_gathered = on_gathered
        self._on_failure = on_failure
        self._tickets: dict[int, str] = {}  # of the ranks that were last trusted to return
        self._threads: dict[int, EndpointThread] = {}
        for place, owner in enumerate(self._owners):
            spans = (self._span(index, place) for index in range(len(self.plan)))
            tensors = [
                (f"bucket-{index}", span.stop - span.start)
                for index, span in enumerate(spans)
                if span.stop > span.start
            ]
            if tensors:
                layout = PayloadLayout(tensors, opening.chunk_bytes, self._codec)
                self._threads[place] = self._end(owner, layout)
        owned = (thread for thread in self._threads.values() if isinstance(thread, OwnerThread))
        self._own = next(owned, None)  # the end at which this rank averages, if it does

    def _end(self, owner: int, layout: PayloadLayout) -> EndpointThread:
        settings, rendezvous, opening = self._settings, self._rendezvous, self._opening
        addresses, world, identity = opening.addresses, rendezvous.world, rendezvous.identity
        is_owner = owner == rendezvous.rank
        others = [rank for rank in range(world) if rank != owner]
        in_flight = settings.transfers_in_flight
        if settings.late_share:
            in_flight = min(max(in_flight, _STEPS_AHEAD * len(layout.of_tensors)), _MOST_AHEAD)
        config = EndpointConfig(
            session=(opening.session + owner) & U32_MAX,
            name=SERVER if is_owner else name_of(rendezvous.rank),
            bind_address=addresses[rendezvous.rank],
            peers=(
                {name_of(rank): addresses[rank] for rank in others}
                if is_owner
                else {SERVER: addresses[owner]}
            ),
            is_server=is_owner,
            protocol=settings.protocol_between(one_machine=on_one_machine(addresses)),
            layout=layout,
            tensor_by_tensor=True,
            rate_bps=settings.link_bps / len(others),
            queue_bytes=settings.queue_bytes / len(others),
            control_port=opening.control_ports[owner],
            data_port=opening.data_ports[owner] if is_owner else 0,
            credentials=None if identity is None else identity.credentials(owner, world),
            insecure=settings.insecure,
            segmentation=settings.segmentation,
            seed=rendezvous.rank,
            peer_timeout_s=min(_SILENT_S, rendezvous.timeout_s / 3),
            # A worker waits longer: the owner may be waiting for another rank.
            late_s=rendezvous.timeout_s / (2 if is_owner else 1),
            # All ranks have just met, so who does not come cannot.
            connect_timeout_s=min(_MEET_S, rendezvous.timeout_s / 2),
            transfers_in_flight=in_flight,
            leave_out=settings.leave_out,
        )
        # What arrives of all others at once takes at most twice the gradient's memory.
        largest = max(tensor.element_count for tensor in layout.of_tensors) * len(others)
        fitting = max(1, 2 * sum(bucket.elements for bucket in self.plan) // largest)
        return self.ends[0 if is_owner else 1](
            config,
            settings,
            owner=owner,
            at_once=min(settings.transfers_in_flight, in_flight, fitting),
            on_gathered=self._on_gathered,
            on_failure=self._on_failure,
        )

    def start(self) -> None:
        # These threads do little at a time, and none is to wait 5 ms for another to let go.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_INTERVAL_S))
        for thread in self._threads.values():
            thread.start()
        if self._settings.min_ranks is not None and self._own is not None:
            identity = self._rendezvous.identity
            facts = {
                "terms": self._settings.terms(),
                "certificates": None if identity is None else identity.certificates,
                "opening": asdict(self._opening),
            }
            self._rendezvous.leave(_OPENING, facts)

    def _span(self, index: int, place: int) -> slice:
        codec, count = CODECS.create(self._codec), len(self._owners)
        elements = self.plan[index].elements
        if self._small_have_one and codec.length(elements) < count * LEAST_BYTES:
            return slice(0, elements if place == index % count else 0)
        return shard(elements, place, count, codec.elements(self._opening.chunk_bytes))

    def spans(self, index: int) -> Iterator[tuple[EndpointThread, slice]]:
        """Yields the ends that take part in a bucket, each with its part of it."""
        for place, thread in self._threads.items():
            span = self._span(index, place)
            if span.stop > span.start:
                yield thread, span

    def stop(self) -> None:
        """Lets all ends end; returns at once."""
        for thread in self._threads.values():
            thread.end(finish=False)

    def close(self) -> None:
        """Ends all ends, once ranks that are late have their means."""
        for thread in self._threads.values():
            thread.end(finish=True)
        for thread in self._threads.values():
            if thread.is_alive():  # one of a rank that returned in vain was never started
                thread.join(_JOIN_S)

    # Ranks that come back. Rank 0 lets them in.

    @property
    def returning(self) -> frozenset[int]:
        """Ranks that were lost and have joined rank 0 again; empty on other ranks."""
        if self._own is None:
            return frozenset()
        self._trust(self._own)
        return self._own.returning & self._tickets.keys()

    def _trust(self, own: OwnerThread) -> None:
        """Trusts requests of lost ranks. One that has joined keeps its ticket until it is gone."""
        for rank in own.away:
            request = self._rendezvous.find(f"request/{rank}")
            if request is None or request["ticket"] == self._tickets.get(rank):
                continue
            if own.credentials is not None:
                own.credentials.trust(request["certificate"])
            self._tickets[rank] = request["ticket"]
            self._rendezvous.leave(f"trusted/{rank}/{request['ticket']}", True)

    def readmit(self, ranks: Iterable[int], step: int, note: str) -> None:
        """Lets ranks that are `returning` take part from this step on, which is the next."""
        assert self._own is not None
        admission = {"part": self._own.readmit(ranks), "step": step, "note": note}
        for rank in ranks:
            self._rendezvous.leave(f"admitted/{rank}/{self._tickets[rank]}", admission)

    def rejoin(self, failure: Callable[[], Exception | None]) -> tuple[int, str]:
        """Joins as a rank that returns; returns the step from which it takes part, and the note."""
        rendezvous, identity = self._rendezvous, self._rendezvous.identity
        rank = rendezvous.rank
        # The ticket tells this return from another one of the same rank.
        ticket = secrets.token_hex(8)
        certificate = None if identity is None else identity.certificates[name_of(rank)]
        rendezvous.leave(f"request/{rank}", {"ticket": ticket, "certificate": certificate})
        reason = f"it has let nobody in for {rendezvous.timeout_s:g} s"
        _await(rendezvous, f"trusted/{rank}/{ticket}", reason)
        self.start()
        admission = _await(rendezvous, f"admitted/{rank}/{ticket}", reason, failure)
        for thread in self._threads.values():
            thread.next_number = admission["part"]
        return admission["step"], str(admission["note"])


def _await(
    rendezvous: Rendezvous,
    key: str,
    reason: str,
    failure: Callable[[], Exception | None] = lambda: None,
) -> Any:
    """Returns what rank 0 leaves there; PeerLost where it does not in time."""
    until_s = time.monotonic() + rendezvous.timeout_s
    while (message := rendezvous.find(key)) is None:
        if (failed := failure()) is not None:
            raise failed
        if time.monotonic() >= until_s:
            raise PeerLost("rank 0", reason)
        time.sleep(_POLL_S)
    return message


def opening_of_others(settings: Settings, rendezvous: Rendezvous) -> Opening:
    """Returns what rank 0 has kept for a rank that returns; InputError where it does not fit."""
    facts = _await(rendezvous, _OPENING, "it keeps no place for ranks that return")
    require_equal([facts["terms"], settings.terms()], stage="rank 1 is the one that returns: ")
    plan = tuple(
        Bucket(bucket["elements"], bucket["dtype"], tuple(bucket["slots"]))
        for bucket in facts["opening"].pop("plan")
    )
    opening = Opening(**facts["opening"], plan=plan)
    addresses, rank, own = opening.addresses, rendezvous.rank, own_address(settings.interface)
    if not 0 < rank < len(addresses):
        raise InputError(f"returns: rank {rank}; valid: 1 to {len(addresses) - 1}")
    if own != addresses[rank]:
        raise InputError(
            f"returns: rank {rank} was at {addresses[rank]} and is at {own}; "
            "valid: the same address"
        )
    rendezvous.world = len(addresses)
    if facts["certificates"] is not None:
        rendezvous.identity = Identity(rank)
        rendezvous.identity.meet([facts["certificates"]])
    return opening
