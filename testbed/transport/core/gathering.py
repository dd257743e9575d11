"""How long datagrams may gather in a receiver's socket before they are read.

Until about GATHERED have come at the present rate, as long as the repair allows, and for half of
what is missing to the stop; the first ones of a connection are read as they come.
"""

# As many as one segmented send of the peer.
GATHERED = 44
# A shorter rest saves nothing.
LEAST_S = 2.5e-4
# Who is awake reads what would otherwise wake it so soon.
COALESCED_S = 1e-3
# The rate is measured over at least so long, and not over longer pauses, in which nothing was sent.
WINDOW_S = 1e-3
PAUSE_S = 2e-2
# A rate that was seen before is expected again: a burst of losses may end at any time.
DECAY = 0.9


class Gathering:
    """The rate of arrivals from one peer, and how long they may gather."""

    def __init__(self) -> None:
        self.rate = 0.0  # in datagrams per second; 0 while unknown
        self.count = 0
        self.since_s = self.last_s = float("-inf")

    def arrived(self, datagrams: int, now_s: float) -> None:
        """So many were read now."""
        if now_s - self.last_s > PAUSE_S:
            self.since_s, self.count = now_s, 0
        else:
            self.count += datagrams
            elapsed_s = now_s - self.since_s
            if elapsed_s >= WINDOW_S:
                self.rate = max(self.count / elapsed_s, DECAY * self.rate)
                self.since_s, self.count = now_s, 0
        self.last_s = now_s

    def ceased(self, latest_s: float) -> bool:
        """Whether a stream has paused whose latest datagram came then, while others came."""
        return self.last_s - latest_s > PAUSE_S

    def wait_s(self, missing: int, most_s: float) -> float:
        """How long the next ones may gather when `missing` chunks could be enough; 0 for not."""
        if not self.rate:
            return 0.0
        wait_s = min(most_s, min(GATHERED, missing / 2) / self.rate)
        return wait_s if wait_s >= LEAST_S else 0.0
