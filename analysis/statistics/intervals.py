"""Intervals, paired ratios and tests over seeds: plain functions of numbers.

The unit is the seed: rounds of one run depend on each other, seeds do not. Intervals of 95 % are
Student's t, of ratios on the logarithms of the paired ratios. With fewer than five seeds there is
no interval, but the values themselves. `python -m tests.benchmarks.coverage` simulates how many
intervals hold the truth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
ENOUGH_SEEDS = 5  # below this there is no interval
METHOD = "student-t"  # `intervals` in summary.json; older summaries have bootstrap intervals
_RESAMPLES = 9999
_ALL_SWAPS = 12

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
        found = {"value": self.value, "low": self.low, "high": self.high, "n": self.n}
        return found | ({"values": list(self.values)} if self.values else {})


NOTHING = Estimate(value=None)


def mean_interval(values: Values) -> Estimate:
    """The mean over seeds (one value each) and Student's interval."""
    return _of_mean(np.asarray(values, dtype=float))


def ratio_interval(numerators: Values, denominators: Values) -> Estimate:
    """The geometric mean of the paired ratios; position i of both belongs to the same seed.

    The interval is Student's, of the mean logarithm. Where a value is not above 0 there is no
    logarithm: then the value is the ratio of the means, and there is no interval.

    Raises:
        ValueError: there are not as many denominators as numerators.
    """
    top, bottom = _pairs(numerators, denominators)
    n = len(top)
    if n and min(top.min(), bottom.min()) > 0 and np.isfinite([top, bottom]).all():
        of_logs = _of_mean(np.log(top / bottom))
        ends = (of_logs.value, of_logs.low, of_logs.high)
        value, low, high = (None if each is None else math.exp(each) for each in ends)
        values = tuple(math.exp(each) for each in of_logs.values)
        return Estimate(value=value, low=low, high=high, n=n, values=values)
    divisor = bottom.sum()
    value = float(top.sum() / divisor) if divisor else math.nan
    return Estimate(value=value if math.isfinite(value) else None, n=n)


def difference_interval(minuends: Values, subtrahends: Values) -> Estimate:
    """Mean paired difference and Student's interval; position i belongs to the same seed.

    Raises:
        ValueError: there are not as many subtrahends as minuends.
    """
    left, right = _pairs(minuends, subtrahends)
    return _of_mean(left - right)


def permutation_p_value(left: Values, right: Values) -> float | None:
    """Two-sided paired permutation test of equal means; None below two pairs.

    Up to twelve pairs all swaps are listed, else 9999 of them are drawn. The smallest value that n
    pairs can give is 2 / 2**n, so that n < 6 never reaches 0.05.
    """
    if len(left) != len(right):
        raise ValueError(f"pairs need equal lengths, not {len(left)} and {len(right)}")
    if len(left) < 2:
        return None
    differences = np.asarray(left, dtype=float) - np.asarray(right, dtype=float)
    n = len(differences)
    swapped = np.abs(_signs(n) @ differences)
    found = abs(differences.sum())
    # Sums of the same numbers in another order may differ in their last digits.
    as_far = np.count_nonzero(swapped >= found - 1e-9 * np.abs(differences).sum())
    if n <= _ALL_SWAPS:
        return float(as_far / len(swapped))
    return float((as_far + 1) / (len(swapped) + 1))  # the data themselves are one of them


def paper_reduction(ratio: float) -> float:
    """What the DBLP paper calls a reduction: baseline / DBLP - 1. (It is a speed-up.)"""
    return ratio - 1


def true_reduction(ratio: float) -> float:
    """The share of the baseline's time that is saved: 1 - DBLP / baseline."""
    return 1 - 1 / ratio


def _pairs(left: Values, right: Values) -> tuple[Floats, Floats]:
    if len(left) != len(right):
        raise ValueError(f"pairs need equal lengths, not {[len(left), len(right)]}")
    return np.asarray(left, dtype=float), np.asarray(right, dtype=float)


def _of_mean(values: Floats) -> Estimate:
    """The mean of one value per seed, with Student's interval from enough seeds on."""
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


@lru_cache(maxsize=32)
def _quantile(n: int) -> float:
    """Of Student's t for the mean of n values: the two-sided interval's half-width in errors."""
    from scipy.special import stdtrit  # a tenth of the time that scipy.stats takes to import

    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


@lru_cache(maxsize=32)
def _signs(n: int) -> Floats:
    """Which pairs are swapped, as +1 and -1, one way per row."""
    if n <= _ALL_SWAPS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    return np.random.default_rng(n).choice([1.0, -1.0], size=(_RESAMPLES, n))
