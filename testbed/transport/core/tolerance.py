"""The interface of tolerances: a policy for the whole run, and its stop rule for one transfer.

Write a subclass of `TolerancePolicy`, usually a frozen dataclass whose fields are its options. One
that is a fraction of the chunks implements `tolerance` alone, any other `stop_rule`, too.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.path_estimates import PathEstimates


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The information that a stop rule may use.

    Attributes:
        received: which chunks have arrived, shape (chunk_count,); must not be modified.
        received_count: how many of them.
        now_s: the present time.
        first_arrival_s, last_arrival_s: when the first and the latest new chunk arrived; or None.
        probes: how many passes the sender has ended; without passes, how many PROBEs arrived.
        worth: what each chunk is worth, shape (chunk_count,), in the bytes of `core.worth`; None
            while the sender has not told.
        first_sign_s: when the first chunk or `worth` arrived, but not before this side asked for
            the transfer; None before both.
        recent: of the latest transfers from this peer, the oldest first, the seconds from the first
            sign until the receiver had enough, and how many chunks it had then.
        earliest: the same of the first MOST_EARLIEST transfers from this peer.
        slowest: as `recent`, of whichever peer took longest for each transfer.
        round_trip_s: the smallest to this peer that this side measured, as a sender; or None.
        ends_s: when the stop rule looks again although nothing arrives; None for never.
    """

    received: NDArray[np.bool_]
    received_count: int
    now_s: float
    first_arrival_s: float | None
    last_arrival_s: float | None
    probes: int
    worth: NDArray[np.uint8] | None = None
    first_sign_s: float | None = None
    recent: Sequence[tuple[float, int]] = ()
    earliest: Sequence[tuple[float, int]] = ()
    slowest: Sequence[tuple[float, int]] = ()
    round_trip_s: float | None = None
    ends_s: float | None = None


class StopRule(ABC):
    """Decides when a transfer's receiver has enough. All chunks are always enough.

    Attributes:
        looks_back: whether it is told the `slowest`.
    """

    looks_back = False

    @abstractmethod
    def satisfied(self, progress: Progress) -> bool:
        """Whether the transfer may stop now."""

    def deadline_s(self, progress: Progress) -> float | None:
        """When to ask again even if nothing arrives; None (the default) for never."""
        return None

    def missing(self, progress: Progress) -> int | None:
        """How many more chunks must arrive, at the least; None (the default): look at each."""
        return None


StopRuleFactory = Callable[[PayloadLayout], StopRule]


class TolerancePolicy(ABC):
    """How much a receiver may give up, depending on the phase of the training.

    `str` gives the text from which `as_policy` makes an equal one; subclasses leave it alone.

    Attributes:
        needs_worth: whether its stop rules need an order that tells what chunks are worth.
        own_text: of a policy in a user's own file; set by `as_policy`.
    """

    own_text = ""
    needs_worth = False

    def __str__(self) -> str:
        return self.own_text or self.as_text()

    def as_text(self) -> str:
        """The text of a built-in policy; one in a user's own file needs none."""
        return repr(self)

    @abstractmethod
    def tolerance(self, critical: bool) -> float:
        """The part of the chunks that may be missing, 0 <= P < 1, in a critical regime or not."""

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        """Returns the factory of stop rules for transfers in this phase."""
        tolerance = self.tolerance(critical)
        return lambda layout: FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance)


class FractionRule(StopRule):
    """Stops once received / total >= 1 - P (DBLP, arXiv 2605.01989; before it MLT, NSDI 2024)."""

    def __init__(self, *, chunk_count: int, tolerance: float) -> None:
        self.required = required_chunks(chunk_count, tolerance)

    def satisfied(self, progress: Progress) -> bool:
        return progress.received_count >= self.required

    def missing(self, progress: Progress) -> int:
        return self.required - progress.received_count


def check_tolerance(tolerance: float, name: str = "tolerance") -> None:
    if not (isinstance(tolerance, int | float) and 0 <= tolerance < 1):
        raise ValueError(f"{name} is {tolerance!r}; valid: 0 (reliable) up to but not including 1")


@functools.lru_cache(maxsize=256)  # fractions are slow, and each transfer asks
def required_chunks(chunk_count: int, tolerance: float) -> int:
    """ceil(chunk_count * (1 - tolerance)), at least 1, computed exactly for decimal tolerances."""
    check_tolerance(tolerance)
    given_up = Fraction(tolerance).limit_denominator(10**9)
    return max(1, math.ceil(chunk_count * (1 - given_up)))


# The latest transfers of each layout, and of all; and the first ones of all.
RECENT, _MOST_RECENT = 16, 512
MOST_EARLIEST = 64

# Transfers are of like size up to this factor between the numbers of their chunks.
ALIKE = 2

# The seconds from a transfer's first sign until there was enough, and its chunks then.
Took = tuple[float, int]


class Slowest:
    """Of each transfer, what it took from the peer that took longest."""

    def __init__(self, layout_count: int = 1, in_flight: int = 1) -> None:
        """Transfers take turns with so many layouts; so many may be under way at once."""
        self._took: dict[int, Took] = {}
        self._unsure = in_flight - 1
        self._sides: WeakSet[Any] = WeakSet()
        self._most = _most(layout_count) + self._unsure

    def join(self, side: Any) -> None:
        """One more peer's `Incoming` counts, as long as that connection is there."""
        self._sides.add(side)

    def note(self, transfer: int, took: Took) -> None:
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
            (min(side.receivers, default=transfer) for side in self._sides), default=transfer
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
        self.recent.append(took)
        if len(self.earliest) < MOST_EARLIEST:
            self.earliest.append(took)
        self.slowest.note(transfer, took)


def _tells_more(took: Took, other: Took) -> bool:
    """Whether it is the longer one of two that are alike; one that was cut short tells less."""
    if took[1] >= ALIKE * other[1] or other[1] >= ALIKE * took[1]:
        return took[1] > other[1]
    return took[0] > other[0]


def _most(layout_count: int) -> int:
    return min(RECENT * layout_count, _MOST_RECENT)
