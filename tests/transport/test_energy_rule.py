"""The tolerance `bounded-energy`: what a receiver has when it stops, and when it is late."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.transport import PayloadLayout, preset
from testbed.transport.core import worth
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.incoming import Incoming
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.order import Arranger
from testbed.transport.core.tolerance import Lookback, Slowest
from testbed.transport.policies.order import ORDERS, InOrder, OrderContext
from testbed.transport.policies.repair import Passes
from testbed.transport.policies.tolerance import BoundedEnergy
from tests.transport.transfer_parts import all_frames, new_receiver, progress
from tests.transport.virtual import SESSION, layout_of

FIRST = [True, False, False, False]  # the chunk that is there, of four


@given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.booleans())
@example(107, 0.9296875, False)
def test_it_never_stops_above_its_bound(seed, share, late):
    draws = np.random.default_rng(seed)
    energy = np.exp(3 * draws.standard_normal(80))
    values = worth.encode(energy)
    values[draws.integers(0, 80, 3)] |= worth.MUST
    layout = layout_of(80)
    rule = BoundedEnergy(share=share, patience=2.0).stop_rule(False)(layout)
    received = np.zeros(80, np.bool_)
    for chunk in draws.permutation(80):
        received[chunk] = True
        slowest = [(10.0 if count % 4 else 99.0, count) for count in range(1, 161)]
        now_s = 20.0 if late else 19.9
        state = progress(received, now_s=now_s, worth=values, first_sign_s=0.0, slowest=slowest)
        least = rule.missing(state)
        whole = received[values >= worth.MUST].all()
        enough = energy[~received].sum() <= (1 - share) * energy.sum() * (1 + 1e-9)
        if rule.satisfied(state):
            assert whole
            assert late or enough
            return
        assert least is not None
        assert not (late and whole)
        # It may lack what the bytes do not tell, but no more: a step above for what is missing,
        # and a step below for what is there.
        assert not whole or energy[~received].sum() * 1.27 >= (1 - share) * energy.sum()
    raise AssertionError("it lacks nothing")


@given(st.integers(0, 10_000), st.floats(0.01, 1.0), st.floats(0.0, 3.0))
def test_a_part_of_the_chunks_is_enough_if_it_holds_what_the_most_energetic_do(
    seed, at_most, spread
):
    draws = np.random.default_rng(seed)
    energy = np.exp(spread * draws.standard_normal(80))
    values = worth.encode(energy)
    policy = BoundedEnergy(share=0.95, at_most=at_most)
    most = math.ceil(at_most * 80)

    def needed(order):
        rule, received = policy.stop_rule(False)(layout_of(80)), np.zeros(80, np.bool_)
        for count, chunk in enumerate(order, start=1):
            received[chunk] = True
            if rule.satisfied(progress(received, worth=values)):
                return count, energy[received].sum() / energy.sum()
        raise AssertionError("it lacks something")

    largest_first = worth.by_worth(values)
    count, held = needed(largest_first)
    assert count == min(most, worth.enough(values, 0.95)[0])
    # A byte is rounded to a sixth of a power of two.
    assert needed(draws.permutation(80))[1] >= held / 1.27
    fewest, _ = needed(largest_first[::-1])
    assert fewest >= count


@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_a_late_one_with_a_floor_has_it_in_any_chunks(seed, floor):
    draws = np.random.default_rng(seed)
    energy = np.exp(3 * draws.standard_normal(80))
    values = worth.encode(energy)
    values[draws.integers(0, 80, 3)] |= worth.MUST  # no late one waits for these
    last = int(draws.integers(0, 80))
    values[last] = worth.MUST  # but for this one
    rule = BoundedEnergy(floor=floor).stop_rule(False)(layout_of(80))
    received = np.zeros(80, np.bool_)
    slowest = [(1.0, count) for count in range(1, 161)]
    for chunk in draws.permutation(80):
        received[chunk] = True
        state = progress(received, now_s=100.0, worth=values, first_sign_s=0.0, slowest=slowest)
        least = rule.missing(state)
        if rule.satisfied(state):
            assert least == 0
            assert received[last]
            assert energy[received].sum() >= floor * energy.sum() * (1 - 1e-9)
            return
        assert least == 1
        lacking = energy[~received & (np.arange(80) != last)].sum()
        assert not received[last] or lacking * 1.27 >= (1 - floor) * energy.sum() - energy[last]
    raise AssertionError("it lacks nothing")


def test_it_says_at_the_least_how_many_more_must_come():
    rule = BoundedEnergy(share=0.5).stop_rule(False)(layout_of(4))
    values = np.array([0, 127, 127, 127 | worth.MUST], np.uint8)

    def having(*received, worth=values):
        return progress(np.isin(np.arange(4), received), worth=worth)

    assert rule.missing(having(0, worth=None)) == 3
    assert not rule.satisfied(having(0, 1, 2, worth=None))
    assert rule.missing(having()) == 2
    assert rule.missing(having(1, 2)) == 1
    assert not rule.satisfied(having(1, 2))
    assert rule.satisfied(having(1, 3))


def late_progress(recent):
    """Of four chunks that all hold as much and are needed; the first came at 4.0 s."""
    values = np.array([worth.MUST | 90, 90, 90, 90], np.uint8)
    at_s = dict.fromkeys(("now_s", "first_s", "last_s", "first_sign_s"), 4.0)
    return progress(FIRST, **at_s, worth=values, slowest=recent)


def test_when_it_is_late_is_decided_once():
    rule = BoundedEnergy(share=0.9, patience=2.0).stop_rule(False)(layout_of(4))
    recent: list[tuple[float, int]] = []
    state = late_progress(recent)
    assert rule.deadline_s(state) is None
    recent.append((1.0, 4))
    assert rule.deadline_s(state) == 6.0
    recent[:] = [(9.0, 4)]  # others that end meanwhile change nothing
    assert rule.deadline_s(state) == 6.0
    assert rule.satisfied(replace(state, now_s=6.0))


@pytest.mark.parametrize(
    ("took", "late_s"),
    [((1.0, 2), 8.0), ((1.0, 4), 6.0), ((1.0, 8), 6.0), ((1.0, 1), None), ((1.0, 9), None)],
)
def test_one_that_had_fewer_chunks_counts_as_if_it_had_gone_on(took, late_s):
    rule = BoundedEnergy(share=0.9, patience=2.0).stop_rule(False)(layout_of(4))
    assert rule.deadline_s(late_progress([took])) == late_s


def test_a_transfer_is_not_late_because_it_was_asked_for_late():
    layout = layout_of(4)
    rule = BoundedEnergy(share=0.9, patience=2.0).stop_rule(False)(layout)
    lookback = Lookback()
    lookback.note(0, (1.0, 4))
    receiver, _ = new_receiver(layout, rule=None, lookback=lookback)
    receiver.on_datagrams(all_frames(layout)[:1], 0.0)
    receiver.adopt(layout.new_buffer(), rule, 10.0)
    body = bytes([worth.MUST | 90, 90, 90, 90])
    receiver.on_message(ControlMessage(MessageType.WORTH, 6, body), 10.0)
    assert not receiver.stopped
    assert receiver.next_deadline_s() == 12.0
    receiver.on_deadline(12.0)
    assert receiver.stopped
    assert receiver.took is None  # nor does it tell how long others take


@pytest.mark.parametrize(("early", "took"), [(0, (13.0, 4)), (1, (3.0, 3)), (4, None)])
def test_what_comes_after_it_was_asked_for_tells_how_long_others_take(early, took):
    layout = layout_of(4)
    receiver, _ = new_receiver(layout, rule=None)
    receiver.on_message(ControlMessage(MessageType.WORTH, 6, bytes([90] * 4)), 0.0)
    receiver.on_datagrams(all_frames(layout)[:early], 0.0)
    posted_s = 10.0 if early else 0.0
    receiver.adopt(layout.new_buffer(), BoundedEnergy().stop_rule(False)(layout), posted_s)
    if early < 4:
        receiver.on_datagrams(all_frames(layout)[early:], 13.0)
    assert receiver.stopped
    assert receiver.took == took


def test_no_transfer_is_late_before_the_slowest_peer_would_be_there():
    # The other peer takes ten times as long: what this one gives up before that wins nothing.
    slowest = Slowest()
    quick, slow = Lookback(slowest=slowest), Lookback(slowest=slowest)
    for transfer in range(8):
        slow.note(transfer, (10.0, 4))
        quick.note(transfer, (1.0, 4))
    quick.note(8, (1.0, 4))  # of the present round, whose slowest is not known
    layout = layout_of(4)
    rule = BoundedEnergy(share=0.9, patience=2.0).stop_rule(False)(layout)
    receiver, _ = new_receiver(layout, number=8, rule=rule, lookback=quick)
    body = bytes([worth.MUST | 90, 90, 90, 90])
    receiver.on_message(ControlMessage(MessageType.WORTH, 8, body), 0.0)
    assert receiver.next_deadline_s() == 20.0


def test_one_that_was_cut_short_does_not_stand_for_the_round():
    slowest = Slowest()
    for took in ((2.0, 10), (9.0, 4), (3.0, 8)):
        slowest.note(0, took)
    assert list(slowest.before(1)) == [(3.0, 8)]
    slowest.note(0, (1.0, 40))
    assert list(slowest.before(1)) == [(1.0, 40)]


class Slow:
    """A peer, with its transfers that are under way."""

    def __init__(self) -> None:
        self.receivers: dict[int, None] = {}


@pytest.mark.parametrize("in_flight", [1, 4])
def test_transfers_that_may_be_under_way_with_others_do_not_count(in_flight):
    # The quick peer is as far ahead as it may be; the slow one takes three times as long.
    slowest, slow = Slowest(in_flight=in_flight), Slow()
    slowest.join(slow)
    for transfer in range(40):
        slow.receivers[transfer] = None
        slowest.note(transfer, (1.0, 4))
        if transfer >= in_flight - 1:
            slowest.note(transfer - in_flight + 1, (3.0, 4))
            del slow.receivers[transfer - in_flight + 1]
        assert set(slowest.before(transfer + 1)) <= {(3.0, 4)}
    assert len(slowest.before(40)) >= 16
    slow.receivers.clear()
    assert (1.0, 4) in slowest.before(40) or in_flight == 1  # none is under way any more
    slow.receivers[0] = None  # it was lost in an early one
    assert len(slowest.before(40)) >= 16


def test_all_connections_of_a_side_look_back_on_the_slowest():
    layout = layout_of(4)
    settings = ConnectionSettings(
        session=SESSION, layout=layout, repair=Passes(), order=InOrder(), transfers_in_flight=2
    )
    one, other = (Incoming(peer, settings, [], Counter()) for peer in ("a", "b"))
    for transfer in range(8):
        one._lookback.note(transfer, (5.0, 4))
    make = BoundedEnergy().stop_rule(False)
    other.post(8, make(layout), layout.new_buffer(), 0.0)
    assert list(other.receivers[8]._progress().slowest) == [(5.0, 4)] * 8
    one.post(9, make(layout), layout.new_buffer(), 0.0)
    one._lookback.note(8, (5.0, 4))  # it is still under way with the other
    assert list(one.receivers[9]._progress().slowest) == [(5.0, 4)] * 8


@pytest.mark.parametrize("per", ["payload", "tensor"])
def test_the_preset_says_against_what_energy_is_measured(per):
    layout = PayloadLayout([("large", 4), ("small", 4)], 16)
    buffer = layout.new_buffer()
    layout.floats(buffer)[:] = [9.0, 9.0, 9.0, 9.0, 0.1, 0.1, 0.1, 0.1]
    order = ORDERS.create(preset("bounded-energy", per=per).order, seed=0)
    arrange = order.arranger(OrderContext(transfer=2, layout=layout, rows=layout.rows(buffer)))
    assert isinstance(arrange, Arranger) and arrange.worth is not None
    values = arrange.worth
    small, large = values[1] & ~np.uint8(worth.MUST), values[0] & ~np.uint8(worth.MUST)
    assert large == worth.MUST - 1
    assert (small == large) == (per == "tensor")
