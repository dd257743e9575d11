"""The two theoretical bounds, against the numbers in the paper's notes and by hand."""

from __future__ import annotations

import math

import pytest

from analysis.statistics import byte_bound


def test_the_byte_bound_is_the_same_at_any_loss():
    assert byte_bound.byte_bound(0.008, 0.408) == pytest.approx(0.992 / 0.592)
    assert byte_bound.byte_bound(0.1, 0.1) == 1


@pytest.mark.parametrize(
    ("tolerance", "loss", "expected"),
    [
        (0.008, 0.0, 1),  # nothing is lost: one pass
        (0.408, 0.3, 1),  # one pass loses less than may be lost
        (0.4, 0.4, 1),
        (0.008, 0.6, 10),  # 0.6 ** 9 = 0.0101, 0.6 ** 10 = 0.0060
        (0.408, 0.6, 2),
        (0.008, 0.9, 46),
        (0.408, 0.9, 9),
        (0.25, 0.5, 2),  # exactly: not one more through rounding
        (0.125, 0.5, 3),
    ],
)
def test_passes_until_what_is_missing_may_be(tolerance, loss, expected):
    assert byte_bound.passes(tolerance, loss) == expected
    assert loss**expected <= tolerance + 1e-12
    assert expected == 1 or loss ** (expected - 1) > tolerance


def test_the_pass_bound_is_the_ratio_of_passes():
    assert byte_bound.pass_bound(0.008, 0.408, 0.6) == 5
    assert byte_bound.pass_bound(0.008, 0.408, 0.9) == pytest.approx(46 / 9)
    near_one = byte_bound.pass_bound(0.008, 0.408, 0.9999)
    assert near_one == pytest.approx(math.log(0.008) / math.log(0.408), rel=1e-3)


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (byte_bound.byte_bound, (0.1, 1.0)),
        (byte_bound.byte_bound, (-0.1, 0.5)),
        (byte_bound.passes, (0.0, 0.5)),
        (byte_bound.passes, (0.5, 1.0)),
    ],
)
def test_what_has_no_bound_is_refused(function, values):
    with pytest.raises(ValueError):
        function(*values)


def test_tolerances_are_read_from_the_protocols_description():
    fixed = {"protocol": {"gather": "fixed:tolerance=0.008"}}
    assert byte_bound.tolerances(fixed) == (0.008, 0.008)
    phased = {"protocol": {"gather": "phased:low=0.024,high=0.424"}}
    assert byte_bound.tolerances(phased) == (0.024, 0.424)
    assert byte_bound.tolerances({"protocol": {"name": "tcp-cubic", "gather": None}}) is None
    assert byte_bound.tolerances({}) is None
