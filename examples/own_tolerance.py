"""A tolerance: nothing is given up before the sender has tried a number of passes.

`gather: ./own_tolerance.py`, or with options `gather: {policy: ./own_tolerance.py, passes: 3}`
"""

from dataclasses import dataclass

from testbed.transport import PayloadLayout, Progress, StopRule, StopRuleFactory, TolerancePolicy
from testbed.transport.tolerance import check_tolerance, required_chunks


@dataclass(frozen=True, kw_only=True)
class AfterPasses(TolerancePolicy):
    """The fields are the options."""

    tolerated: float = 0.2  # share of the chunks that may be missing
    passes: int = 2

    def __post_init__(self) -> None:
        check_tolerance(self.tolerated, "tolerated")

    def tolerance(self, critical: bool) -> float:
        """The most that it gives up; in a critical phase nothing."""
        return 0.0 if critical else self.tolerated

    def stop_rule(self, critical: bool) -> StopRuleFactory:
        """It makes the rule of one transfer; a policy without a rule of its own leaves it out."""
        tolerance = self.tolerance(critical)

        def make(layout: PayloadLayout) -> StopRule:
            return _Rule(required_chunks(layout.chunk_count, tolerance), self.passes)

        return make


class _Rule(StopRule):
    def __init__(self, required: int, passes: int) -> None:
        self._required = required
        self._passes = passes

    def satisfied(self, progress: Progress) -> bool:
        """The sender's PROBE ends a pass."""
        return progress.probes >= self._passes and progress.received_count >= self._required
