"""The filling `signs`: what is sent, what is owed, and that the coding of kernel TCP carries it."""

import numpy as np
import pytest

from testbed.shared.input_error import InputError
from testbed.training.broadcasts import Debts
from testbed.training.filling import FILLINGS, Signs
from testbed.transport.net.tcp_compression import TwoValues
from tests.training.one_round import LAYOUT, buffer_of, gradients_of, report

EVERYTHING = np.ones(4, dtype=np.bool_)


def sent_by(memory, gradient):
    """One transfer that delivers all."""
    payload = memory.payload(buffer_of(gradient)).copy()
    TwoValues().pack(LAYOUT, payload)  # which refuses any other
    memory.settle(report(EVERYTHING))
    return payload


def test_elements_become_the_means_of_those_above_0_and_of_the_others_in_their_chunk():
    gradient = [1, 2, 6, -4, 5, 5, 5, 5, -1, -2, 0, -1, 4, -1, 2]
    memory = Signs().sender_memory(LAYOUT)
    payload = sent_by(memory, gradient)
    expected = [3, 3, 3, -4, 5, 5, 5, 5, -1, -1, -1, -1, 3, -1, 3]
    assert LAYOUT.floats(payload).tolist() == expected
    # What follows the last chunk's three elements is no part of their mean, and stays zero.
    assert not payload[LAYOUT.payload_bytes :].any()
    assert LAYOUT.floats(memory.owed).tolist() == np.subtract(gradient, expected).tolist()


def test_what_was_sent_and_what_is_owed_are_the_sum_of_all_gradients():
    memory, gradients = Signs().sender_memory(LAYOUT), gradients_of(200) - np.float32(1)
    sent = np.zeros(LAYOUT.element_count)
    for gradient in gradients:
        sent += LAYOUT.floats(sent_by(memory, gradient))
    total = gradients.sum(axis=0, dtype=np.float64)
    np.testing.assert_allclose(sent + LAYOUT.floats(memory.owed), total, atol=1e-4)
    assert np.abs(LAYOUT.floats(memory.owed)).max() < 0.5 * np.abs(gradients).sum(axis=0).min()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_makes_its_chunk_none_and_is_not_owed(odd):
    memory, (first, second) = Signs().sender_memory(LAYOUT), gradients_of(2)
    first[5] = odd
    payload = LAYOUT.floats(sent_by(memory, first))
    assert np.flatnonzero(np.isnan(payload)).tolist() == [4, 5, 6, 7]
    assert np.isfinite(memory.owed.view("<f4")).all()
    assert np.isfinite(LAYOUT.floats(sent_by(memory, second))).all()


def test_numbers_whose_sum_is_too_large_have_a_mean():
    largest = np.finfo(np.float32).max
    payload = sent_by(Signs().sender_memory(LAYOUT), np.full(15, largest))
    assert (LAYOUT.floats(payload) == largest).all()


def test_a_broadcast_is_quantised_once_for_all_workers_in_each_round():
    workers = ["a", "b"]
    debts, alone = Debts(FILLINGS.create("signs"), LAYOUT, workers), Signs().sender_memory(LAYOUT)
    for mean in gradients_of(3):
        payloads = debts.payloads(buffer_of(mean), workers)
        assert payloads["a"] is payloads["b"]
        assert payloads["a"].tobytes() == sent_by(alone, mean).tobytes()
        sent = {name: report(EVERYTHING) for name in workers}
        assert debts.common(sent) is None
        debts.settle(sent, None)


def test_a_lost_chunk_is_refused_because_nobody_would_owe_it():
    memory = Signs().sender_memory(LAYOUT)
    memory.payload(buffer_of(1.0))
    with pytest.raises(
        InputError, match="transfer to server does not say that all chunks have arrived"
    ):
        memory.settle(report(np.array([True, True, False, True])))
