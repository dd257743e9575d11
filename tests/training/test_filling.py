"""Fillings: what stands where, what is conserved, and what is left as it is."""

import numpy as np
import pytest

from testbed.training.filling import mean_into
from testbed.training.fillings import FILLINGS, ErrorFeedback
from testbed.training.logs import nonfinite
from tests.shared.entries import every
from tests.training.one_round import LAYOUT, buffer_of, estimate, gradients_of, report


def masks(*rows):
    return [np.array(row, dtype=np.bool_) for row in rows]


# Hadamard changes what is sent; it has tests of its own.
EVERY = [text for text in every(FILLINGS) if text != "hadamard"]


@pytest.mark.parametrize("filling", EVERY)
@pytest.mark.parametrize("workers", [1, 3])
def test_with_everything_there_it_is_the_plain_mean_bit_for_bit(filling, workers):
    gradients = gradients_of(workers)
    expected = np.empty(LAYOUT.element_count, dtype=np.float32)
    mean_into(list(gradients), expected)
    result = estimate(filling, gradients, masks(*[[1, 1, 1, 1]] * workers))
    assert result.tobytes() == expected.tobytes()


def test_where_nothing_came_the_estimate_is_zero():
    """Rules with a time limit may stop before the first chunk."""
    nothing = [0, 0, 0, 0]
    assert not estimate("rescale", gradients_of(2), masks(nothing, nothing)).any()
    one = estimate("rescale", gradients_of(2), masks([1, 1, 1, 1], nothing))
    assert np.isfinite(one).all() and one.any()


# Memory.


@pytest.mark.parametrize("loss", [0.1, 0.9])
def test_error_feedback_loses_nothing_for_good(loss):
    generator = np.random.default_rng(0)
    memory = ErrorFeedback().sender_memory(LAYOUT)
    applied, total = np.zeros(15), np.zeros(15)
    for _ in range(200):
        gradient = generator.integers(-8, 9, 15)  # whole numbers, so that sums are exact
        payload = LAYOUT.floats(memory.payload(buffer_of(gradient))).copy()
        received = generator.random(4) >= loss
        applied += estimate("error-feedback", [payload], [received])
        memory.settle(report(received))
        total += gradient
        np.testing.assert_array_equal(applied + LAYOUT.floats(memory.residual), total)
    assert np.count_nonzero(applied)


def test_error_feedback_needs_to_hear_what_arrived_and_owes_nothing_if_that_is_all():
    memory = ErrorFeedback().sender_memory(LAYOUT)
    memory.payload(buffer_of(1.0))
    with pytest.raises(ValueError, match="the transfer to worker-2 does not say what arrived"):
        memory.settle(report(None, peer="worker-2"))
    memory.settle(report(None, chunks_received=4))
    assert not memory.residual.any()


@pytest.mark.parametrize("filling", [t for t in EVERY if "feedback" not in t])
def test_a_sender_without_memory_sends_the_gradient_itself(filling):
    memory = FILLINGS.create(filling).sender_memory(LAYOUT)
    gradient = buffer_of(1.0)
    assert memory.payload(gradient) is gradient
    memory.settle(report(None))


# Odd values and mistakes.


@pytest.mark.parametrize("filling", EVERY)
def test_what_is_not_a_number_is_delivered_as_it_is_and_counted(filling):
    gradients = gradients_of(2)
    gradients[0][1], gradients[1][5], gradients[1][6] = np.nan, np.inf, -np.inf
    result = estimate(filling, gradients, masks([1, 1, 1, 1], [1, 1, 1, 0]))
    assert np.isnan(result[1])
    assert result[5:7].tolist() == [np.inf, -np.inf]
    assert nonfinite(result) == 3
    # It is gone once it is not sent any more, and where it was lost.
    assert nonfinite(estimate(filling, gradients_of(2), masks([1, 1, 1, 1], [1, 1, 1, 0]))) == 0
    assert nonfinite(estimate(filling, gradients, masks([0, 1, 1, 1], [1, 0, 1, 1]))) == 0


@pytest.mark.parametrize("text", [*EVERY, "hadamard"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_a_number_is_in_no_later_mean(text, wrong):
    """Neither half keeps it, whether its chunk has arrived or not."""
    filling = FILLINGS.create(text)
    memories = [filling.sender_memory(LAYOUT) for _ in range(2)]
    buffers = [LAYOUT.new_buffer() for _ in range(2)]
    for step in range(5):
        lost = np.roll([0, 1, 0, 0], step)  # each in turn
        received = masks(1 - lost, 4 * [1])
        gradients = gradients_of(2, seed=step)
        if step < 2:
            gradients[0][1::4] = wrong
        sent = []
        for memory, gradient, mask in zip(memories, gradients, received, strict=True):
            sent.append(LAYOUT.floats(memory.payload(buffer_of(gradient))).copy())
            memory.settle(report(mask))
        mean = estimate(filling, sent, received, buffers=buffers)
        assert step < 2 or nonfinite(mean) == 0
