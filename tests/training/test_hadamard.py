"""The randomised Hadamard transform as a filling: exact without loss, unbiased with any."""

import itertools

import numpy as np
import pytest
from scipy.linalg import hadamard

from testbed.training.fillings import FILLINGS, Hadamard, Rotation, walsh_hadamard
from tests.training.one_round import buffer_of, estimate, gradients_of
from tests.transport.virtual import layout_of

LAYOUT = layout_of(12, last_elements=3)  # 47 elements, of which 32 are turned at a time


ALL, NOTHING = np.ones(12, dtype=np.bool_), np.zeros(12, dtype=np.bool_)


def through(gradients, received):
    """Each gradient is sent as its sender makes it, and what arrived is turned back."""
    filling = Hadamard()
    sent = [
        LAYOUT.floats(filling.sender_memory(LAYOUT).payload(buffer_of(gradient, LAYOUT)))
        for gradient in gradients
    ]
    return estimate(filling, sent, received, LAYOUT).astype(np.float64)


@pytest.mark.parametrize("size", [1, 2, 32, 512, 8192])
def test_it_is_the_walsh_hadamard_transform(size):
    vector = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    # The Kronecker product of two smaller ones.
    first = hadamard(1 << size.bit_length() // 2)
    second = hadamard(size // len(first))
    expected = first @ vector.astype(np.float64).reshape(len(first), -1) @ second / np.sqrt(size)
    np.testing.assert_allclose(walsh_hadamard(vector), expected.ravel(), atol=2e-5)


@pytest.mark.parametrize("elements", [1, 2, 3, 15, 16, 47, 65])
def test_a_rotation_of_any_length_is_orthogonal_and_can_be_undone(elements):
    rotation, rows = Rotation(elements, seed=3), np.eye(elements, dtype=np.float32)
    for row in rows:
        rotation.apply(row)
    np.testing.assert_allclose(rows @ rows.T, np.eye(elements), atol=1e-5)
    for row in rows:
        rotation.undo(row)
    np.testing.assert_allclose(rows, np.eye(elements), atol=1e-5)


@pytest.mark.parametrize("workers", [1, 3])
def test_without_loss_it_is_the_mean_to_rounding(workers):
    gradients = gradients_of(workers, LAYOUT)
    result = through(gradients, [ALL] * workers)
    np.testing.assert_allclose(result, gradients.mean(axis=0), atol=3e-6)


@pytest.mark.parametrize("elements", [3, 4, 6])
def test_over_all_signs_the_expectation_is_what_shares_says_whatever_is_lost(elements):
    """It enumerates all draws, so there is no tolerance but rounding."""
    rotation = Rotation(elements, seed=0)
    (first, _), (last, _) = rotation._steps
    vector = np.arange(1, elements + 1, dtype=np.float32)
    signs = list(itertools.product((-1, 1), repeat=rotation.size))
    for mask in itertools.product((False, True), repeat=elements):
        total = np.zeros(elements)
        for one, two in itertools.product(signs, signs):
            rotation._steps = [(first, np.array(one, np.int8)), (last, np.array(two, np.int8))]
            turned = vector.copy()
            rotation.apply(turned)
            turned *= np.array(mask)
            rotation.undo(turned)
            total += turned
        factors = np.repeat(
            rotation.shares(np.array(mask)), [rotation.size, elements - rotation.size]
        )
        np.testing.assert_allclose(total / len(signs) ** 2, factors * vector, atol=1e-4)


def test_of_a_payload_of_which_nothing_arrived_the_estimate_is_zero():
    gradients = gradients_of(2, LAYOUT)
    assert not through(gradients, [NOTHING, NOTHING]).any()
    result = through(gradients, [ALL, NOTHING])
    np.testing.assert_allclose(result, gradients[0] / 2, atol=3e-6)


@pytest.mark.parametrize("seed", ["-1", "0.5"])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        FILLINGS.create(f"hadamard:seed={seed}")
