"""The randomised Hadamard transform as a filling: exact without loss, unbiased with any."""

import itertools

import numpy as np
import pytest
from scipy.linalg import hadamard

from testbed.training.broadcasts import Debts
from testbed.training.filling import FILLINGS, Hadamard
from testbed.training.filling.hadamard import Rotation, walsh_hadamard
from tests.training.one_round import buffer_of, estimate, gradients_of, report
from tests.transport.virtual import layout_of

LAYOUT = layout_of(12, last_elements=3)  # 47 elements, of which 32 are turned at a time
SEEDS = 300


def through(gradients, received, *, layout=LAYOUT, **options):
    """Each gradient is sent as its sender makes it, and what arrived is turned back."""
    filling = Hadamard(**options)
    sent = [
        layout.floats(filling.sender_memory(layout).payload(buffer_of(each, layout)))
        for each in gradients
    ]
    return estimate(filling, sent, received, layout).astype(np.float64)


def arrived(*lost, chunks=12):
    return ~np.isin(np.arange(chunks), lost)


@pytest.mark.parametrize("size", [1, 2, 32, 512, 8192])
def test_it_is_the_walsh_hadamard_transform(size):
    vector = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    expected = hadamard(size) @ vector.astype(np.float64) / np.sqrt(size)
    np.testing.assert_allclose(walsh_hadamard(vector), expected, atol=2e-5)


@pytest.mark.parametrize("elements", [1, 2, 3, 15, 16, 47, 65])
def test_a_rotation_of_any_length_is_orthogonal_and_can_be_undone(elements):
    rotation, rows = Rotation(elements, seed=3), np.eye(elements, dtype=np.float32)
    for row in rows:
        rotation.turn(row)
    np.testing.assert_allclose(rows @ rows.T, np.eye(elements), atol=1e-5)
    for row in rows:
        rotation.turn_back(row)
    np.testing.assert_allclose(rows, np.eye(elements), atol=1e-5)


@pytest.mark.parametrize("workers", [1, 3])
def test_without_loss_it_is_the_mean_to_rounding(workers):
    gradients = gradients_of(workers, LAYOUT)
    result = through(gradients, [arrived()] * workers)
    np.testing.assert_allclose(result, gradients.mean(axis=0), atol=3e-6)


def test_the_gradient_itself_is_not_touched():
    gradient = buffer_of(gradients_of(1, LAYOUT)[0], LAYOUT)
    before = gradient.copy()
    payload = Hadamard().sender_memory(LAYOUT).payload(gradient)
    assert np.array_equal(gradient, before)
    assert not np.allclose(LAYOUT.floats(payload), LAYOUT.floats(gradient))


@pytest.mark.parametrize("elements", [3, 4, 6])
def test_over_all_signs_the_expectation_is_what_shares_says_whatever_is_lost(elements):
    """By enumeration: not one draw less, so no tolerance but rounding."""
    rotation = Rotation(elements, seed=0)
    (first, _), (last, _) = rotation._steps
    vector = np.arange(1, elements + 1, dtype=np.float32)
    signs = list(itertools.product((-1, 1), repeat=rotation.size))
    for mask in itertools.product((False, True), repeat=elements):
        total = np.zeros(elements)
        for one, two in itertools.product(signs, signs):
            rotation._steps = [(first, np.array(one, np.int8)), (last, np.array(two, np.int8))]
            turned = vector.copy()
            rotation.turn(turned)
            turned *= np.array(mask)
            rotation.turn_back(turned)
            total += turned
        factors = np.repeat(
            rotation.shares(np.array(mask)), [rotation.size, elements - rotation.size]
        )
        np.testing.assert_allclose(total / len(signs) ** 2, factors * vector, atol=1e-4)


@pytest.mark.parametrize(
    "received",
    [
        [arrived(0, 1, 2)],  # the beginning, which is turned once
        [arrived(8, 9, 10, 11)],  # the end, as of a receiver that stops early
        [arrived(), arrived(5), arrived(0, 3, 7, 8, 9, 11)],
    ],
)
def test_it_is_unbiased_over_seeds_although_the_same_chunks_are_lost(received):
    gradients = gradients_of(len(received), LAYOUT)
    errors = np.array(
        [through(gradients, received, seed=seed) - gradients.mean(axis=0) for seed in range(SEEDS)]
    )
    spread = errors.std(axis=0, ddof=1)
    exact = spread < 1e-5  # what is turned once has no part in a loss of what is not turned again
    assert np.abs(errors[:, exact]).max(initial=0) < 1e-5 and np.count_nonzero(~exact) >= 32
    z = (errors.mean(axis=0) / (spread / np.sqrt(SEEDS)))[~exact]
    # Their mean square is near 1 if they are unbiased, and none lies far out.
    assert np.abs(z).max() < 4.5
    assert np.mean(z**2) < 1.7
    plain = [through(gradients, received, seed=seed, rescale=False) for seed in range(SEEDS)]
    shrunk = np.mean(plain, axis=0) @ gradients.mean(axis=0) / np.sum(gradients.mean(axis=0) ** 2)
    assert shrunk < 0.95


def test_a_lost_chunk_is_noise_in_all_elements():
    """All the energy lies in one chunk, which is lost: without the transform nothing is left."""
    layout = layout_of(256)
    gradient = np.zeros(layout.element_count, dtype=np.float32)
    gradient[400:404] = 10
    received = [arrived(100, chunks=256)]
    assert not estimate("zero", [gradient], received, layout).any()
    error = through([gradient], received, layout=layout, rescale=False) - gradient
    share = np.sum(error**2) / np.sum(gradient**2)
    assert 0 < share < 5 / 256
    assert np.count_nonzero(error) > 0.9 * layout.element_count


def test_of_a_payload_of_which_nothing_arrived_the_estimate_is_zero():
    gradients = gradients_of(2, LAYOUT)
    nothing = arrived(*range(12))
    assert not through(gradients, [nothing, nothing]).any()
    result = through(gradients, [arrived(), nothing])
    np.testing.assert_allclose(result, gradients[0] / 2, atol=3e-6)


def test_replicas_are_equal_where_the_same_chunks_arrived_and_differ_elsewhere():
    (mean,) = gradients_of(1, LAYOUT)
    one, two, three = (through([mean], [each]) for each in (arrived(), arrived(), arrived(4)))
    assert one.tobytes() == two.tobytes()
    assert np.count_nonzero(one != three) > 40
    same = [through([mean], [arrived(4, 7)]).tobytes() for _ in range(2)]
    assert same[0] == same[1]


def test_a_broadcast_is_turned_once_for_all_workers_in_each_round():
    debts, workers = Debts(FILLINGS.create("hadamard"), LAYOUT, ["a", "b"]), ["a", "b"]
    for gradient in gradients_of(2, LAYOUT):
        payloads = debts.payloads(buffer_of(gradient, LAYOUT), workers)
        assert payloads["a"] is payloads["b"]
        everything = [arrived()]
        result = estimate("hadamard", [LAYOUT.floats(payloads["b"])], everything, LAYOUT)
        np.testing.assert_allclose(result, gradient, atol=3e-6)
        debts.settle({name: report(arrived()) for name in workers}, None)


@pytest.mark.parametrize("seed", ["-1", "0.5"])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        FILLINGS.create(f"hadamard:seed={seed}")
