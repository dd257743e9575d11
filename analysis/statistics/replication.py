"""Is a published value reproduced? Equivalence within a margin that is stated beforehand.

Two one-sided tests (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987), by way of the 95 % interval,
so each at 2.5 %: the published value, or range, is widened by the margin. Where our interval lies
inside, it is reproduced; where both have nothing in common, it is not; else the data do not decide.
So a wide interval proves nothing. Nor does a value so small that no effect at all lies within the
margin, too: `hides_no_effect`.
"""

from __future__ import annotations

from typing import Literal

from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate

RATIO_MARGIN = 0.1  # of the published ratio
ACCURACY_MARGIN = 0.01  # one point
Verdict = Literal["reproduced", "not reproduced", "undecided"]
Quantity = Literal["ratio", "accuracy", "other"]


def verdict(ours: Estimate, low: float, high: float, quantity: Quantity) -> Verdict | None:
    """What our estimate says of a published value from `low` to `high`.

    None for quantities without a margin. Fewer than five seeds decide nothing.
    """
    if quantity == "other":
        return None
    if ours.low is None or ours.high is None or ours.n < ENOUGH_SEEDS:
        return "undecided"
    least, most = _widened(low, high, quantity)
    if least <= ours.low and ours.high <= most:
        return "reproduced"
    return "undecided" if ours.low <= most and least <= ours.high else "not reproduced"


def hides_no_effect(low: float, high: float, quantity: Quantity) -> bool:
    """Whether a ratio of 1, or a difference of 0, would pass for reproducing such a value."""
    if quantity == "other":
        return False
    least, most = _widened(low, high, quantity)
    return least <= (1 if quantity == "ratio" else 0) <= most


def _widened(low: float, high: float, quantity: Quantity) -> tuple[float, float]:
    if quantity == "ratio":
        return low / (1 + RATIO_MARGIN), high * (1 + RATIO_MARGIN)
    return low - ACCURACY_MARGIN, high + ACCURACY_MARGIN
