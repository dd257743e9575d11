"""What all connections of one side share, and when their patience with a peer ends."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from testbed.transport.hot_path import NUMPY, HotPath
from testbed.transport.layout import PayloadLayout, layout_of
from testbed.transport.messages import MAX_WORTH_BYTES, check_u32
from testbed.transport.order import ChunkOrder
from testbed.transport.repair.base import Repair
from testbed.transport.tolerance import Slowest

# Finished transfers that are remembered. What may still come for one crossed its STOP on the way,
# and one peer's transfers in flight are few. What comes for an older one passes for stale, too.
REMEMBERED = 64

# Of so many datagrams that are about to be sent: which are left out, shape (count,); None: none.
LeaveOut = Callable[[int], NDArray[np.bool_] | None]


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """What all connections of one side share."""

    session: int  # 32 bits that tell this run from others
    layout: PayloadLayout  # equal on both sides
    repair: Repair
    order: ChunkOrder  # the order in which this side sends
    peer_timeout_s: float = 30.0
    late_s: float | None = None
    transfers_in_flight: int = 4  # how many transfers may be under way in each direction
    tensor_by_tensor: bool = False  # whether each transfer carries one tensor; equal on both sides
    hot_path: HotPath = NUMPY  # who composes and places datagrams

    def __post_init__(self) -> None:
        if self.order.tells_worth and self.largest_layout.chunk_count > MAX_WORTH_BYTES:
            raise ValueError(
                f"the order tells what each of {self.largest_layout.chunk_count} chunks is worth; "
                f"valid: at most {MAX_WORTH_BYTES}, so larger chunks or another order"
            )

    @cached_property
    def largest_layout(self) -> PayloadLayout:
        """That of the transfers with the most chunks."""
        each = self.layout.each if self.tensor_by_tensor else [self.layout]
        return max(each, key=lambda layout: layout.chunk_count)

    @cached_property
    def layout_count(self) -> int:
        """How many layouts take turns."""
        return len(self.layout.each) if self.tensor_by_tensor else 1

    @cached_property
    def slowest(self) -> Slowest:
        """What the latest transfers took from whichever peer took longest."""
        return Slowest(self.layout_count, self.transfers_in_flight)

    def layout_of(self, transfer: int) -> PayloadLayout:
        return layout_of(transfer, self.layout, tensor_by_tensor=self.tensor_by_tensor)


# The time, a text with the fields of `Connection`'s formatting, and the transfer. It is asked for
# at every wake-up, so the text is formatted only when the time has come.
Patience = tuple[float, str, int]

NEVER: Patience = (math.inf, "", 0)
NO_DOUBT = (math.inf, math.inf)  # see `Connection.doubt`
SILENT = "silent for {timeout_s:g} s"
DATA_BLOCKED = "control works, data does not arrive"
BOTH_HOLD = "both sides send and neither receives, for {timeout_s:g} s"
LATE = "it answers, but has not come to transfer {transfer} for {late_s:g} s"
NO_NEW_CHUNK = ": no new chunk of transfer {transfer} for {timeout_s:g} s"


class Numbers:
    """Which transfers of one direction were begun, and which have finished."""

    def __init__(self, peer: str, most: int) -> None:
        """At most `most` may be in flight with this peer."""
        self.last = -1  # the largest number begun, -1 for none
        self._peer = peer
        self._most = most
        self._finished: deque[int] = deque()
        self._forgotten = -1  # up to this number what has finished is no longer remembered

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
        """Whether it finished, or may have done so too long ago to tell."""
        return transfer in self._finished or transfer <= self._forgotten
