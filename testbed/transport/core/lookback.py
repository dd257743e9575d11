"""What earlier transfers took, for stop rules that look back on them."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakSet

from testbed.transport.core.path_estimates import PathEstimates

# The latest transfers of each layout, and of all; and the first ones of all.
RECENT, _MOST_RECENT = 16, 512
MOST_EARLIEST = 64

# Transfers are of like size up to this factor between the numbers of their chunks.
ALIKE = 2

# The seconds from a transfer's first sign until there was enough, and its chunks then.
Took = tuple[float, int]


class Receiving(Protocol):
    """What receives from one peer: its transfers that are under way, by number."""

    receivers: dict[int, Any]


class Slowest:
    """Of each transfer, what it took from the peer that took longest."""

    def __init__(self, layout_count: int = 1, in_flight: int = 1) -> None:
        """Transfers take turns with so many layouts; so many may be under way at once."""
        self._took: dict[int, Took] = {}
        self._unsure = in_flight - 1
        self._sides: WeakSet[Receiving] = WeakSet()
        self._most = _most(layout_count) + self._unsure

    def join(self, side: "Receiving") -> None:
        """One more peer's transfers count, as long as that connection is there."""
        self._sides.add(side)

    def note(self, transfer: int, took: Took) -> None:
        """A transfer has ended with one of the peers."""
        known = self._took.get(transfer)
        if known is None or _tells_more(took, known):
            self._took[transfer] = took
        if len(self._took) > self._most:
            del self._took[min(self._took)]

    def before(self, transfer: int) -> Sequence[Took]:
        """What the latest transfers took that have lower numbers and have ended with all peers."""
        lower = sorted(number for number in self._took if number < transfer)
        sure = max(0, len(lower) - self._unsure)
        under_way = min(
            (min(each.receivers, default=transfer) for each in self._sides), default=transfer
        )
        return [
            self._took[number]
            for place, number in enumerate(lower)
            if place < sure or number < under_way
        ]


class Lookback:
    """What transfers from one peer took."""

    def __init__(
        self,
        layout_count: int = 1,
        slowest: Slowest | None = None,
        back: PathEstimates | None = None,
    ) -> None:
        """Transfers take turns with so many layouts. Without `slowest` there is only this peer."""
        self.recent: deque[Took] = deque(maxlen=_most(layout_count))  # the latest, the oldest first
        self.earliest: list[Took] = []  # the first MOST_EARLIEST
        self.slowest = slowest or Slowest(layout_count)  # what they took from whoever took longest
        self._back = back

    @property
    def round_trip_s(self) -> float | None:
        """The smallest that this side measured when it sent; None before."""
        if self._back is None or self._back.min_s == math.inf:
            return None
        return self._back.min_s

    def note(self, transfer: int, took: Took) -> None:
        """A transfer from this peer has ended."""
        self.recent.append(took)
        if len(self.earliest) < MOST_EARLIEST:
            self.earliest.append(took)
        self.slowest.note(transfer, took)


def _tells_more(took: Took, known: Took) -> bool:
    """Whether it is the longer one of two that are alike; one that was cut short tells less."""
    if took[1] >= ALIKE * known[1] or known[1] >= ALIKE * took[1]:
        return took[1] > known[1]
    return took[0] > known[0]


def _most(layout_count: int) -> int:
    return min(RECENT * layout_count, _MOST_RECENT)
