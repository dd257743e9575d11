"""The order `by-energy`: which chunks must arrive, which are urgent, and which go first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import (
    Leg,
    OrderContext,
)
from testbed.transport.core import worth
from testbed.transport.policies.order import ByEnergy
from tests.transport.energy_rounds import (
    energies,
    must_of,
)
from tests.transport.virtual import layout_of, random_payload


@given(st.integers(0, 1000), st.integers(1, 40))
def test_each_chunk_must_arrive_once_in_so_many_rounds(first, within):
    layout, musts = layout_of(50), np.zeros(50, np.int64)
    order = ByEnergy(floor=1e-9, within_rounds=within)
    payload = random_payload(layout)
    for number in range(first, first + within):
        context = OrderContext(
            transfer=Leg.GATHER.transfer(number), layout=layout, rows=layout.rows(payload)
        )
        arranger = order.arranger(context)
        musts += must_of(arranger)
        assert np.array_equal(arranger(np.arange(50)), order.permutation(context))
    assert (musts >= 1).all()
    assert np.count_nonzero(musts > 1) <= 1  # the floor is one chunk here


@pytest.mark.parametrize(("layouts", "within"), [(2, 60), (61, 61), (4, 8)])
def test_each_layout_has_turns_of_its_own(layouts, within):
    layout, musts = layout_of(122), np.zeros(122, np.int64)
    order = ByEnergy(floor=1e-9, within_rounds=within)
    rows = layout.rows(random_payload(layout))
    for step in range(within):  # the layout's own rounds are all `layouts` rounds
        number = Leg.GATHER.transfer(layouts * step + 1)
        context = OrderContext(transfer=number, layout=layout, rows=rows, layouts=layouts)
        musts += must_of(order.arranger(context))
    assert (musts >= 1).all()


@given(st.integers(0, 1000), st.floats(0.01, 1.0))
def test_what_must_arrive_holds_the_floor_and_goes_first(seed, floor):
    layout, payload = layout_of(60), random_payload(layout_of(60), seed)
    context = OrderContext(transfer=0, layout=layout, rows=layout.rows(payload))
    arranger = ByEnergy(floor=floor, within_rounds=1000).arranger(context)
    energy = energies(layout, payload)
    must = must_of(arranger)
    assert energy[must].sum() >= floor * energy.sum() * (1 - 1e-9)
    ranked = arranger(np.arange(60))
    assert must[ranked][: must.sum()].all()
    assert (np.diff(energy[ranked[must.sum() :]]) <= 0.13 * energy.max()).all()


def context_of(number, **more):
    layout = layout_of(50)
    return OrderContext(
        transfer=Leg.GATHER.transfer(number),
        layout=layout,
        rows=layout.rows(random_payload(layout)),
        **more,
    )


def worth_of(order, context):
    values = order.arranger(context).worth
    assert values is not None
    return values


def test_what_did_not_come_must_come_in_the_next_round_and_at_its_turn_in_any_case():
    order = ByEnergy(floor=1e-9, within_rounds=50)  # in round n the chunk n has its turn
    overdue = np.isin(np.arange(50), [7, 8])
    usual = worth_of(order, context_of(8))
    now = worth_of(order, context_of(8, overdue=overdue))
    assert now[7] == usual[7] | worth.MUST > usual[7]
    assert now[8] == worth.MUST < usual[8]
    assert np.array_equal(now[9:], usual[9:])


def test_one_peer_is_sent_again_what_holds_the_floor_and_several_what_all_must_have():
    order = ByEnergy(floor=0.1, within_rounds=50)
    alone, shared = (order.arranger(context_of(8, shared=shared)) for shared in (False, True))
    assert np.array_equal(must_of(alone), must_of(shared))
    assert np.array_equal(shared.urgent, must_of(shared))
    energy = energies(layout_of(50), random_payload(layout_of(50)))
    first = shared(np.arange(50))
    assert not alone.urgent[8]  # it has its turn
    assert shared.urgent[8]
    assert energy[alone.urgent].sum() >= 0.3 * energy.sum() > energy[must_of(alone)].sum()
    assert must_of(alone)[first[0]]
