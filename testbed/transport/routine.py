"""A connection's *routine*: what its driver may do without a question for each batch.

* A congestion control is `steady`, so that the pacer alone says when datagrams go, and a sender's
  repair is `certain` of so many chunks: together they are `Departures`.
* A receiver's repair is `quiet` for so many datagrams, and a stop rule tells how many chunks are
  `missing`: together they are `Expected`.

All but the last are promises: a subclass has to give its own, for it may have changed what they
rest on. The driver reports before it calls anything else, as if by `sent` or `on_datagrams`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.hot_path import Composer, Placement
from testbed.transport.pacing import Pacer

GATHERED = 44  # as many as one segmented send of the peer
LEAST_S = 2.5e-4  # a shorter rest saves nothing
COALESCED_S = 1e-3  # who is awake reads what would otherwise wake it so soon
# The rate is measured over at least so long, and not over longer pauses, in which nothing was sent.
WINDOW_S = 1e-3
PAUSE_S = 2e-2
# A rate that was seen before is expected again: a burst of losses may end at any time.
DECAY = 0.9


class Gathering:
    """The rate of arrivals from one peer, and how long they may gather in the socket."""

    def __init__(self) -> None:
        self.rate = 0.0  # in datagrams per second; 0 while unknown
        self.count = 0
        self.since_s = self.last_s = -math.inf

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


def promises(part: object, name: str) -> bool:
    """Whether a policy's class gives this promise itself."""
    return name in vars(type(part))


class Departures(NamedTuple):
    """Datagrams that may go in this order, none of which asks for an ACK."""

    composer: Composer  # writes them, with send indices from `first` on
    chunks: NDArray[np.int64]  # one for each, shape (count,)
    first: int
    beyond: int  # how many more wait behind these; a batch need not be short because of them
    pacer: Pacer  # says when they go. Who has sent some sets its `tokens` and `refilled_s`


class Quiet(NamedTuple):
    """How many datagrams may come before a receiver's repair has anything to say."""

    budget: float  # each that comes costs 1 of it; when it is overdrawn, something is said
    newest: int = -1
    lost_cost: float = 1.0  # what each costs that is missing in that order
    likely: float = math.inf  # how many will come until then, as far as the last ones tell


NOT_QUIET = Quiet(0, likely=0)


class Expected(NamedTuple):
    """Datagrams of one transfer of which nothing will be said at first."""

    placement: Placement  # takes them
    gathering: Gathering  # says how long they may gather, and is told how many came
    missing: int  # so many new chunks could be enough
    most_s: float  # the longest that they may gather
    quiet: Quiet  # until when nothing is said
