"""A connection's *routine*: what it does while nothing happens, which needs no decision.

A sender of a steady rate sends its next batches when the pacer lets it; a receiver takes what has
gathered, and says nothing. Who drives the connection may do that in its stead, with less than a
wake-up each: it asks what there is (`Connection.departures`, `Connection.expected`), does some of
it, and reports (`Connection.departed`, `Connection.arrived`) before it calls anything else. As soon
as anything else happens it stops. To report is the same as to have called `offer` and `sent`, or
`on_datagrams`, at those times.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.gathering import Gathering
from testbed.transport.core.hot_path import Composer, Placement
from testbed.transport.core.pacing import Pacer


def promises(part: object, name: str) -> bool:
    """Whether the class of a policy itself has this attribute.

    What `steady`, `certain` and `quiet` promise is not inherited: a subclass may have changed what
    it rests on. One that has not says it again.
    """
    return name in vars(type(part))


class Departures(NamedTuple):
    """Datagrams that may go in this order, none of which asks for an ACK.

    Attributes:
        composer: writes them, with send indices from `first` on.
        chunks: one for each, shape (count,).
        beyond: how many more wait behind these; a batch need not be short because of them.
        pacer: says when they go. Who has sent some sets its `tokens` and `refilled_s`.
    """

    composer: Composer
    chunks: NDArray[np.int64]
    first: int
    beyond: int
    pacer: Pacer


class Quiet(NamedTuple):
    """How many datagrams may come before a receiver's repair has anything to say.

    Attributes:
        budget: each that comes costs 1 of it; when it is overdrawn, something is said.
        newest: that holds for those that were sent after the one with this number, as long as
            they come in the order of their sending and none asks for an ACK; negative for any.
        lost_cost: what each costs that is missing in that order.
        likely: how many will come until then, as far as the last ones tell.
    """

    budget: float
    newest: int = -1
    lost_cost: float = 1.0
    likely: float = math.inf


NOT_QUIET = Quiet(0, likely=0)


class Expected(NamedTuple):
    """Datagrams of one transfer of which nothing will be said at first.

    Attributes:
        placement: takes them.
        gathering: says how long they may gather, and is told how many came.
        missing: so many new chunks could be enough.
        most_s: the longest that they may gather.
        quiet: until when nothing is said.
    """

    placement: Placement
    gathering: Gathering
    missing: int
    most_s: float
    quiet: Quiet
