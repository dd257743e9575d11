"""Is a published value reproduced? Equivalence within a margin.

Two one-sided tests (Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987), by way of the 95 % interval,
so each at 2.5 %: the published value, or range, is widened by the margin. Where our interval lies
inside, it is reproduced; where both have nothing in common, it is not; else the data do not decide.
So a wide interval proves nothing. A value so small that no effect at all lies within the margin
cannot be reproduced.
"""

from __future__ import annotations

from typing import Literal

from analysis.statistics.intervals import ENOUGH_SEEDS, Estimate

RATIO_MARGIN = 0.1  # of the published ratio
GAIN_MARGIN = 0.2  # of what the published ratio differs from 1 by; the smaller of the two counts
ACCURACY_MARGIN = 0.01  # one point
Verdict = Literal["reproduced", "not reproduced", "undecided", "too small to test here"]
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
    if ours.low > most or least > ours.high:
        return "not reproduced"
    if least <= (1 if quantity == "ratio" else 0) <= most:
        return "too small to test here"
    return "reproduced" if least <= ours.low and ours.high <= most else "undecided"


def _widened(low: float, high: float, quantity: Quantity) -> tuple[float, float]:
    if quantity == "ratio":
        return (
            max(low / (1 + RATIO_MARGIN), low - GAIN_MARGIN * abs(low - 1)),
            min(high * (1 + RATIO_MARGIN), high + GAIN_MARGIN * abs(high - 1)),
        )
    return low - ACCURACY_MARGIN, high + ACCURACY_MARGIN
