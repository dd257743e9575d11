"""Two tolerances: a low one in critical learning regimes, a high one outside (DBLP)."""

from dataclasses import dataclass

from testbed.transport.core.tolerance import TolerancePolicy, check_tolerance


@dataclass(frozen=True, kw_only=True)
class Phased(TolerancePolicy):
    """DBLP's schedule (arXiv 2605.01989): P_low while critical, P_low + k otherwise.

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
