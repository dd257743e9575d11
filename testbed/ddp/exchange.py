"""All ends that a rank has in the exchange of known buckets, opened together."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.ddp import plan
from testbed.ddp.meeting import Meeting
from testbed.ddp.places import Places
from testbed.ddp.settings import Settings
from testbed.ddp.side import SERVER, OwnerSide, Side, WorkerSide, name_of
from testbed.transport import EndpointConfig
from testbed.transport.core.wire import U32_MAX

_JOIN_S = 5.0


class Exchange:
    """This rank's ends.

    Attributes:
        plan: the buckets of each step.
    """

    def __init__(
        self,
        settings: Settings,
        meeting: Meeting,
        places: Places,
        *,
        buckets: plan.Plan,
        session: int,
        on_failure: Callable[[int, Exception], None],
    ) -> None:
        """Opens the ends in their threads. `session` is the same on all ranks."""
        self.plan = buckets
        self._rank = meeting.rank
        self._owners = plan.owners(settings.collective, meeting.world)
        self._sides: dict[int, Side] = {}
        for place, owner in enumerate(self._owners):
            layout = plan.layout_of(buckets, place, len(self._owners), settings.chunk_bytes)
            if layout is None:
                continue
            is_owner = owner == meeting.rank
            others = [rank for rank in range(meeting.world) if rank != owner]
            peers = (
                {name_of(rank): places.addresses[rank] for rank in others}
                if is_owner
                else {SERVER: places.addresses[owner]}
            )
            config = EndpointConfig(
                session=(session + owner) & U32_MAX,
                name=SERVER if is_owner else name_of(meeting.rank),
                bind_address=places.addresses[meeting.rank],
                peers=peers,
                is_server=is_owner,
                protocol=settings.protocol,
                layout=layout,
                tensor_by_tensor=True,
                rate_bps=settings.rate_bps / len(others),
                queue_bytes=settings.queue_bytes / len(others),
                control_port=places.ports[owner],
                data_port=places.ports[owner] + 1 if is_owner else 0,
                credentials=places.credentials(owner),
                insecure=settings.insecure,
                seed=meeting.rank,
                # A worker waits longer: what it waits for may be the owner's patience with another.
                peer_timeout_s=settings.timeout_s / (2 if is_owner else 1),
                connect_timeout_s=settings.timeout_s / 2,
                transfers_in_flight=settings.transfers_in_flight,
                leave_out=settings.leave_out,
            )
            common: Any = {"owner": owner, "on_failure": on_failure}
            self._sides[place] = (
                OwnerSide(config, settings.filled, world=meeting.world, **common)
                if is_owner
                else WorkerSide(config, settings.filled, **common)
            )
        for side in self._sides.values():
            side.start()

    def parts(self, index: int) -> Iterator[tuple[Side, int, slice]]:
        """The ends that take part in a bucket, each with its tensor and its part of the bucket."""
        for place, side in self._sides.items():
            part = plan.shard(self.plan[index].elements, place, len(self._owners))
            if part.stop > part.start:
                earlier = (
                    plan.shard(each.elements, place, len(self._owners))
                    for each in self.plan[:index]
                )
                yield side, sum(each.stop > each.start for each in earlier), part

    def owed(self, index: int) -> NDArray[np.float32]:
        """What was never delivered of this rank's gradients, for a bucket: shape (elements,)."""
        owed = np.zeros(self.plan[index].elements, dtype=np.float32)
        for side, tensor, part in self.parts(index):
            kept = side.owed(tensor)
            if kept is not None:
                owed[part] = kept
        return owed

    def forget(self) -> None:
        """Owes nothing any more."""
        for side in self._sides.values():
            side.forget()

    def stop(self) -> None:
        """Lets all ends end; returns at once."""
        for side in self._sides.values():
            side.stop()

    def close(self) -> None:
        """Ends all ends; what was said before still arrives."""
        self.stop()
        for side in self._sides.values():
            side.join(_JOIN_S)
