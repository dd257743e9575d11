"""The numbers of transfers: two legs in each round; they ascend, and few are in flight."""

from collections import deque
from enum import IntEnum

from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.messages import check_u32

# Finished transfers that are remembered. What may still come for one crossed its STOP on the way,
# and one peer's transfers in flight are few. What comes for an older one passes for stale, too.
REMEMBERED = 64


class Leg(IntEnum):
    """The two directions of a round; a transfer's number is 2 * round + leg."""

    GATHER = 0  # worker to server
    BROADCAST = 1  # server to worker

    def transfer(self, round_index: int) -> int:
        """The number of this leg's transfer in round `round_index` (from 0)."""
        return 2 * round_index + self

    @staticmethod
    def round_of(transfer: int) -> int:
        """The round to which a transfer's number belongs."""
        return transfer // 2


def layout_of(transfer: int, layout: PayloadLayout, *, tensor_by_tensor: bool) -> PayloadLayout:
    """What a transfer carries: the whole layout, or one tensor, in turn with each round."""
    if not tensor_by_tensor:
        return layout
    return layout.each[Leg.round_of(transfer) % len(layout.each)]


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

    def begin(self, transfer: int) -> None:
        self.last = transfer

    def finish(self, transfer: int) -> None:
        self._finished.append(transfer)
        if len(self._finished) > REMEMBERED:
            self._forgotten = max(self._forgotten, self._finished.popleft())

    def has_finished(self, transfer: int) -> bool:
        """Whether it finished, or may have done so too long ago to tell."""
        return transfer in self._finished or transfer <= self._forgotten
