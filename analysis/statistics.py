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
SAMPLES_FOR_QUANTILE = {0.95: 20, 0.99: 100}  # one sample lies beyond the quantile
_RESAMPLES = 9999
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
    return _interval([values], lambda sample: sample.mean(axis=-1))


def ratio_interval(numerators: Values, denominators: Values) -> Estimate:
    """Ratio of the means; position i of both belongs to the same seed, resampled together."""
    return _interval([numerators, denominators], _ratio_of_means)


def difference_interval(minuends: Values, subtrahends: Values) -> Estimate:
    """Mean paired difference; position i of both belongs to the same seed."""
    return _interval(
        [minuends, subtrahends], lambda left, right: left.mean(axis=-1) - right.mean(axis=-1)
    )


def permutation_p_value(left: Values, right: Values) -> float | None:
    """Two-sided paired permutation test of equal means; None below two pairs.

    The smallest value that n pairs can give is 2 / 2**n, so that n < 6 never reaches 0.05.
    """
    from scipy import stats

    if len(left) != len(right):
        raise ValueError(f"pairs need equal lengths, not {len(left)} and {len(right)}")
    if len(left) < 2:
        return None
    result = stats.permutation_test(
        (np.asarray(left, dtype=float), np.asarray(right, dtype=float)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(0),
    )
    return float(result.pvalue)


def quantile(values: Values, q: float) -> float | None:
    """The q-quantile (linear interpolation), or None where there are too few samples for it."""
    if len(values) < max(1, SAMPLES_FOR_QUANTILE.get(q, 1)):
        return None
    return float(np.quantile(np.asarray(values, dtype=float), q))


def paper_reduction(ratio: float) -> float:
    """What the DBLP paper calls a reduction: baseline / DBLP - 1. (It is a speed-up.)"""
    return ratio - 1


def true_reduction(ratio: float) -> float:
    """The share of the baseline's time that is saved: 1 - DBLP / baseline."""
    return 1 - 1 / ratio


def _ratio_of_means(numerators: Floats, denominators: Floats) -> Floats:
    top, bottom = numerators.mean(axis=-1), denominators.mean(axis=-1)
    return np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom != 0)


def _interval(samples: Sequence[Values], statistic: Callable[..., Any]) -> Estimate:
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    n = len(arrays[0])
    if any(len(array) != n for array in arrays):
        raise ValueError(f"pairs need equal lengths, not {[len(array) for array in arrays]}")
    if n == 0:
        return NOTHING
    value = float(statistic(*arrays))
    if not np.isfinite(value):
        return Estimate(value=None, n=n)
    if n == 1:
        return Estimate(value=value, n=1)
    resampled = statistic(*(array[_resamples(n)] for array in arrays))
    if not np.isfinite(resampled).all():
        return Estimate(value=value, n=n)
    tail = (1 - CONFIDENCE) / 2
    # Few seeds have few distinct resamples: take values that occur, the outer ones, not between.
    low = np.quantile(resampled, tail, method="lower")
    high = np.quantile(resampled, 1 - tail, method="higher")
    return Estimate(value=value, low=float(low), high=float(high), n=n)


@lru_cache(maxsize=32)
def _resamples(n: int) -> NDArray[np.intp]:
    """Indices of the resamples, one per row."""
    if n <= _ENUMERATED:
        return np.array(list(itertools.product(range(n), repeat=n)), dtype=np.intp)
    return np.random.default_rng(n).integers(0, n, size=(_RESAMPLES, n), dtype=np.intp)
