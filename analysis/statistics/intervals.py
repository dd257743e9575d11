"""Intervals, paired ratios and tests over seeds: plain functions of numbers.

The unit of resampling is the seed: rounds of one run depend on each other, seeds do not. Intervals
are percentile bootstrap intervals of 95 %. With fewer than five seeds they are indicative only
(with two they are simply the smaller and the larger value), so `n` stands beside each of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
ENOUGH_SEEDS = 5
_RESAMPLES = 9999
_ALL_SWAPS = 12
_ENUMERATED = 6  # up to here all n ** n resamples are listed: no randomness at all

Floats = NDArray[np.float64]
Values = Sequence[float] | Floats


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured number: `low` to `high` is its interval, None where there is none to give."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0

    def as_json(self) -> dict[str, Any]:
        """The entry of `summary.json`."""
        return asdict(self)


NOTHING = Estimate(value=None)


def mean_interval(values: Values) -> Estimate:
    """The mean over seeds (one value each) and its bootstrap interval."""
    return _interval([values], lambda mean: mean)


def ratio_interval(numerators: Values, denominators: Values) -> Estimate:
    """Ratio of the means; position i of both belongs to the same seed, resampled together."""
    return _interval([numerators, denominators], _ratio_of_means)


def difference_interval(minuends: Values, subtrahends: Values) -> Estimate:
    """Mean paired difference; position i of both belongs to the same seed."""
    return _interval([minuends, subtrahends], lambda left, right: left - right)


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


def _ratio_of_means(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom != 0)


def _interval(samples: Sequence[Values], combine: Callable[..., Any]) -> Estimate:
    """The estimate of what `combine` makes of the samples' means."""
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    n = len(arrays[0])
    if any(len(array) != n for array in arrays):
        raise ValueError(f"pairs need equal lengths, not {[len(array) for array in arrays]}")
    if n == 0:
        return NOTHING
    value = float(combine(*(array.mean() for array in arrays)))
    if not np.isfinite(value):
        return Estimate(value=None, n=n)
    if n == 1:
        return Estimate(value=value, n=1)
    resampled = combine(*(_weights(n) @ array for array in arrays))
    if not np.isfinite(resampled).all():
        return Estimate(value=value, n=n)
    # Few seeds have few distinct resamples: take values that occur, the outer ones, not between.
    tail = (1 - CONFIDENCE) / 2 * (len(resampled) - 1)
    outer = int(tail), len(resampled) - 1 - int(tail)
    low, high = np.partition(resampled, outer)[list(outer)]
    return Estimate(value=value, low=float(low), high=float(high), n=n)


@lru_cache(maxsize=32)
def _weights(n: int) -> Floats:
    """The share of each seed in each resample, one resample per row: their product is its mean."""
    if n <= _ENUMERATED:
        drawn = np.array(list(itertools.product(range(n), repeat=n)), dtype=np.intp)
    else:
        drawn = np.random.default_rng(n).integers(0, n, size=(_RESAMPLES, n), dtype=np.intp)
    rows = len(drawn)
    place = drawn + np.arange(rows)[:, None] * n
    return np.bincount(place.ravel(), minlength=rows * n).reshape(rows, n) / n


@lru_cache(maxsize=32)
def _signs(n: int) -> Floats:
    """Which pairs are swapped, as +1 and -1, one way per row."""
    if n <= _ALL_SWAPS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    return np.random.default_rng(n).choice([1.0, -1.0], size=(_RESAMPLES, n))
