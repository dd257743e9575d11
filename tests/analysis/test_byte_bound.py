"""The two theoretical limits, against the numbers in the paper's notes and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis import statistics


def test_the_byte_bound_is_the_same_at_any_loss():
    assert statistics.byte_bound(0.008, 0.408) == pytest.approx(0.992 / 0.592)
    assert statistics.byte_bound(0.1, 0.1) == 1


@pytest.mark.parametrize(
    ("tolerance", "loss", "expected"),
    [
        (0.0, 0.0, 1.0),  # nothing is lost: all indices once
        (0.4, 0.0, 0.6),
        (0.408, 0.3, 0.592 / 0.7),  # one pass loses less than may be lost, so it is cut short
        (0.4, 0.4, 1.0),
        (0.25, 0.5, 2.0),  # exactly, on either side of where a pass begins
        (0.125, 0.5, 3.0),
        (0.375, 0.5, 1.5),  # half of the second pass brings half of what may still come
        (0.008, 0.6, 9 + (1 - 0.008 / 0.6**9) / 0.4),
        (0.408, 0.8, 4 + (1 - 0.408 / 0.8**4) / 0.2),
        (1.0, 0.5, 0.0),
    ],
)
def test_passes_are_counted_as_far_as_they_are_walked(tolerance, loss, expected):
    assert statistics.passes(tolerance, loss) == pytest.approx(expected)


def walked(tolerance: float, loss: float, chunks: int, chance: np.random.Generator) -> float:
    """The passes that one transfer walks: in order, until so many chunks have arrived."""
    needed, missing, passes = math.ceil(chunks * (1 - tolerance) - 1e-9), np.arange(chunks), 0
    while True:
        arrives = chance.random(missing.size) >= loss
        if arrives.sum() >= needed:
            return passes + (missing[arrives][needed - 1] + 1) / chunks
        needed -= int(arrives.sum())
        missing, passes = missing[~arrives], passes + 1


@pytest.mark.parametrize("loss", [0.3, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("tolerance", [0.008, 0.408])
def test_many_chunks_walk_as_far_as_is_expected(tolerance, loss):
    chance = np.random.default_rng(7)
    found = np.mean([walked(tolerance, loss, 200_000, chance) for _ in range(5)])
    assert found == pytest.approx(statistics.passes(tolerance, loss), rel=0.01)


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
