"""Parts of buckets: who averages which, in payloads that need no copy, and what is owed of one."""

import numpy as np
import pytest

from testbed.ddp.plan import shard
from testbed.ddp.residuals import Residual
from testbed.transport import PayloadLayout

LAYOUT = PayloadLayout([("", 5)], 8)  # chunks of two elements, the last of one
SECOND = np.array([True, False, True])


def given(residual, values, received=None, *, applied=True):
    """A step; what was sent."""
    payload = LAYOUT.new_buffer()
    LAYOUT.floats(payload)[:] = values
    residual.add_to(payload)
    sent = LAYOUT.floats(payload).copy()
    residual.note(payload, received)
    payload.view("<f4")[:] = np.nan  # the mean comes to its place
    residual.settle(applied=applied)
    return list(sent)


def test_a_debt_is_paid_by_a_step_that_is_applied():
    residual = Residual(LAYOUT)
    given(residual, [1, 2, 3, 4, 5], SECOND)
    assert list(residual.values) == [0, 0, 3, 4, 0]
    for received in (None, ~SECOND):
        assert given(residual, 5 * [1], received, applied=False) == [1, 1, 4, 5, 1]
        assert list(residual.values) == [0, 0, 3, 4, 0]
    assert given(residual, 5 * [1], ~SECOND) == [1, 1, 4, 5, 1]
    assert list(residual.values) == [1, 1, 0, 0, 1]
    given(residual, 5 * [1])
    assert list(residual.values) == 5 * [0]
    assert given(residual, 5 * [1]) == 5 * [1]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
def test_of_what_is_not_finite_nothing_more_is_owed(wrong):
    residual = Residual(LAYOUT)
    given(residual, [0, 0, 3, 4, 0], SECOND)
    given(residual, [0, 0, wrong, 1, 0], SECOND)
    assert list(residual.values) == [0, 0, 3, 5, 0]


def test_a_debt_follows_the_scale_and_stays_finite():
    residual = Residual(LAYOUT)
    given(residual, [0, 0, 3e30, -4, 0], SECOND)
    before = residual.values.copy()
    for factor in (2.0**-3, 2.0**3):
        residual.scale(factor)
        assert np.array_equal(residual.values, before) == (factor > 1)
    residual.scale(1e300)
    assert np.isfinite(residual.values).all()
    assert np.isfinite(LAYOUT.floats(LAYOUT.new_buffer()) + 1000 * residual.values).all()


@pytest.mark.parametrize("elements", [1, 99, 100, 101, 1000, 12_345])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_cover_a_bucket_and_only_the_last_is_not_of_whole_chunks(elements, count):
    parts = [shard(elements, place, count, chunk_bytes=400) for place in range(count)]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(elements))
    there = [part for part in parts if part.stop > part.start]
    assert all((part.stop - part.start) % 100 == 0 for part in there[:-1])
    assert max(part.stop - part.start for part in parts) < elements / count + 2 * 100
