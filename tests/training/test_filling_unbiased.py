"""Some fillings are unbiased: this is shown by enumeration, and through the transport itself."""

import itertools

import numpy as np
import pytest

from testbed.transport import ORDERS, REPAIRS, Leg
from tests.training.one_round import estimate, gradients_of
from tests.transport.virtual import Network, bernoulli, layout_of, transfer

# The exact expectation, over every way in which chunks may be lost.


def exact_expectation(filling, gradients, counts):
    """The mean over all choices of `counts[w]` chunks from each worker, each equally likely."""
    choices = [
        [np.isin(range(4), chosen) for chosen in itertools.combinations(range(4), count)]
        for count in counts
    ]
    results = [
        estimate(filling, gradients, received).astype(np.float64)
        for received in itertools.product(*choices)
    ]
    return np.mean(results, axis=0)


@pytest.mark.parametrize("counts", [(1,), (3,), (2, 2), (3, 3), (1, 1, 1), (2, 2, 2)])
def test_rescale_is_exactly_unbiased_when_every_chunk_is_lost_alike(counts):
    gradients = gradients_of(len(counts))
    expected = gradients.mean(axis=0)
    np.testing.assert_allclose(exact_expectation("rescale", gradients, counts), expected, atol=1e-6)


def test_rescale_leans_towards_the_worker_that_loses_less():
    gradients = gradients_of(2)
    expected = gradients.mean(axis=0)
    biased = exact_expectation("rescale", gradients, (1, 3))
    towards_the_second = (biased - expected) / (gradients[1] - expected)
    assert (towards_the_second > 0.2).all()


@pytest.mark.parametrize("filling", ["zero", "error-feedback"])
def test_zero_is_too_small_by_what_is_missing(filling):
    gradients = gradients_of(2)
    expected = gradients.mean(axis=0) * 3 / 4
    np.testing.assert_allclose(exact_expectation(filling, gradients, (3, 3)), expected, atol=1e-6)


# Through the transport's own orders, stop rule and repair, in virtual time.

STATISTICS = layout_of(40)
TOLERANCE = 0.408
SEEDS = 50


def round_errors(*, loss, repair):
    """Estimate by `rescale` minus truth after gather and broadcast: shape (SEEDS, elements)."""

    def arrived(number, own):
        """It returns the chunks that a receiver has when it stops."""
        outcome = transfer(
            STATISTICS.new_buffer(),
            STATISTICS,
            tolerance=TOLERANCE,
            repair=REPAIRS.create(repair),
            order=ORDERS.create("shuffled", seed=own),
            network=Network(survives=bernoulli(loss, own), seed=own),
            number=number,
        )
        return outcome.receiver.received

    gradients = gradients_of(3, STATISTICS)
    errors = []
    for seed in range(SEEDS):
        gathered = [arrived(Leg.GATHER.transfer(seed), 10 * seed + rank) for rank in range(3)]
        broadcast = [arrived(Leg.BROADCAST.transfer(seed), 10 * seed + 9)]
        mean = estimate("rescale", gradients, gathered, STATISTICS)
        result = estimate("rescale", [mean], broadcast, STATISTICS)
        errors.append(result - gradients.mean(axis=0))
    return np.array(errors, dtype=np.float64)


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("repair", ["passes", "streaming"])
def test_shuffled_and_rescaled_both_legs_are_unbiased_within_the_standard_error(repair, loss):
    errors = round_errors(loss=loss, repair=repair)
    standard_error = errors.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    z = errors.mean(axis=0) / standard_error
    # 160 elements: their mean square is near 1 if they are unbiased, and none lies far out.
    assert np.abs(z).max() < 4.5
    assert 0.6 < np.mean(z**2) < 1.5
