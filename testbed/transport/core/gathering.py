"""How long datagrams may gather in a receiver's socket before they are read.

Reading each as it comes costs a wake-up each. A receiver has nothing to do with most of them, so
it lets them gather: until about GATHERED have come at the present rate, but never longer than its
repair allows, nor for more than half of what is missing to its stop. Nothing is known before the
rate is, so the first ones of a connection are read as they come.
"""

# As many as one segmented send of the peer.
GATHERED = 44
# A shorter rest saves nothing.
LEAST_S = 2.5e-4
# The rate is measured over at least so long, and not over longer pauses, in which nothing was sent.
_WINDOW_S = 1e-3
_PAUSE_S = 2e-2
# A rate that was seen before is expected again: a burst of losses may end at any time.
_DECAY = 0.9


class Gathering:
    """The rate of arrivals from one peer, and how long they may gather."""

    def __init__(self) -> None:
        self._rate = 0.0  # datagrams per second
        self._count = 0
        self._since_s = self._last_s = float("-inf")

    def arrived(self, datagrams: int, now_s: float) -> None:
        """So many were read now."""
        if now_s - self._last_s > _PAUSE_S:
            self._since_s, self._count = now_s, 0
        else:
            self._count += datagrams
            elapsed_s = now_s - self._since_s
            if elapsed_s >= _WINDOW_S:
                self._rate = max(self._count / elapsed_s, _DECAY * self._rate)
                self._since_s, self._count = now_s, 0
        self._last_s = now_s

    def wait_s(self, missing: int, most_s: float) -> float:
        """How long the next ones may gather when `missing` chunks could be enough; 0 for not."""
        if not self._rate:
            return 0.0
        wait_s = min(most_s, min(GATHERED, missing / 2) / self._rate)
        return wait_s if wait_s >= LEAST_S else 0.0
