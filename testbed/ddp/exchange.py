"""All ends that a rank has in the exchange of known buckets, opened together."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.ddp import plan
from testbed.ddp.endpoint_thread import SERVER, EndpointThread, OwnerThread, WorkerThread, name_of
from testbed.ddp.places import Places, Ports
from testbed.ddp.rendezvous import Rendezvous
from testbed.ddp.residuals import Residual
from testbed.ddp.settings import Settings
from testbed.transport import EndpointConfig
from testbed.transport.wire import U32_MAX

# For a late rank's last mean; an end that has failed is over at once.
_JOIN_S = 60.0
_MEET_S = 60.0
# The threads of a rank answer while it computes, so one that does not has stopped or is cut off.
_SILENT_S = 30.0
# So many steps the others may be ahead of a late rank, and so many means at most wait for it.
_STEPS_AHEAD = 2
_MOST_AHEAD = 32  # a peer remembers twice as many transfers that were given up before it came


def _in_flight(settings: Settings, parts: int) -> int:
    """How many transfers may be under way with a peer, of so many parts in a step."""
    if not settings.late_share:
        return settings.transfers_in_flight
    return min(max(settings.transfers_in_flight, _STEPS_AHEAD * parts), _MOST_AHEAD)


class Exchange:
    """This rank's ends."""

    def __init__(
        self,
        settings: Settings,
        rendezvous: Rendezvous,
        places: Places,
        *,
        buckets: plan.Plan,
        session: int,
        ports: Ports,
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        """`session` is the same on all ranks; `start` opens the ends in their threads."""
        self.plan = buckets
        self._rank = rendezvous.rank
        self._owners = plan.owners(settings.collective, rendezvous.world)
        self._chunk_bytes = places.chunk_bytes
        self._threads: dict[int, EndpointThread] = {}
        for place, owner in enumerate(self._owners):
            layout = plan.layout_of(buckets, place, len(self._owners), self._chunk_bytes)
            if layout is None:
                continue
            is_owner = owner == rendezvous.rank
            others = [rank for rank in range(rendezvous.world) if rank != owner]
            peers = (
                {name_of(rank): places.addresses[rank] for rank in others}
                if is_owner
                else {SERVER: places.addresses[owner]}
            )
            config = EndpointConfig(
                session=(session + owner) & U32_MAX,
                name=SERVER if is_owner else name_of(rendezvous.rank),
                bind_address=places.addresses[rendezvous.rank],
                peers=peers,
                is_server=is_owner,
                protocol=settings.protocol_on(inside=places.inside),
                layout=layout,
                tensor_by_tensor=True,
                rate_bps=settings.rate_bps / len(others),
                queue_bytes=settings.queue_bytes / len(others),
                control_port=ports.control[owner],
                data_port=ports.data[owner] if is_owner else 0,
                credentials=places.credentials(owner),
                insecure=settings.insecure,
                segmentation=settings.segmentation,
                seed=rendezvous.rank,
                peer_timeout_s=min(_SILENT_S, rendezvous.timeout_s / 3),
                # A worker waits longer: what it waits for may be the owner's patience with another.
                late_s=rendezvous.timeout_s / (2 if is_owner else 1),
                # All ranks have just met, so who does not come cannot.
                connect_timeout_s=min(_MEET_S, rendezvous.timeout_s / 2),
                transfers_in_flight=_in_flight(settings, len(layout.each)),
                leave_out=settings.leave_out,
            )
            # What arrives of all others at once takes at most twice the gradient's memory.
            largest = max(each.element_count for each in layout.each) * len(others)
            fitting = max(1, 2 * sum(bucket.elements for bucket in buckets) // largest)
            common: Any = {
                "owner": owner,
                "at_once": min(settings.transfers_in_flight, config.transfers_in_flight, fitting),
                "on_failure": on_failure,
            }
            self._threads[place] = (
                OwnerThread(
                    config,
                    settings.filled,
                    world=rendezvous.world,
                    late_share=settings.late_share,
                    min_ranks=settings.min_ranks or rendezvous.world,
                    **common,
                )
                if is_owner
                else WorkerThread(config, settings.filled, **common)
            )
        self.residuals: list[Residual] = [
            residual for thread in self._threads.values() for residual in thread.residuals
        ]

    def start(self) -> None:
        """Opens all ends, each in its thread."""
        for thread in self._threads.values():
            thread.start()

    def _part(self, index: int, place: int) -> slice:
        elements = self.plan[index].elements
        return plan.shard(elements, place, len(self._owners), self._chunk_bytes)

    def parts(self, index: int) -> Iterator[tuple[EndpointThread, int, slice]]:
        """The ends that take part in a bucket, each with its tensor and its part of the bucket."""
        for place, thread in self._threads.items():
            part = self._part(index, place)
            if part.stop > part.start:
                before = [self._part(number, place) for number in range(index)]
                yield thread, sum(each.stop > each.start for each in before), part

    def residual(self, index: int) -> NDArray[np.float32]:
        """What was never delivered of this rank's gradients, for a bucket: shape (elements,)."""
        owed = np.zeros(self.plan[index].elements, dtype=np.float32)
        for thread, tensor, part in self.parts(index):
            if thread.residuals:
                owed[part] = thread.residuals[tensor].values
        return owed

    @property
    def own(self) -> OwnerThread | None:
        """The end of which this rank is the owner; None where it averages nothing."""
        ends = (thread for thread in self._threads.values() if isinstance(thread, OwnerThread))
        return next(ends, None)

    def go_on_at(self, part: int) -> None:
        """This rank has come back, and takes part from this part on."""
        for thread in self._threads.values():
            thread.go_on_at(part)

    def stop(self) -> None:
        """Lets all ends end; returns at once."""
        for thread in self._threads.values():
            thread.stop()

    def close(self) -> None:
        """Ends all ends, once ranks that are late have what they were promised."""
        for thread in self._threads.values():
            thread.finish()
        for thread in self._threads.values():
            thread.join(_JOIN_S)
