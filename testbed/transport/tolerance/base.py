"""What a tolerance is: a policy for the whole run, and the stop rule it gives one transfer.

The *policy* is what an experiment configures: how much of a transfer may be given up, now. The
*stop rule* is made from it for one transfer and asked by the receiver, over and over, whether
what has arrived is enough.

To add a policy, write one file beside this one with a subclass of `TolerancePolicy`, usually a
frozen dataclass whose fields are its options, and add it to POLICIES in `__init__.py`. A policy
that is a fraction of the chunks implements `tolerance` and is done. Any other also overrides
`stop_rule` and returns a `StopRule` of its own, which sees the bitmap, the counts, the layout
(given when the rule is made) and the time, and may name a deadline at which it wants to be asked
again although nothing has arrived.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from testbed.transport.layout import PayloadLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What a stop rule may look at.

    Attributes:
        received: which chunks are here, shape (chunk_count,); not to be written to.
        received_count: how many of them.
        now_s: the present.
        first_arrival_s, last_arrival_s: when the first and the latest new chunk came; None
            before the first.
        probes: how often the sender asked so far, that is, how many passes it has ended.
    """

    received: NDArray[np.bool_]
    received_count: int
    now_s: float
    first_arrival_s: float | None
    last_arrival_s: float | None
    probes: int


class StopRule(ABC):
    """Decides for one transfer when the receiver has enough. All chunks are always enough."""

    @abstractmethod
    def satisfied(self, progress: Progress) -> bool:
        """Whether the transfer may stop now."""

    def deadline_s(self, progress: Progress) -> float | None:
        """When to ask again even if nothing arrives; None (the default) for never."""
        return None


StopRuleFactory = Callable[[PayloadLayout], StopRule]


class TolerancePolicy(ABC):
    """How much a receiver may give up, depending on the phase of the training.

    `str` gives the text from which `as_policy` makes an equal one.
    """

    own_text = ""  # of a policy in a user's own file: set by `as_policy`

    def __str__(self) -> str:
        return self.own_text or repr(self)

    @abstractmethod
    def tolerance(self, critical: bool) -> float:
        """The fraction P of a transfer's chunks that may be missing, 0 <= P < 1.

        A policy that is more than a fraction says how much it gives up at most.

        `critical` tells whether the training is in a critical learning regime.
        """

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        """What makes the stop rule of a transfer that happens in this phase."""
        tolerance = self.tolerance(critical)
        return lambda layout: FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance)


class FractionRule(StopRule):
    """Stop once received / total >= 1 - P (DBLP, arXiv 2605.01989; before it MLT, NSDI 2024)."""

    def __init__(self, *, chunk_count: int, tolerance: float) -> None:
        self.required = required_chunks(chunk_count, tolerance)

    def satisfied(self, progress: Progress) -> bool:
        return progress.received_count >= self.required


def check_tolerance(tolerance: float, name: str = "tolerance") -> None:
    """Raises ValueError unless 0 <= tolerance < 1."""
    if not (isinstance(tolerance, int | float) and 0 <= tolerance < 1):
        raise ValueError(f"{name} is {tolerance!r}; valid: 0 (reliable) up to but not including 1")


def check_seconds(seconds: float, name: str) -> None:
    """Raises ValueError unless it is a finite time above 0."""
    if not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise ValueError(f"{name} is {seconds!r}; valid: seconds, above 0")


def required_chunks(chunk_count: int, tolerance: float) -> int:
    """ceil(chunk_count * (1 - tolerance)), at least 1, exact for the decimal that was meant.

    Floating point alone would ask for a chunk too many here and there: the product of 1000 and
    1 - 0.008 has to be 992, not the next integer above 992.0000000000001.
    """
    check_tolerance(tolerance)
    given_up = Fraction(tolerance).limit_denominator(10**9)
    return max(1, math.ceil(chunk_count * (1 - given_up)))
