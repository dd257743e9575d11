"""What an interval of ours says of a published value."""

from __future__ import annotations

import pytest

from analysis.statistics.intervals import Estimate
from analysis.statistics.replication import hides_no_effect, verdict


@pytest.mark.parametrize(
    ("low", "high", "published", "expected"),
    [
        (1.15, 1.20, (1.18, 1.18), "reproduced"),
        (1.08, 1.29, (1.18, 1.18), "reproduced"),  # 1.18 / 1.1 to 1.18 * 1.1
        (1.07, 1.20, (1.18, 1.18), "undecided"),
        (1.15, 1.30, (1.18, 1.18), "undecided"),
        (0.50, 3.00, (1.18, 1.18), "undecided"),  # a wide interval does not win
        (1.00, 1.07, (1.18, 1.18), "not reproduced"),
        (1.30, 1.90, (1.18, 1.18), "not reproduced"),
        (3.70, 6.50, (4.00, 5.97), "reproduced"),
        (3.60, 5.00, (4.00, 5.97), "undecided"),
        (1.61, 1.70, (4.00, 5.97), "not reproduced"),
    ],
)
def test_a_ratio_is_compared_within_a_tenth(low, high, published, expected):
    ours = Estimate(value=(low + high) / 2, low=low, high=high, n=5)
    assert verdict(ours, published[0], published[1], "ratio") == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.0128, 0.0071, "reproduced"),
        (-0.0130, 0.0071, "undecided"),
        (0.0072, 0.02, "not reproduced"),
    ],
)
def test_accuracies_are_compared_within_a_point(low, high, expected):
    ours = Estimate(value=(low + high) / 2, low=low, high=high, n=10)
    assert verdict(ours, -0.0029, -0.0029, "accuracy") == expected


def test_a_small_effect_is_not_told_from_none():
    assert hides_no_effect(-0.0029, -0.0029, "accuracy")
    assert hides_no_effect(0.01, 0.02, "accuracy")
    assert not hides_no_effect(-0.0814, -0.0814, "accuracy")
    assert hides_no_effect(1.09, 1.2, "ratio")
    assert not hides_no_effect(1.11, 1.2, "ratio")
    assert hides_no_effect(0.92, 0.92, "ratio")
    assert not hides_no_effect(0.0, 0.0, "other")


def test_four_seeds_decide_nothing_and_what_has_no_margin_gets_no_verdict():
    close = Estimate(value=1.18, low=1.17, high=1.19, n=4)
    assert verdict(close, 1.18, 1.18, "ratio") == "undecided"
    assert verdict(Estimate(value=1.18, n=2), 1.18, 1.18, "ratio") == "undecided"
    assert verdict(Estimate(value=1.0, low=0.9, high=1.1, n=9), 1.0, 1.0, "other") is None
