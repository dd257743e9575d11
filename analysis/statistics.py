"""Intervals, paired ratios, tests over seeds, equivalence, and limits in theory: plain functions.

The unit is the seed: rounds of one run depend on each other, seeds do not. Intervals of 95 % are
Student's t, of ratios on the logarithms of the paired ratios. With fewer than five seeds there is
no interval, but the values themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
ENOUGH_SEEDS = 5  # below this there is no interval
METHOD = "student-t"  # `intervals` in summary.json

Floats = NDArray[np.float64]
Values = Sequence[float] | Floats


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured number: `low` to `high` is its interval, None where there is none to give.

    `values` are those of the seeds, in ascending order, where there are two or more but too few
    for an interval; else it is empty.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    values: Sequence[float] = ()

    def as_json(self) -> dict[str, Any]:
        """The entry of `summary.json`; `values` only where there are some."""
        entry = {**vars(self), "values": list(self.values)}
        return {name: value for name, value in entry.items() if name != "values" or value}

    @classmethod
    def of_json(cls, entry: Mapping[str, Any]) -> Estimate:
        names = (field.name for field in fields(cls))
        return cls(**{name: entry[name] for name in names if name in entry})


NOTHING = Estimate(value=None)


def mean_interval(values: Values) -> Estimate:
    """The mean over seeds (one value each) and Student's interval."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    if n == 0:
        return NOTHING
    value = float(values.mean())
    if not math.isfinite(value):
        return Estimate(value=None, n=n)
    if n < ENOUGH_SEEDS:
        return Estimate(value=value, n=n, values=tuple(np.sort(values).tolist()) if n > 1 else ())
    half = _quantile(n) * float(values.std(ddof=1)) / math.sqrt(n)
    return Estimate(value=value, low=value - half, high=value + half, n=n)


def ratio_interval(numerators: Values, denominators: Values) -> Estimate:
    """The geometric mean of the paired ratios, with Student's interval of the mean logarithm.

    Where a value is not above 0 it is the ratio of the means, without an interval.
    """
    top, bottom = _pairs(numerators, denominators)
    n = len(top)
    if n and min(top.min(), bottom.min()) > 0 and np.isfinite([top, bottom]).all():
        of_logs = mean_interval(np.log(top / bottom))
        ends = (of_logs.value, of_logs.low, of_logs.high)
        value, low, high = (None if end is None else math.exp(end) for end in ends)
        values = tuple(map(math.exp, of_logs.values))
        return Estimate(value=value, low=low, high=high, n=n, values=values)
    divisor = bottom.sum()
    value = float(top.sum() / divisor) if divisor else math.nan
    return Estimate(value=value if math.isfinite(value) else None, n=n)


def difference_interval(minuends: Values, subtrahends: Values) -> Estimate:
    """Mean paired difference and Student's interval; position i belongs to the same seed."""
    left, right = _pairs(minuends, subtrahends)
    return mean_interval(left - right)


def paired_p_value(left: Values, right: Values, *, ratio: bool) -> float | None:
    """Two-sided paired t test of no difference, of ratios on their logarithms."""
    one, two = _pairs(left, right)
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = np.log(one / two) if ratio else one - two
    n = len(differences)
    if n < ENOUGH_SEEDS or not np.isfinite(differences).all():
        return None
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    if not error:
        return 1.0 if not differences[0] else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(n - 1, -abs(float(differences.mean())) / error))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values corrected for being several: Holm, Scand. J. Statist. 6, 1979. None stays None."""
    ascending = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, at) in enumerate(ascending):
        least = max(least, min(1.0, p * (len(ascending) - rank)))
        corrected[at] = least
    return corrected


def _pairs(left: Values, right: Values) -> tuple[Floats, Floats]:
    if len(left) != len(right):
        raise ValueError(f"pairs need equal lengths, not {[len(left), len(right)]}")
    return np.asarray(left, dtype=float), np.asarray(right, dtype=float)


@lru_cache(maxsize=32)
def _quantile(n: int) -> float:
    """The half-width, in standard errors, of Student's interval for the mean of n values."""
    from scipy.special import stdtrit  # a tenth of the time that scipy.stats takes to import

    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


