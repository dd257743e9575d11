"""What loss did: measured against counting by hand."""

import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.training import lost_chunk_effects
from testbed.training.vectors import SharedVectors
from testbed.transport import PayloadLayout

LAYOUT = PayloadLayout([("a", 5), ("b", 0), ("c", 7), ("d", 1)], chunk_bytes=16)


@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_loss_of_each_tensor_is_that_of_its_elements(flags):
    received = np.array(flags)
    missing = ~LAYOUT.element_mask(received)
    expected = [missing[:5].mean(), 0, missing[5:12].mean(), missing[12:].mean()]
    np.testing.assert_allclose(lost_chunk_effects.tensor_loss(LAYOUT, received), expected)


def test_deviation_of_a_zero_filled_gradient():
    reference = np.array([3.0, 4.0, 0.0, 0.0], dtype=np.float32)
    found = lost_chunk_effects.deviation(np.array([3, 0, 0, 0], dtype=np.float32), reference)
    assert found.relative_error == pytest.approx(0.8)
    assert found.cosine == pytest.approx(0.6)
    assert found.norm_ratio == pytest.approx(0.6)
    assert lost_chunk_effects.deviation(reference, reference).relative_error == 0
    assert lost_chunk_effects.deviation(reference, reference).cosine == pytest.approx(1)


def test_deviations_without_a_direction_are_none_not_a_number_made_up():
    zero, one = np.zeros(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    assert lost_chunk_effects.deviation(zero, zero) == lost_chunk_effects.Deviation(0.0, None, None)
    assert lost_chunk_effects.deviation(one, zero).relative_error is None
    assert lost_chunk_effects.deviation(zero, one) == lost_chunk_effects.Deviation(1.0, None, 0.0)
    assert lost_chunk_effects.deviation(one * np.float32("nan"), one).relative_error is None


def test_divergence_of_replicas():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=300_000).astype(np.float32)
    assert lost_chunk_effects.divergence([weights, weights.copy(), weights.copy()]) == 0
    one, two = np.array([1, 1], dtype=np.float32), np.array([1, 3], dtype=np.float32)
    # Mean (1, 2); each is 1 away from it.
    assert lost_chunk_effects.divergence([one, two]) == pytest.approx(1 / 5**0.5)


def test_what_a_child_puts_aside_its_parent_sees():
    vectors = SharedVectors(["worker-1", "worker-2"], 1000)
    assert not vectors.gradients["worker-1"].any()

    def work():
        vectors.gradients["worker-1"][:] = 7

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert (vectors.gradients["worker-1"] == 7).all()
    assert not vectors.gradients["worker-2"].any()
    assert not vectors.updates["worker-1"].any()
