"""The settings that all connections of one side share, and the reasons to give up a peer."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from testbed.transport.fast_path import NUMPY, FastPath
from testbed.transport.layout import PayloadLayout, layout_of
from testbed.transport.messages import MAX_ENERGY_BYTES, check_u32
from testbed.transport.order import ChunkOrder
from testbed.transport.repair.base import Repair
from testbed.transport.tolerance import ALIKE, RECENT

# Finished transfers that are remembered. What may still come for one crossed its STOP on the way,
# and one peer's transfers in flight are few. What comes for an older one passes for stale, too.
REMEMBERED = 64
# Transfers whose times are remembered, however many layouts rotate.
_MOST_RECENT = 512

# Of so many datagrams that are about to be sent: which are left out, shape (count,); None: none.
LeaveOut = Callable[[int], NDArray[np.bool_] | None]
# The seconds from a transfer's first sign until its receiver stopped, and the chunks that came.
Took = tuple[float, int]


class SlowestPeer:
    """Records what each transfer took from the peer that took longest."""

    def __init__(self, layout_count: int = 1, in_flight: int = 1) -> None:
        """Up to `in_flight` transfers may be under way at once."""
        self.remembered = min(RECENT * layout_count, _MOST_RECENT)  # transfers
        self.sides: WeakSet[Any] = WeakSet()  # each peer's `Incoming`, while the connection exists
        self._took: dict[int, Took] = {}
        self._unsure = in_flight - 1

    def note(self, transfer: int, took: Took) -> None:
        before = self._took.get(transfer)
        if before is None or _counts_more(took, before):
            self._took[transfer] = took
        if len(self._took) > self.remembered + self._unsure:
            del self._took[min(self._took)]

    def before(self, transfer: int) -> Sequence[Took]:
        """Returns the times of the latest lower transfers that have ended with all peers."""
        lower = sorted(number for number in self._took if number < transfer)
        sure = max(0, len(lower) - self._unsure)
        under_way = min(
            (min(side.receivers, default=transfer) for side in self.sides), default=transfer
        )
        return [
            self._took[number]
            for place, number in enumerate(lower)
            if place < sure or number < under_way
        ]


def _counts_more(took: Took, other: Took) -> bool:
    """The longer one of two alike counts, else the one with more chunks: the other was cut."""
    if took[1] >= ALIKE * other[1] or other[1] >= ALIKE * took[1]:
        return took[1] > other[1]
    return took[0] > other[0]


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """All connections of one side share these."""

    session: int  # 32 bits that tell this run from others
    layout: PayloadLayout  # equal on both sides
    repair: Repair
    order: ChunkOrder  # the order in which this side sends
    peer_timeout_s: float = 30.0
    late_s: float | None = None
    transfers_in_flight: int = 4  # how many transfers may be under way in each direction
    tensor_by_tensor: bool = False  # whether each transfer carries one tensor; equal on both sides
    control_datagrams: bool = False  # whether control messages go in datagrams; equal on both sides
    fast_path: FastPath = NUMPY  # who composes and places datagrams

    def __post_init__(self) -> None:
        if self.order.sends_energy and self.largest_layout.chunk_count > MAX_ENERGY_BYTES:
            raise ValueError(
                f"the order sends the energy of each of {self.largest_layout.chunk_count} chunks; "
                f"valid: at most {MAX_ENERGY_BYTES}, so larger chunks or another order"
            )

    @cached_property
    def largest_layout(self) -> PayloadLayout:
        """The layout of the transfers with the most chunks."""
        layouts = self.layout.of_tensors if self.tensor_by_tensor else [self.layout]
        return max(layouts, key=lambda layout: layout.chunk_count)

    @cached_property
    def layout_count(self) -> int:
        """So many layouts rotate from round to round."""
        return len(self.layout.of_tensors) if self.tensor_by_tensor else 1

    @cached_property
    def slowest(self) -> SlowestPeer:
        return SlowestPeer(self.layout_count, self.transfers_in_flight)

    def layout_of(self, transfer: int) -> PayloadLayout:
        return layout_of(transfer, self.layout, tensor_by_tensor=self.tensor_by_tensor)


# When to give up a peer; why, as a text with the fields of `Connection`'s formatting; and the
# transfer. It is asked for at every wake-up, so the text is formatted only when it is due.
Timeout = tuple[float, str, int]

NEVER: Timeout = (math.inf, "", 0)
SILENT = "silent for {timeout_s:g} s"
DATA_BLOCKED = "control works, data does not arrive"
BOTH_HOLD = "both sides send and neither receives, for {timeout_s:g} s"
LATE = "it answers, but has not come to transfer {transfer} for {late_s:g} s"
NO_NEW_CHUNK = ": no new chunk of transfer {transfer} for {timeout_s:g} s"


class TransferNumbers:
    """The transfers of one direction that were begun, and those that have finished."""

    def __init__(self, peer: str, most: int) -> None:
        """At most `most` may be in flight with this peer."""
        self.last = -1  # the largest number begun, -1 for none
        self._peer = peer
        self._most = most
        self._finished: deque[int] = deque()
        self._forgotten = -1  # up to this number finished transfers are no longer remembered

    def check(self, transfer: int, in_flight: int) -> None:
        """Raises ValueError unless a transfer of this number may begin now."""
        check_u32("transfer", transfer)
        if transfer <= self.last:
            raise ValueError(
                f"transfer {transfer} with {self._peer} comes after {self.last}; "
                "numbers must ascend"
            )
        if in_flight >= self._most:
            raise ValueError(
                f"transfer {transfer} with {self._peer}: {in_flight} are in flight already; "
                f"valid: at most {self._most}"
            )

    def finish(self, transfer: int) -> None:
        self._finished.append(transfer)
        if len(self._finished) > REMEMBERED:
            self._forgotten = max(self._forgotten, self._finished.popleft())

    def has_finished(self, transfer: int) -> bool:
        """Returns whether it finished, perhaps too long ago to tell."""
        return transfer in self._finished or transfer <= self._forgotten
