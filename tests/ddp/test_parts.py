"""Parts of buckets: who averages which, in payloads that need no copy, and what is owed of one."""

import numpy as np
import pytest

from testbed.ddp.exchange import shard
from testbed.ddp.steps import Residuals

SIZES = {"first": 2, "second": 3}
SLOTS = (0, 1)


def made(*lost, scale=1.0):
    """Residuals after a step that has lost these elements."""
    residuals = Residuals()
    assert residuals.slots(SIZES) == SLOTS
    residuals.replace(np.array(lost, dtype=np.float32), SLOTS, scale)
    return residuals


def paid(residuals, scale=1.0):
    """What a gradient of zeros, which is scaled so, is made of."""
    gradient = np.zeros(5, dtype=np.float32)
    residuals.add_to(gradient, SLOTS, scale)
    return list(gradient)


def test_a_residual_stays_until_a_step_has_delivered_it():
    residuals = made(0, 0, 3, 4, 0)
    assert (residuals.holds([0]), residuals.holds([1])) == (False, True)
    assert paid(residuals) == paid(residuals) == [0, 0, 3, 4, 0]  # nothing was applied meanwhile
    residuals.replace(np.array([1, 0, 0, 0, 0], dtype=np.float32), SLOTS, 1.0)
    assert paid(residuals) == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3e38])
def test_of_what_is_not_finite_nothing_more_is_kept(wrong):
    residuals = made(0, 0, 3, 4, 0)
    residuals.replace(np.array([wrong, 0, wrong, 5, 0], dtype=np.float32), SLOTS, 1.0)
    assert paid(residuals) == [0, 0, 3, 5, 0]


def test_a_residual_follows_the_scale_and_stays_finite():
    residuals = made(0, 0, 3e30, -4, 0)
    assert paid(residuals, 2.0**-3) == [0, 0, np.float32(3e30) / 8, -0.5, 0]
    assert paid(residuals, 2.0**3) == [0, 0, np.float32(3e30) * 8, -32, 0]
    assert np.isfinite(1000 * np.array(paid(residuals, 1e300), dtype=np.float32)).all()
    tiny = made(0, 0, 3e30, -4, 0, scale=1e-300)
    assert np.isfinite(1000 * np.array(paid(tiny), dtype=np.float32)).all()


@pytest.mark.parametrize("elements", [1, 99, 100, 101, 1000, 12_345])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_cover_a_bucket_and_only_the_last_is_not_of_whole_chunks(elements, count):
    parts = [shard(elements, place, count, chunk_bytes=400) for place in range(count)]
    assert [at for part in parts for at in range(part.start, part.stop)] == list(range(elements))
    there = [part for part in parts if part.stop > part.start]
    assert all((part.stop - part.start) % 100 == 0 for part in there[:-1])
    assert max(part.stop - part.start for part in parts) < elements / count + 2 * 100
