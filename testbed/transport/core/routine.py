"""A connection's *routine*: what it does while nothing happens, which needs no decision.

Who drives the connection may do it instead, with less than a wake-up for each batch, and reports
before it calls anything else: that is the same as `offer` and `sent`, or `on_datagrams`, then.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.gathering import Gathering
from testbed.transport.core.hot_path import Composer, Placement
from testbed.transport.core.pacing import Pacer


def promises(part: object, name: str) -> bool:
    """Whether the class of a policy itself has this attribute."""
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
