"""Intervals, ratios and quantiles against numbers known by hand, and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import (
    difference_interval,
    holm,
    mean_interval,
    paired_p_value,
    paper_reduction,
    ratio_interval,
    true_reduction,
)


def test_one_seed_has_a_value_but_no_interval():
    estimate = mean_interval([3.0])
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (3.0, None, None, 1)


def test_no_seed_has_no_value():
    assert mean_interval([]).value is None
    assert ratio_interval([], []).as_json() == {"value": None, "low": None, "high": None, "n": 0}


@pytest.mark.parametrize("n", [2, 4])
def test_below_five_seeds_there_is_no_interval_but_their_values(n):
    values = [3.0, 1.0, 2.0, 5.0][:n]
    for estimate in (mean_interval(values), ratio_interval(values, [1.0] * n)):
        assert (estimate.low, estimate.high, estimate.n) == (None, None, n)
        assert list(estimate.values) == pytest.approx(sorted(values))
        assert estimate.as_json()["values"] == list(estimate.values)
    assert "values" not in mean_interval([*values, *values, *values]).as_json()


@pytest.mark.parametrize("n", [5, 12])
def test_intervals_agree_with_scipy(n):
    rng = np.random.default_rng(1)
    top, bottom = rng.lognormal(size=n), rng.lognormal(size=n)
    for ours, theirs, back in (
        (mean_interval(top), stats.ttest_1samp(top, 0), float),
        (difference_interval(top, bottom), stats.ttest_rel(top, bottom), float),
        (ratio_interval(top, bottom), stats.ttest_rel(np.log(top), np.log(bottom)), np.exp),
    ):
        low, high = theirs.confidence_interval(0.95)
        assert (ours.low, ours.high) == pytest.approx((back(low), back(high)))


def test_a_ratio_is_the_geometric_mean_of_the_paired_ratios():
    estimate = ratio_interval([1.0, 12.0], [1.0, 3.0])
    assert estimate.value == pytest.approx(2.0)
    inverse = ratio_interval([1.0, 3.0], [1.0, 12.0])
    assert inverse.value == pytest.approx(0.5)  # neither arm is favoured


def test_a_ratio_with_a_value_of_zero_has_no_interval_and_one_to_nothing_no_value():
    estimate = ratio_interval([0.0, 1.0, 1.0, 1.0, 1.0], [2.0] * 5)
    assert (estimate.value, estimate.low, estimate.n) == (0.4, None, 5)
    assert ratio_interval([1.0, 2.0], [0.0, 0.0]).value is None


def test_a_difference_is_paired():
    estimate = difference_interval([5.0, 9.0], [4.0, 8.0])
    assert (estimate.value, estimate.low, estimate.values) == (1.0, None, (1.0, 1.0))


def test_pairs_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="equal lengths"):
        ratio_interval([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="equal lengths"):
        paired_p_value([1.0, 2.0], [1.0], ratio=False)


def test_the_papers_reduction_is_not_the_true_one():
    assert paper_reduction(1.2642) == pytest.approx(0.2642)
    assert true_reduction(1.2642) == pytest.approx(0.209, abs=5e-4)


@pytest.mark.parametrize("n", [5, 8, 30])
@pytest.mark.parametrize("ratio", [True, False])
def test_the_p_value_is_that_of_scipys_paired_t_test_and_fits_the_interval(n, ratio):
    for seed in range(20):
        generator = np.random.default_rng([n, seed])
        left, right = np.exp(generator.normal(0.1, 0.2, n)), np.exp(generator.normal(0, 0.2, n))
        of = np.log if ratio else np.asarray
        found = paired_p_value(left, right, ratio=ratio)
        assert found is not None
        assert found == pytest.approx(stats.ttest_rel(of(left), of(right)).pvalue)
        interval = (ratio_interval if ratio else difference_interval)(left, right)
        assert (found < 0.05) == (not interval.low <= ratio <= interval.high)


def test_below_five_pairs_and_without_a_logarithm_there_is_no_p_value():
    assert paired_p_value([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 6.0], ratio=False) is None
    assert paired_p_value([0.0] * 5, [1.0] * 5, ratio=True) is None


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.04, None, 0.01, 0.03], [0.06, None, 0.03, 0.06]),
        ([0.04], [0.04]),
        ([0.7, 0.9], [1.0, 1.0]),
        ([], []),
    ],
)
def test_holm_multiplies_the_smallest_p_value_the_most(p_values, corrected):
    assert holm(p_values) == [p and pytest.approx(p) for p in corrected]
