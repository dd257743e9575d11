"""A tolerance for the whole run, or one for each phase of the training."""

from dataclasses import dataclass

from testbed.transport.core.tolerance import TolerancePolicy, check_tolerance


@dataclass(frozen=True, init=False)
class Fixed(TolerancePolicy):
    """One tolerance for the whole run: MLT's rule in software, the baseline of DBLP's evaluation.

    It gives up the same fraction in every phase; 0 makes the transfer reliable.

    Args:
        tolerance: the fraction of chunks that may be missing.
    """

    # `tolerance` is the method's name; the user's option keeps that word.
    fraction: float

    def __init__(self, tolerance: float) -> None:
        check_tolerance(tolerance)
        object.__setattr__(self, "fraction", float(tolerance))

    def tolerance(self, critical: bool) -> float:
        return self.fraction

    def as_text(self) -> str:
        return f"fixed:tolerance={self.fraction!r}"


@dataclass(frozen=True, kw_only=True)
class Phased(TolerancePolicy):
    """Two tolerances: a low one in critical learning regimes, a high one outside (DBLP).

    It is the schedule of arXiv 2605.01989: P_low while critical, P_low + k otherwise.

    Args:
        low: the tolerance in critical regimes.
        high: the tolerance elsewhere; at least `low`.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_tolerance(self.low, "low")
        check_tolerance(self.high, "high")
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, above high, which is {self.high}")

    def tolerance(self, critical: bool) -> float:
        return self.low if critical else self.high

    def as_text(self) -> str:
        return f"phased:low={self.low!r},high={self.high!r}"