Verdict = Literal[
    "confirmed", "holds on our tasks only", "no effect seen", "contradicted", "not tested"
]
GAIN_MARGIN = 0.2  # of the gain that is claimed
POWER = 0.8  # with which the smallest effect would have been seen
SIGNIFICANT = 1 - CONFIDENCE


def verdict_on_gain(
    ours: Estimate,
    theirs: Sequence[float],
    nothing: float,
    *,
    alike: bool,
    p_value: float | None = None,
) -> Verdict:
    """Judge a claim that something gains, or costs, so much.

    Args:
        theirs: the ends of the claimed range, on one side of `nothing`.
        nothing: what no effect is: 1 of a ratio, 0 of a difference.
        alike: whether ours has the claim's model and data.
        p_value: of no effect, corrected for the claim's other comparisons.
    """
    if ours.low is None or ours.high is None:
        return "not tested"
    sign = 1 if theirs[1] > nothing else -1
    low, high = sorted(sign * (end - nothing) for end in (ours.low, ours.high))
    least = (1 - GAIN_MARGIN) * min(sign * (end - nothing) for end in theirs)
    if low <= 0 <= high or (p_value is not None and p_value > SIGNIFICANT):
        return "no effect seen"
    if high < least:
        return "contradicted"
    return "confirmed" if alike and low >= least else "holds on our tasks only"


def verdict_on_cost(
    ours: Estimate, theirs: Sequence[float], nothing: float, margin: float, *, alike: bool
) -> Verdict:
    """Judge a claim that something costs no more than so much, and a margin.

    A test of non-inferiority by way of the 95 % interval, so at 2.5 %. An interval with ends on
    both sides of the limit decides nothing. Costs are below 0, or above a ratio of 1.
    """
    if ours.low is None or ours.high is None:
        return "not tested"
    sign = 1 if nothing else -1
    low, high = sorted(sign * (end - nothing) for end in (ours.low, ours.high))
    most = max(0.0, *(sign * (end - nothing) for end in theirs)) + margin
    if low > most:
        return "contradicted"
    if high > most:
        return "not tested"
    return "confirmed" if alike else "holds on our tasks only"


def smallest_seen(ours: Estimate) -> float | None:
    """The smallest difference that as many seeds would have shown, with a power of 80 %."""
    if ours.low is None or ours.high is None:
        return None
    from scipy.special import stdtrit

    half = (ours.high - ours.low) / 2
    return half * (1 + float(stdtrit(ours.n - 1, POWER)) / _quantile(ours.n))


def byte_bound(low: float, high: float) -> float:
    """The ratio of two transfers' times if only bytes cost time: with P, 1 - P has to arrive."""
    return (1 - low) / (1 - high)


def passes(tolerance: float, loss: float) -> float:
    """The number of passes that a transfer of many chunks is expected to pay for.

    After k passes the share q ** k is missing, so all but the last of n = ceil(ln P / ln q) passes
    are walked whole. Stop ends the last one at its share f = (1 - P / q ** (n - 1)) / (1 - q).
    ValueError: the tolerance is 0 under loss.
    """
    whole = 0
    if loss > tolerance:
        whole = math.ceil(math.log(tolerance) / math.log(loss)) - 1
    return whole + (1 - tolerance / loss**whole) / (1 - loss)


def pass_limit(low: float, high: float, loss: float) -> float:
    """The expected ratio of two transfers' times if only passes cost time, of many chunks."""
    return passes(low, loss) / passes(high, loss)


def tolerances(config: Mapping[str, Any], leg: str = "gather") -> tuple[float, float] | None:
    """The lowest and the highest tolerance of a leg in a `config.json`; None as with TCP."""
    text = str((config.get("protocol") or {}).get(leg) or "")
    options = dict(re.findall(r"\b(tolerance|low|high) *= *([\d.e-]+)", text.partition(":")[2]))
    if "tolerance" in options:
        return float(options["tolerance"]), float(options["tolerance"])
    return (float(options["low"]), float(options["high"])) if len(options) == 2 else None
