"""A tolerance of time alone: "OptiReduce-style" (Warraich et al., NSDI 2025, arXiv 2310.06993).

The hard bound, t_B, is the 95th percentile of 20 runs at start-up, which are reliable. Once the
senders' last packets have come, the receiver waits only for a fraction of t_C, a moving average.
Assumptions of ours: the fraction is a constant, and t_C the mean of the latest 16 transfers; the
first transfers from each peer take the place of the runs at start-up; both count from the first
sign of a transfer; a PROBE says that all have been sent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.lookback import MOST_EARLIEST
from testbed.transport.core.tolerance import (
    Progress,
    StopRule,
    StopRuleFactory,
    TolerancePolicy,
)

# A transfer that takes exactly the bound has come in time, whatever the rounding.
_ROUNDING_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class TimeBound(TolerancePolicy):
    """Stops at a time that warm-up transfers have set, or soon after all has been sent.

    Args:
        warm_up: so many transfers from each peer are complete; their times set the bound.
        quantile: the bound is this quantile of them, by nearest rank; above 0, up to 1.
        wait: once all has been sent, the receiver waits for this part of the time that recent
            transfers took in the mean; above 0, up to 1.
    """

    warm_up: int = 20
    quantile: float = 0.95
    wait: float = 0.1

    def __post_init__(self) -> None:
        count = self.warm_up
        if not (type(count) is int and 1 <= count <= MOST_EARLIEST):
            raise ValueError(f"warm_up is {count!r}; valid: a whole number, 1 to {MOST_EARLIEST}")
        for name in ("quantile", "wait"):
            value = getattr(self, name)
            if not (type(value) in (int, float) and 0 < value <= 1):
                raise ValueError(f"{name} is {value!r}; valid: above 0, up to 1")

    def tolerance(self, critical: bool) -> float:
        """0, what it gives up of a transfer in time. Nothing bounds what one that is late loses."""
        return 0.0

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        return lambda layout: TimeBoundRule(layout=layout, policy=self)

    def as_text(self) -> str:
        return f"time-bound:warm_up={self.warm_up},quantile={self.quantile!r},wait={self.wait!r}"


class TimeBoundRule(StopRule):
    """Stops at the earlier of the two times; in a warm-up transfer, at neither."""

    def __init__(self, *, layout: PayloadLayout, policy: TimeBound) -> None:
        self._policy = policy
        self._chunk_count = layout.chunk_count
        self._ended_s: float | None = None  # when the sender had sent all

    def satisfied(self, progress: Progress) -> bool:
        until_s = self._until_s(progress)
        return until_s is not None and progress.now_s >= until_s

    def deadline_s(self, progress: Progress) -> float | None:
        return self._until_s(progress)

    def missing(self, progress: Progress) -> int | None:
        # The first chunk starts the clock, so it must be noticed at once.
        if progress.first_arrival_s is None:
            return None
        return self._chunk_count - progress.received_count

    def _until_s(self, progress: Progress) -> float | None:
        if self._ended_s is None and progress.probes:
            self._ended_s = progress.now_s
        first_s = self._ended_s if progress.first_sign_s is None else progress.first_sign_s
        warm_up = self._policy.warm_up
        if first_s is None or len(progress.earliest) < warm_up:
            return None
        taken_s = [each_s for each_s, _ in progress.earliest[:warm_up]]
        bound_s = first_s + _quantile(taken_s, self._policy.quantile) + _ROUNDING_S
        if self._ended_s is None:
            return bound_s
        mean_s = sum(each_s for each_s, _ in progress.recent) / len(progress.recent)
        return min(bound_s, self._ended_s + self._policy.wait * mean_s)


def _quantile(values: Sequence[float], quantile: float) -> float:
    """By nearest rank, without rounding errors: 0.95 of 20 is the 19th."""
    return sorted(values)[math.ceil(round(quantile * len(values), 9)) - 1]
