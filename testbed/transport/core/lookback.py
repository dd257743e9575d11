"""What earlier transfers from a peer took, for stop rules that look back on them."""

from collections import deque

# The latest transfers of each layout, and of all; and the first ones of all.
_RECENT, _MOST_RECENT = 16, 512
MOST_EARLIEST = 64


class Lookback:
    """By transfer, the seconds from its first sign until there was enough, and its chunks then.

    Attributes:
        recent: the latest, the oldest first.
        earliest: the first MOST_EARLIEST.
    """

    def __init__(self, layout_count: int = 1) -> None:
        """Transfers take turns with so many layouts."""
        self.recent: deque[tuple[float, int]] = deque(
            maxlen=min(_RECENT * layout_count, _MOST_RECENT)
        )
        self.earliest: list[tuple[float, int]] = []

    def note(self, took: tuple[float, int]) -> None:
        """A transfer has ended."""
        self.recent.append(took)
        if len(self.earliest) < MOST_EARLIEST:
            self.earliest.append(took)
