"""Chunk orders: permutations that stay the same within a transfer, and what each is for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import ORDERS, OrderContext, PayloadLayout
from tests.shared.entries import every
from tests.transport.virtual import layout_of, random_payload

EVERY = every(ORDERS, "shuffled:seed=3", "largest-magnitude-first")
# Tensors that end within chunks of 4 elements: a fills 0 and half of 1, empty nothing.
TENSORS = [("a", 6), ("empty", 0), ("b.weight", 11), ("b.bias", 1), ("c", 14)]
MIXED = PayloadLayout(TENSORS, 16)


def context(layout=MIXED, transfer_number=0, payload=None):
    payload = random_payload(layout) if payload is None else payload
    return OrderContext(transfer=transfer_number, layout=layout, rows=layout.rows(payload))


def order_of(text, **given):
    return ORDERS.create(text).permutation(context(**given)).tolist()


@pytest.mark.parametrize("text", EVERY)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6), number=st.integers(0, 2**32 - 1)
)
def test_an_order_is_a_permutation(text, counts, number):
    names = ["a", *(f"b{index}" for index in range(1, len(counts)))]
    layout = PayloadLayout([*zip(names, counts, strict=True), ("b", 1)], 16)
    order = order_of(text, layout=layout, transfer_number=number)
    assert sorted(order) == list(range(layout.chunk_count))


@pytest.mark.parametrize("text", EVERY)
@given(missing=st.sets(st.integers(0, MIXED.chunk_count - 1)), number=st.integers(0, 100))
def test_what_is_sent_again_keeps_its_place(text, missing, number):
    order = ORDERS.create(text)
    where = context(transfer_number=number)
    arrange = order.arranger(where)
    ascending = np.array(sorted(missing), dtype=np.int64)
    expected = [chunk for chunk in order.permutation(where) if chunk in missing]
    assert arrange(ascending).tolist() == expected
    assert arrange(ascending).tolist() == expected  # in the next pass too


def test_shuffled_depends_on_seed_and_transfer_alone():
    layout = layout_of(100)
    orders = {
        (seed, number): tuple(
            order_of(f"shuffled:seed={seed}", layout=layout, transfer_number=number)
        )
        for seed in (0, 1)
        for number in (0, 1, 2)
    }
    assert len(set(orders.values())) == 6
    other_payload = context(layout, 1, random_payload(layout, seed=9))
    assert tuple(ORDERS.create("shuffled", seed=1).permutation(other_payload)) == orders[1, 1]


def test_magnitudes_of_many_chunks_are_ordered_as_by_a_plain_sort():
    layout = layout_of(3000, last_elements=3)
    payload = layout.new_buffer()
    # Few different values, so that many chunks are equal; their sums are exact.
    values = layout.floats(payload)
    values[:] = np.random.default_rng(1).integers(-2, 3, len(values))
    rows = np.abs(layout.rows(payload).view("<f4"))
    score = rows.sum(axis=1) / (layout.chunk_lengths / 4)
    expected = sorted(range(3000), key=lambda chunk: (-score[chunk], chunk))
    assert order_of("largest-magnitude-first", layout=layout, payload=payload) == expected


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_chunk_with_a_value_that_is_no_number_goes_first(odd):
    layout = layout_of(4)
    payload = random_payload(layout)
    layout.floats(payload)[9] = odd
    layout.floats(payload)[0] = 3e38
    order = order_of("largest-magnitude-first", layout=layout, payload=payload)
    assert order[:2] == [2, 0]
    # Large finite values are none of these, although their sum is.
    layout.floats(payload)[:] = [2e38] * 4 + [3e38] * 4 + [0] * 8
    order = order_of("largest-magnitude-first", layout=layout, payload=payload)
    assert order == [1, 0, 2, 3]
