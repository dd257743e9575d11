"""What earlier transfers took, for stop rules that look back on them."""

from collections import deque
from collections.abc import Sequence

# The latest transfers of each layout, and of all; and the first ones of all.
_RECENT, _MOST_RECENT = 16, 512
MOST_EARLIEST = 64

# The seconds from a transfer's first sign until there was enough, and its chunks then.
Took = tuple[float, int]


class Slowest:
    """Of each transfer, what it took from the peer that took longest.

    Who waits for several peers waits for that one: all connections of one side share this.
    """

    def __init__(self, layout_count: int = 1) -> None:
        """Transfers take turns with so many layouts."""
        self._took: dict[int, Took] = {}
        self._most = _most(layout_count)

    def note(self, transfer: int, took: Took) -> None:
        """A transfer has ended with one of the peers."""
        if took > self._took.get(transfer, (-1.0, 0)):
            self._took[transfer] = took
        if len(self._took) > self._most:
            del self._took[min(self._took)]

    def before(self, transfer: int) -> Sequence[Took]:
        """What the latest transfers took that have lower numbers; in no order."""
        return [took for number, took in self._took.items() if number < transfer]


class Lookback:
    """What transfers from one peer took.

    Attributes:
        recent: the latest, the oldest first.
        earliest: the first MOST_EARLIEST.
        slowest: what they took from whoever took longest.
    """

    def __init__(self, layout_count: int = 1, slowest: Slowest | None = None) -> None:
        """Transfers take turns with so many layouts. Without `slowest` there is only this peer."""
        self.recent: deque[Took] = deque(maxlen=_most(layout_count))
        self.earliest: list[Took] = []
        self.slowest = slowest or Slowest(layout_count)

    def note(self, transfer: int, took: Took) -> None:
        """A transfer from this peer has ended."""
        self.recent.append(took)
        if len(self.earliest) < MOST_EARLIEST:
            self.earliest.append(took)
        self.slowest.note(transfer, took)


def _most(layout_count: int) -> int:
    return min(_RECENT * layout_count, _MOST_RECENT)
