"""What an interval of ours says of a published value."""

from __future__ import annotations

import pytest

from analysis.statistics import Estimate, verdict


@pytest.mark.parametrize(
    ("low", "high", "published", "expected"),
    [
        (1.15, 1.20, (1.18, 1.18), "reproduced"),
        (1.145, 1.215, (1.18, 1.18), "reproduced"),  # 1.18 and a fifth of 0.18
        (1.143, 1.20, (1.18, 1.18), "undecided"),
        (1.15, 1.22, (1.18, 1.18), "undecided"),
        (1.13, 1.14, (1.25, 1.25), "not reproduced"),  # half the gain
        (0.50, 3.00, (1.18, 1.18), "undecided"),  # a wide interval does not win
        (0.99, 1.01, (1.02, 1.02), "not reproduced"),  # no effect reproduces none
        (1.00, 1.07, (1.18, 1.18), "not reproduced"),
        (1.30, 1.90, (1.18, 1.18), "not reproduced"),
        (3.70, 6.50, (4.00, 5.97), "reproduced"),  # 4.00 / 1.1 to 5.97 * 1.1
        (3.60, 5.00, (4.00, 5.97), "undecided"),
        (1.61, 1.70, (4.00, 5.97), "not reproduced"),
    ],
)
def test_a_ratio_is_compared_within_a_fifth_of_its_gain(low, high, published, expected):
    ours = Estimate(value=(low + high) / 2, low=low, high=high, n=5)
    assert verdict(ours, published[0], published[1], "ratio") == expected


@pytest.mark.parametrize(
    ("low", "high", "published", "expected"),
    [
        (-0.0128, 0.0071, -0.0029, "too small to test here"),
        (-0.0130, 0.0071, -0.0029, "too small to test here"),
        (0.0072, 0.02, -0.0029, "not reproduced"),
        (-0.0913, -0.0715, -0.0814, "reproduced"),
        (-0.0915, -0.0715, -0.0814, "undecided"),
    ],
)
def test_accuracies_are_compared_within_a_point(low, high, published, expected):
    ours = Estimate(value=(low + high) / 2, low=low, high=high, n=10)
    assert verdict(ours, published, published, "accuracy") == expected


def test_four_seeds_decide_nothing_and_what_has_no_margin_gets_no_verdict():
    close = Estimate(value=1.18, low=1.17, high=1.19, n=4)
    assert verdict(close, 1.18, 1.18, "ratio") == "undecided"
    assert verdict(Estimate(value=1.18, n=2), 1.18, 1.18, "ratio") == "undecided"
    assert verdict(Estimate(value=1.0, low=0.9, high=1.1, n=9), 1.0, 1.0, "other") is None
