"""One tolerance for the whole run: MLT's rule in software, the baseline of DBLP's evaluation."""

from dataclasses import dataclass

from testbed.transport.core.tolerance import TolerancePolicy, check_tolerance


@dataclass(frozen=True, init=False)
class Fixed(TolerancePolicy):
    """Gives up the same fraction in every phase; 0 makes the transfer reliable.

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
