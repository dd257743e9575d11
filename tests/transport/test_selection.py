"""Selection: the part `keep` of a payload's chunks is sent, those with the most energy."""

from itertools import product

import numpy as np
import pytest

from testbed.transport import PayloadLayout, preset
from testbed.transport.chunk_energy import MUST, Selection
from testbed.transport.order import OrderContext, sending_order
from testbed.transport.repair import REPAIRS
from tests.shared.entries import every
from tests.transport.virtual import (
    FixedRate,
    Network,
    Two,
    all_frames,
    bernoulli,
    layout_of,
    new_receiver,
    random_payload,
    reports,
    transfer,
)

CHUNKS = 200
ORDERS_AND_MARKS = [
    ("in-order", "none"),
    ("shuffled", "none"),
    ("in-order", "layer-and-magnitude"),
    ("by-energy:share=0.9", "none"),
]


def payload_of(layout, seed=1):
    """Chunks that differ in energy by orders of magnitude."""
    payload = random_payload(layout, seed)
    factors = np.exp(np.random.default_rng(seed).standard_normal(layout.chunk_count))
    layout.rows(payload).view("<f4")[:] *= factors.astype(np.float32)[:, np.newaxis]
    return payload


def chosen_of(layout, payload, keep):
    return Selection(keep).chosen(layout, layout.rows(payload))


def test_the_most_energetic_are_chosen_the_first_of_equals_and_what_is_no_number():
    layout = layout_of(6)
    payload = layout.new_buffer()
    rows = layout.rows(payload).view("<f4")
    rows[:, 0] = 1, 3, 3, 2, np.nan, 3
    for keep, chunks in ((0.1, [4]), (0.34, [1, 2, 4]), (0.5, [1, 2, 4]), (0.84, range(6))):
        assert np.flatnonzero(chosen_of(layout, payload, keep)).tolist() == list(chunks)


@pytest.mark.parametrize("repair", every(REPAIRS))
@pytest.mark.parametrize(("order", "marks"), ORDERS_AND_MARKS)
def test_exactly_the_chosen_chunks_arrive_whatever_is_lost(repair, order, marks):
    layout = layout_of(CHUNKS)
    payload = payload_of(layout)
    for keep, loss in product((0.07, 0.5), (0.0, 0.4)):
        outcome = transfer(
            payload,
            layout,
            network=(network := Network(survives=bernoulli(loss, 5))),
            repair=REPAIRS.create(repair),
            order=sending_order(order, marks, keep, seed=3),
        )
        chosen = chosen_of(layout, payload, keep)
        assert np.array_equal(outcome.receiver.received, chosen)
        assert np.array_equal(layout.rows(outcome.into)[chosen], layout.rows(payload)[chosen])
        assert not layout.rows(outcome.into)[~chosen].any()
        assert sorted(network.sent_of) == np.flatnonzero(chosen).tolist()
        report = outcome.sender.report("peer")
        assert report.received is not None and np.array_equal(report.received, chosen)
        assert report.chunk_count == CHUNKS and report.chunks_received == chosen.sum()
        if not loss:
            assert report.chunks_sent == chosen.sum()


@pytest.mark.parametrize("repair", every(REPAIRS))
def test_the_share_that_may_be_missing_is_one_of_the_chosen(repair):
    layout = layout_of(CHUNKS)
    payload = payload_of(layout)
    outcome = transfer(
        payload,
        layout,
        tolerance=0.25,
        network=Network(survives=bernoulli(0.3, 5)),
        congestion=FixedRate(rate_bps=1e5),  # each datagram comes by itself
        repair=REPAIRS.create(repair),
        order=sending_order("shuffled", "none", 0.5, seed=3),
    )
    received = outcome.receiver.received
    assert received.sum() == 75
    assert not (received & ~chosen_of(layout, payload, 0.5)).any()


def test_energy_is_of_the_chosen_alone_and_bounds_what_may_be_missing_of_it():
    layout = layout_of(CHUNKS)
    payload = payload_of(layout)
    order = sending_order("by-energy:floor=0.7,within_rounds=3", "none", 0.1, seed=0)
    assert order.sends_energy
    arranger = order.arranger(OrderContext(transfer=6, layout=layout, rows=layout.rows(payload)))
    chosen, levels = chosen_of(layout, payload, 0.1), arranger.energy_levels
    assert levels is not None and not levels[~chosen].any() and levels[chosen].all()
    assert sorted(arranger(np.arange(CHUNKS))) == np.flatnonzero(chosen).tolist()
    # The floor is one of the energy of the chosen; of the rotating ones, too, none else must come.
    energy = np.square(layout.rows(payload).view("<f4").astype(float)).sum(axis=1) * chosen
    ranked = np.argsort(-energy, kind="stable")
    floor = ranked[: np.searchsorted(np.cumsum(energy[ranked]), 0.7 * energy.sum()) + 1]
    rotating = np.flatnonzero(chosen & (np.arange(CHUNKS) % 3 == 0))
    assert np.array_equal(np.flatnonzero(levels >= MUST), np.union1d(floor, rotating))
    assert arranger.needed == chosen.sum()
    policy = preset("bounded-energy").gather
    network = Network(survives=bernoulli(0.5, 5))
    outcome = transfer(
        payload, layout, rule=policy.stop_rule(False)(layout), network=network, order=order
    )
    held = energy[outcome.receiver.received].sum() / energy.sum()
    assert held >= 0.95
    assert not (outcome.receiver.received & ~chosen).any()


def test_bounds_of_tensors_count_what_is_not_sent_and_then_all_that_is_sent_comes():
    layout = PayloadLayout([("a", 200), ("b", 200)], 16)
    payload = payload_of(layout)
    policy = preset("per-layer").gather
    outcome = transfer(
        payload,
        layout,
        rule=policy.stop_rule(False)(layout),
        network=Network(survives=bernoulli(0.3, 5)),
        order=sending_order("in-order", "none", 0.5, seed=0),
    )
    assert np.array_equal(outcome.receiver.received, chosen_of(layout, payload, 0.5))


def test_chosen_chunks_may_come_before_they_are_asked_for():
    two = Two(chunks=CHUNKS, order=sending_order("in-order", "none", 0.5, seed=0))
    payload = payload_of(two.layout)
    two.send(6, payload)
    two.run(until_s=0.5)
    two.receive(6)
    two.run()
    (received,), (sent,) = reports(two.server), reports(two.worker)
    chosen = chosen_of(two.layout, payload, 0.5)
    for report in (received, sent):
        assert report.received is not None and np.array_equal(report.received, chosen)
    assert np.array_equal(
        two.layout.rows(two.into[6]), np.where(chosen[:, np.newaxis], two.layout.rows(payload), 0)
    )


def test_a_peer_that_sends_other_chunks_than_it_agreed_to_ends_its_transfer_and_no_more():
    layout = layout_of(CHUNKS)
    order = sending_order("in-order", "none", 0.5, seed=0)
    receiver, into = new_receiver(layout, order=order)
    frames = all_frames(layout)
    receiver.on_datagrams(frames[:99], 0.0)
    assert (receiver.stopped, receiver.missing) == (False, 1)
    receiver.on_datagrams(frames[99:], 0.0)  # twice as many, in one batch
    assert receiver.stopped
    assert receiver.report("peer").chunks_received == CHUNKS
    assert np.array_equal(into, random_payload(layout))
