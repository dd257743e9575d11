"""Tolerance policies and stop rules."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import (
    POLICIES,
    Fixed,
    Phased,
    as_policy,
)
from testbed.transport.core.tolerance import required_chunks
from tests.shared.entries import listed


@pytest.mark.parametrize(
    ("chunks", "tolerance", "required"),
    [
        (1000, 0.008, 992),
        (1000, 0.408, 592),
        (1000, 0.0, 1000),
        (1000, 0.1 + 0.2, 700),
        (10, 1 - 0.2, 2),
        (3, 0.5, 2),
        (1, 0.999, 1),
        (10, 0.99999999999, 1),
        (687, 0.008, 682),
        (687, 0.408, 407),
    ],
)
def test_required_chunks_round_up_without_float_fuzz(chunks, tolerance, required):
    assert required_chunks(chunks, tolerance) == required


@given(st.integers(1, 100_000), st.integers(0, 9999))
def test_never_more_than_the_tolerance_is_given_up_and_never_less_than_possible(chunks, tenths):
    required = required_chunks(chunks, tenths / 10000)
    given_up = chunks - required
    assert Fraction(given_up, chunks) <= Fraction(tenths, 10000)
    assert Fraction(given_up + 1, chunks) > Fraction(tenths, 10000) or required == 1


@pytest.mark.parametrize("value", [-0.01, 1, 1.5, float("nan"), float("inf"), "0.5", None])
def test_tolerances_outside_zero_to_one_are_refused(value):
    for refusing in (Fixed, lambda tolerance: required_chunks(10, tolerance)):
        with pytest.raises(ValueError, match="valid: 0"):
            refusing(value)


def test_a_phased_policy_follows_the_phase():
    policy = Phased(low=0.008, high=0.408)
    assert policy.tolerance(True) == 0.008
    assert policy.tolerance(False) == 0.408
    assert Fixed(0.3).tolerance(True) == Fixed(0.3).tolerance(False) == 0.3


@pytest.mark.parametrize("options", [{"low": 0.5, "high": 0.4}, {"low": -1, "high": 0.4}])
def test_impossible_phases_are_refused(options):
    with pytest.raises(ValueError, match="low"):
        Phased(**options)


@pytest.mark.parametrize(
    "value",
    [0.25, "fixed:tolerance=0.25", {"policy": "fixed", "tolerance": 0.25}, Fixed(0.25)],
)
def test_a_policy_may_be_written_in_any_form(value):
    assert as_policy(value) == Fixed(0.25)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("fixd:tolerance=0.1", listed(POLICIES)),
        ("fixed:p=0.1", "valid options: tolerance"),
        ("fixed", "needs the option tolerance"),
        ("fixed:tolerance", "key=value"),
        ("fixed:tolerance=x", "tolerance: 'x': must be a number"),
        ({"tolerance": 0.1}, "'policy'"),
    ],
)
def test_mistakes_are_answered_with_what_is_valid(value, named):
    with pytest.raises(ValueError, match=named):
        as_policy(value)
