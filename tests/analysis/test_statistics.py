"""Intervals, ratios, verdicts and limits against numbers known by hand, and against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis import statistics
from analysis.statistics import (
    Estimate,
    difference_interval,
    holm,
    mean_interval,
    paired_p_value,
    ratio_interval,
    smallest_seen,
    verdict_on_cost,
    verdict_on_gain,
)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_below_five_seeds_there_is_no_interval_but_their_values(n):
    values = [3.0, 1.0, 2.0, 5.0][:n]
    for estimate in (mean_interval(values), ratio_interval(values, [1.0] * n)):
        assert (estimate.low, estimate.high, estimate.n) == (None, None, n)
        assert list(estimate.values) == pytest.approx(sorted(values) if n > 1 else [])
        assert estimate.as_json().get("values", []) == list(estimate.values)
    assert mean_interval(values).value == sum(values) / n
    assert "values" not in mean_interval(values * 5).as_json()


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


@pytest.mark.parametrize("n", [5, 8, 30])
@pytest.mark.parametrize("ratio", [True, False])
def test_the_p_value_is_that_of_scipys_paired_t_test_and_fits_the_interval(n, ratio):
    for seed in range(20):
        generator = np.random.default_rng([n, seed])
        left, right = np.exp(generator.normal(0.1, 0.2, n)), np.exp(generator.normal(0, 0.2, n))
        of = np.log if ratio else np.asarray
        p_value = paired_p_value(left, right, ratio=ratio)
        assert p_value is not None
        assert p_value == pytest.approx(stats.ttest_rel(of(left), of(right)).pvalue)
        interval = (ratio_interval if ratio else difference_interval)(left, right)
        assert (p_value < 0.05) == (not interval.low <= ratio <= interval.high)


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


def estimate(low: float, high: float, n: int = 5) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, n=n)


@pytest.mark.parametrize(
    ("low", "high", "theirs", "expected"),
    [
        (1.15, 1.20, (1.18, 1.18), "confirmed"),  # 1.18 less a fifth of 0.18 is 1.144
        (1.143, 1.20, (1.18, 1.18), "holds on our tasks only"),
        (1.30, 1.90, (1.18, 1.18), "confirmed"),  # more than is claimed
        (1.13, 1.14, (1.25, 1.25), "contradicted"),  # half the gain
        (0.50, 3.00, (1.18, 1.18), "no effect seen"),  # a wide interval does not win
        (0.99, 1.01, (1.02, 1.02), "no effect seen"),
        (0.70, 0.80, (1.18, 1.18), "contradicted"),  # the opposite
        (3.45, 6.50, (4.00, 5.97), "confirmed"),  # 4.00 less a fifth of 3
        (1.001, 1.2, (1.0, math.inf), "confirmed"),  # any gain
    ],
)
def test_a_gain_is_confirmed_from_four_fifths_of_it_on(low, high, theirs, expected):
    assert verdict_on_gain(estimate(low, high), theirs, 1.0, alike=True) == expected


def test_a_gain_on_other_tasks_is_not_confirmed_and_one_in_doubt_by_p_is_not_seen():
    ours = estimate(1.2, 1.4)
    assert verdict_on_gain(ours, (1.25, 1.25), 1.0, alike=False) == "holds on our tasks only"
    corrected = verdict_on_gain(ours, (1.25, 1.25), 1.0, alike=True, p_value=0.06)
    assert corrected == "no effect seen"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.09, -0.07, "confirmed"),  # theirs is 8.1 points lower
        (-0.05, -0.02, "contradicted"),
        (-0.01, 0.02, "no effect seen"),
        (0.01, 0.02, "contradicted"),
    ],
)
def test_what_is_lost_is_judged_as_what_is_gained(low, high, expected):
    assert verdict_on_gain(estimate(low, high), (-0.0814, -0.0814), 0.0, alike=True) == expected


@pytest.mark.parametrize(
    ("low", "high", "theirs", "nothing", "expected"),
    [
        (-0.0128, 0.0071, -0.0029, 0.0, "confirmed"),  # it costs less than 0.29 and a point
        (-0.0130, 0.0071, -0.0029, 0.0, "not tested"),
        (-0.03, -0.02, -0.0029, 0.0, "contradicted"),
        (0.01, 0.03, -0.0029, 0.0, "confirmed"),  # it gains
        (0.01, 0.03, 0.0013, 0.0, "confirmed"),
        (0.99, 1.039, 1.03, 1.0, "confirmed"),
        (1.05, 1.06, 1.03, 1.0, "contradicted"),
    ],
)
def test_a_cost_is_bounded_by_what_is_claimed_and_a_margin(low, high, theirs, nothing, expected):
    ours = estimate(low, high)
    assert verdict_on_cost(ours, (theirs, theirs), nothing, 0.01, alike=True) == expected
    if expected == "confirmed":
        elsewhere = verdict_on_cost(ours, (theirs, theirs), nothing, 0.01, alike=False)
        assert elsewhere == "holds on our tasks only"


def test_four_seeds_test_nothing():
    ours = Estimate(value=1.18, n=4, values=(1.1, 1.2, 1.2, 1.2))
    assert verdict_on_gain(ours, (1.18, 1.18), 1.0, alike=True) == "not tested"
    assert verdict_on_cost(ours, (1.18, 1.18), 1.0, 0.01, alike=True) == "not tested"
    assert smallest_seen(ours) is None


def test_the_smallest_effect_is_seen_four_times_of_five():
    rng = np.random.default_rng(3)
    effect = smallest_seen(mean_interval(rng.normal(size=4000)))
    assert effect == pytest.approx((1.96 + 0.84) / math.sqrt(4000), rel=0.05)
    samples = rng.normal(effect_of(10), size=(4000, 10))
    seen = [(mean_interval(sample).low or -1) > 0 for sample in samples]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.05)


def effect_of(n: int) -> float:
    """The smallest effect that n values of variance 1 show, by the formula."""
    half = stats.t.ppf(0.975, n - 1) / math.sqrt(n)
    effect = smallest_seen(estimate(-half, half, n))
    assert effect is not None
    return effect


@pytest.mark.parametrize(
    ("tolerance", "loss", "expected"),
    [
        (0.0, 0.0, 1.0),  # nothing is lost: all indices once
        (0.408, 0.3, 0.592 / 0.7),  # one pass loses less than may be lost, so it is cut short
        (0.25, 0.5, 2.0),  # exactly, on either side of where a pass begins
        (0.375, 0.5, 1.5),  # half of the second pass brings half of what may still come
        (0.008, 0.6, 9 + (1 - 0.008 / 0.6**9) / 0.4),
        (0.408, 0.8, 4 + (1 - 0.408 / 0.8**4) / 0.2),
        (1.0, 0.5, 0.0),
    ],
)
def test_passes_are_counted_as_far_as_they_are_walked(tolerance, loss, expected):
    assert statistics.passes(tolerance, loss) == pytest.approx(expected)


def test_the_pass_limit_is_the_ratio_of_passes():
    assert statistics.pass_limit(0.008, 0.408, 0.6) == pytest.approx(5.286, abs=1e-3)
    assert statistics.pass_limit(0.008, 0.408, 0.8) == pytest.approx(5.389, abs=1e-3)
    near_one = statistics.pass_limit(0.008, 0.408, 0.9999)
    assert near_one == pytest.approx(math.log(0.008) / math.log(0.408), rel=1e-3)


def test_tolerances_are_read_from_the_protocols_description():
    fixed = {"protocol": {"gather": "fixed:tolerance=0.008"}}
    assert statistics.tolerances(fixed) == (0.008, 0.008)
    phased = {"protocol": {"gather": "phased:low=0.024,high=0.424"}}
    assert statistics.tolerances(phased) == (0.024, 0.424)
    assert statistics.tolerances({"protocol": {"name": "tcp-cubic", "gather": None}}) is None
    assert statistics.tolerances({}) is None
