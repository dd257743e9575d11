"""How often the benchmark repeats a case, and whether its intervals say the truth."""

import numpy as np
import pytest

from testbed.bench.transport import records
from testbed.bench.transport.cases import MOST_REPETITIONS


def repeated(draw, *, fewest=3, most=MOST_REPETITIONS):
    """The values of one case, as many as the rule asks for."""
    values: list[float] = []
    while not values or not records.enough([values], fewest=fewest, most=most, spent_s=0.0):
        values.append(draw())
    return values


def interval(values):
    found = records.interval(values)
    assert found is not None
    return found


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.1, 0.2])
def test_the_interval_holds_the_true_median_also_where_it_decides_when_to_stop(spread):
    random = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        low, high = interval(repeated(lambda: 2.0 * np.exp(random.normal(0, spread))))
        held += low <= 2.0 <= high
    assert held >= 920


def test_the_interval_lies_about_the_median_in_ratios():
    low, high = interval([1.0, 1.1, 1.3])
    assert low < 1.1 < high
    assert low * high == pytest.approx(1.1**2)
    # Student's t for two degrees of freedom, by the logarithms' deviation, by sqrt(pi / 2 / 3)
    deviation = np.std(np.log([1.0, 1.1, 1.3]), ddof=1)
    assert np.log(high / 1.1) == pytest.approx(4.30265 * deviation * np.sqrt(np.pi / 6), rel=1e-5)


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 1.0], [-1.0, 1.0]])
def test_there_is_no_interval_where_there_is_nothing_to_know(values):
    assert records.interval(values) is None
    assert not records.is_narrow(values)


def test_equal_values_are_enough_and_scattered_ones_are_repeated_to_the_bound():
    assert len(repeated(lambda: 1.0)) == 3
    scattered = iter([1.0, 3.0] * 10)
    assert len(repeated(lambda: next(scattered), most=9)) == 9


def test_every_quantity_must_be_narrow():
    calm, wild = [1.0, 1.0, 1.0], [1.0, 2.0, 4.0]
    assert records.enough([calm, calm], fewest=3, most=15, spent_s=0.1)
    assert not records.enough([calm, wild], fewest=3, most=15, spent_s=0.1)


def test_the_time_is_a_bound_but_not_for_the_fewest():
    wild = [1.0, 2.0, 4.0]
    assert records.enough([wild], fewest=3, most=15, spent_s=records.TIME_S)
    assert not records.enough([wild], fewest=4, most=15, spent_s=records.TIME_S)
