"""The protocol `bounded-energy`: what its receivers have when they stop, and when they do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.transport import (
    Leg,
    OrderContext,
    PayloadLayout,
    Receiver,
    preset,
)
from testbed.transport.core import worth
from testbed.transport.core.events import TransferDone
from testbed.transport.core.lookback import Lookback
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.tolerance import Progress, StopRule
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import ByEnergy
from testbed.transport.policies.repair import Passes
from testbed.transport.policies.tolerance.by_energy import BoundedEnergy
from tests.transport.energy_rounds import (
    ARM,
    CHUNKS,
    FLOOR,
    ROUNDS,
    SHARE,
    Rounds,
    energies,
    must_of,
)
from tests.transport.transfer_parts import all_frames
from tests.transport.two_parties import Two, gone
from tests.transport.virtual import SESSION, layout_of, random_payload


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


# When receivers stop.


@given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.booleans())
@example(107, 0.9296875, False)
def test_it_never_stops_above_its_bound(seed, share, late):
    draws = np.random.default_rng(seed)
    energy = np.exp(3 * draws.standard_normal(80))
    told = worth.encode(energy)
    told[draws.integers(0, 80, 3)] |= worth.MUST
    layout = layout_of(80)
    rule = BoundedEnergy(share=share, patience=2.0).stop_rule(False)(layout)
    received = np.zeros(80, np.bool_)
    for count, chunk in enumerate(draws.permutation(80), start=1):
        received[chunk] = True
        progress = Progress(
            received=received,
            received_count=count,
            now_s=20.0 if late else 19.9,
            first_arrival_s=0.0,
            last_arrival_s=0.0,
            probes=0,
            worth=told,
            first_sign_s=0.0,
            recent=[(10.0 if count % 4 else 99.0, count) for count in range(1, 161)],
        )
        least = rule.missing(progress)
        whole = received[told >= worth.MUST].all()
        enough = energy[~received].sum() <= (1 - share) * energy.sum() * (1 + 1e-9)
        if rule.satisfied(progress):
            assert whole
            assert late or enough
            return
        assert least is not None
        assert not (late and whole)
        # It may lack what the bytes do not tell, but no more: a step above for what is missing,
        # and a step below for what is there.
        assert not whole or energy[~received].sum() * 1.27 >= (1 - share) * energy.sum()
    raise AssertionError("it lacks nothing")


@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_a_late_one_with_a_floor_has_it_in_any_chunks(seed, floor):
    draws = np.random.default_rng(seed)
    energy = np.exp(3 * draws.standard_normal(80))
    told = worth.encode(energy)
    told[draws.integers(0, 80, 3)] |= worth.MUST  # no late one waits for these
    last = int(draws.integers(0, 80))
    told[last] = worth.MUST  # but for this one
    rule = BoundedEnergy(floor=floor).stop_rule(False)(layout_of(80))
    received = np.zeros(80, np.bool_)
    order = draws.permutation(80)
    for count, chunk in enumerate(order, start=1):
        received[chunk] = True
        progress = Progress(
            received=received,
            received_count=count,
            now_s=100.0,
            first_arrival_s=0.0,
            last_arrival_s=0.0,
            probes=0,
            worth=told,
            first_sign_s=0.0,
            recent=[(1.0, count) for count in range(1, 161)],
        )
        least = rule.missing(progress)
        if rule.satisfied(progress):
            assert least == 0
            assert received[last]
            assert energy[received].sum() >= floor * energy.sum() * (1 - 1e-9)
            return
        assert least == 1
        lacking = energy[~received & (np.arange(80) != last)].sum()
        assert not received[last] or lacking * 1.27 >= (1 - floor) * energy.sum() - energy[last]
    raise AssertionError("it lacks nothing")


def context_of(number, **more):
    layout = layout_of(50)
    return OrderContext(
        transfer=Leg.GATHER.transfer(number),
        layout=layout,
        rows=layout.rows(random_payload(layout)),
        **more,
    )


def worth_of(order, context):
    told = order.arranger(context).worth
    assert told is not None
    return told


def test_what_did_not_come_must_come_in_the_next_round_and_at_its_turn_in_any_case():
    order = ByEnergy(floor=1e-9, within_rounds=50)  # in round n the chunk n has its turn
    overdue = np.isin(np.arange(50), [7, 8])
    usual = worth_of(order, context_of(8))
    told = worth_of(order, context_of(8, overdue=overdue))
    assert told[7] == usual[7] | worth.MUST > usual[7]
    assert told[8] == worth.MUST < usual[8]
    assert np.array_equal(told[9:], usual[9:])


def test_one_peer_is_sent_again_what_holds_the_floor_and_several_what_all_must_have():
    order = ByEnergy(floor=0.1, within_rounds=50)
    alone, shared = (order.arranger(context_of(8, shared=each)) for each in (False, True))
    assert np.array_equal(must_of(alone), must_of(shared))
    assert np.array_equal(shared.urgent, must_of(shared))
    energy = energies(layout_of(50), random_payload(layout_of(50)))
    first = shared(np.arange(50))
    assert not alone.urgent[8]  # it has its turn
    assert shared.urgent[8]
    assert energy[alone.urgent].sum() >= 0.3 * energy.sum() > energy[must_of(alone)].sum()
    assert must_of(alone)[first[0]]


def test_a_hit_transfer_leaves_a_turn_to_the_next():
    rounds = Rounds(spread=1.0, seed=2)
    for number in range(8):
        rounds.round(number=number)
    rounds.round(0.9, number=8)
    got = rounds.reports[-1].received
    turn = np.arange(8 % ROUNDS, CHUNKS, ROUNDS)
    assert not got[turn].all()
    rounds.round(number=9)
    assert rounds.reports[-1].received[turn[~got[turn]]].all()


def test_it_says_at_the_least_how_many_more_must_come():
    layout = layout_of(4)
    rule = BoundedEnergy(share=0.5).stop_rule(False)(layout)

    def progress(*received, told=(0, 127, 127, 127 | worth.MUST)):
        return Progress(
            received=np.isin(np.arange(4), received),
            received_count=len(received),
            now_s=0.0,
            first_arrival_s=0.0,
            last_arrival_s=0.0,
            probes=0,
            worth=None if told is None else np.array(told, np.uint8),
        )

    assert rule.missing(progress(0, told=None)) == 3
    assert not rule.satisfied(progress(0, 1, 2, told=None))
    assert rule.missing(progress()) == 2
    assert rule.missing(progress(1, 2)) == 1
    assert not rule.satisfied(progress(1, 2))
    assert rule.satisfied(progress(1, 3))


def test_payloads_that_end_early_make_no_others_late():
    rounds = Rounds(spread=0.3, rate_bps=1e6)
    for _ in range(20):
        rounds.round(scale=0.0)  # nothing but what has its turn must arrive
    assert max(rounds.took_s) < 0.02
    assert min(rounds.round() for _ in range(10)) >= SHARE


def test_what_came_before_it_was_asked_for_tells_nothing_of_the_path():
    layout = layout_of(4)
    told = np.array([worth.MUST, 90, 90, 90], np.uint8)
    rule = BoundedEnergy(share=0.9).stop_rule(False)(layout)
    progress = Progress(
        received=np.array([True, False, False, False]),
        received_count=1,
        now_s=5.0,
        first_arrival_s=0.0,
        last_arrival_s=0.0,
        probes=0,
        worth=told,
        first_sign_s=4.0,
        recent=[(1e-3, 400), (1e-3, 1)],  # of another size: neither says how long four take
    )
    assert not rule.satisfied(progress)
    assert rule.deadline_s(progress) is None


def late_progress(recent):
    """Of four chunks that all hold as much and are needed; the first came at 4.0 s."""
    return Progress(
        received=np.array([True, False, False, False]),
        received_count=1,
        now_s=4.0,
        first_arrival_s=4.0,
        last_arrival_s=4.0,
        probes=0,
        worth=np.array([worth.MUST | 90, 90, 90, 90], np.uint8),
        first_sign_s=4.0,
        recent=recent,
    )


def test_when_it_is_late_is_decided_once():
    rule = BoundedEnergy(share=0.9, patience=2.0).stop_rule(False)(layout_of(4))
    recent: list[tuple[float, int]] = []
    progress = late_progress(recent)
    assert rule.deadline_s(progress) is None
    recent.append((1.0, 4))
    assert rule.deadline_s(progress) == 6.0
    recent[:] = [(9.0, 4)]  # others that end meanwhile change nothing
    assert rule.deadline_s(progress) == 6.0
    assert rule.satisfied(replace(progress, now_s=6.0))


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
    lookback.note((1.0, 4))
    receiver = Receiver(
        session=SESSION,
        transfer=6,
        layout=layout,
        into=layout.new_buffer(),
        rule=None,
        repair=Passes(),
        now_s=0.0,
        lookback=lookback,
    )
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
    receiver = Receiver(
        session=SESSION,
        transfer=6,
        layout=layout,
        into=layout.new_buffer(),
        rule=None,
        repair=Passes(),
        now_s=0.0,
    )
    receiver.on_message(ControlMessage(MessageType.WORTH, 6, bytes([90] * 4)), 0.0)
    receiver.on_datagrams(all_frames(layout)[:early], 0.0)
    posted_s = 10.0 if early else 0.0
    receiver.adopt(layout.new_buffer(), BoundedEnergy().stop_rule(False)(layout), posted_s)
    if early < 4:
        receiver.on_datagrams(all_frames(layout)[early:], 13.0)
    assert receiver.stopped
    assert receiver.took == took


@pytest.mark.parametrize(("layouts", "remembered"), [(1, 16), (20, 320), (40, 512)])
def test_a_rule_looks_back_on_16_transfers_of_each_layout(layouts, remembered):
    seen = []

    class Counting(StopRule):
        def satisfied(self, progress):
            return False  # but for all chunks

        def deadline_s(self, progress):
            seen.append(len(progress.recent))

    parts = PayloadLayout([(str(each), 4) for each in range(layouts)], 16)
    two = Two(layout=parts, tensor_by_tensor=True)
    for number in range(remembered + 10):
        layout, transfer = parts.each[number % layouts], Leg.GATHER.transfer(number)
        now_s = two.simulation.now_s
        two.server.connection.post_receive(transfer, Counting(), layout.new_buffer(), now_s)
        two.worker.connection.post_send(transfer, random_payload(layout, number), now_s)
        two.server.work()
        two.worker.work()
        two.run()
    assert max(seen) == seen[-1] == remembered


@pytest.mark.parametrize("sizes", [(4, 100), (25, 100)])
def test_buckets_of_all_sizes_keep_the_share(sizes):
    buckets = PayloadLayout([(str(each), 4 * each) for each in sizes], 16)
    arm, layouts = preset("bounded-energy"), []

    class Noting(ByEnergy):
        def arranger(self, context):
            layouts.append(context.layouts)
            return super().arranger(context)

    two = Two(
        layout=buckets, repair=arm.repair, order=Noting(), tensor_by_tensor=True, rate_bps=1e6
    )
    for number in range(40):
        layout, transfer = buckets.each[number % len(sizes)], Leg.GATHER.transfer(number)
        payload, into = random_payload(layout, number), layout.new_buffer()
        rule, now_s = arm.gather.stop_rule(False)(layout), two.simulation.now_s
        two.server.connection.post_receive(transfer, rule, into, now_s)
        two.worker.connection.post_send(transfer, payload, now_s)
        two.server.work()
        two.worker.work()
        two.run()
        done = [each for each in two.server.events if isinstance(each, TransferDone)]
        report = done[-1].report
        energy = energies(layout, payload)
        assert report.transfer == transfer
        assert energy[report.received].sum() >= 0.95 * energy.sum()
    assert set(layouts) == {len(sizes)}


@pytest.mark.parametrize(("loss", "spread"), [(0.6, 0.0), (0.6, 1.0), (0.9, 0.0), (0.9, 1.5)])
def test_the_floor_holds_under_loss_and_the_share_without(loss, spread):
    rounds, seen = Rounds(spread=spread, seed=3), []
    for number in range(4 * ROUNDS):
        hit = number >= ROUNDS and number % 2 == 1
        assert rounds.round(loss if hit else 0.0) >= (SHARE if number < 1 else FLOOR)
        seen.append(rounds.reports[-1].received)
    within = 2 * ROUNDS
    for number in range(len(seen) - within + 1):
        assert np.logical_or.reduce(seen[number : number + within]).all()


@pytest.mark.parametrize(("loss", "most"), [(0.6, 1.25), (0.9, 1.5)])
def test_a_hit_transfer_takes_little_longer_than_a_calm_one(loss, most):
    arm = preset("bounded-energy")
    lan = {"rate_bps": 33e6, "delay_s": 2e-4, "chunk_bytes": 1432}  # 36 ms a transfer
    rounds = Rounds(spread=0.0, arm=arm, seed=1, **lan)
    hit = [False] * 8 + [number % 2 == 0 for number in range(20)]
    for each in hit:
        rounds.round(loss if each else 0.0)
    took_s = np.array(rounds.took_s)
    assert np.quantile(took_s[hit], 0.95) <= most * np.median(took_s[~np.array(hit)])


def test_it_follows_a_path_that_becomes_slower_for_good():
    rounds = Rounds(spread=0.0, rate_bps=1e6)
    for _ in range(8):
        rounds.round()
    rounds.path.congestion = FixedRate(rate_bps=0.5e6)
    shares = [rounds.round() for _ in range(80)]
    assert max(shares[:4]) < SHARE < np.mean(shares[-4:])


def test_a_second_in_which_nearly_all_is_lost_ends():
    rounds = Rounds(seed=5)
    for _ in range(4):
        rounds.round()
    rounds.simulation.at(rounds.simulation.now_s + 1.0, lambda: setattr(rounds.link, "loss", 0.0))
    began_s = rounds.simulation.now_s
    share = rounds.round(0.99)
    assert share >= FLOOR
    assert rounds.simulation.now_s - began_s <= 0.5  # before the loss does
    rounds.round(number=100)  # what is known of losses is of the round before
    assert rounds.round(number=101) >= SHARE


def test_a_peer_that_dies_is_given_up():
    rounds = Rounds()
    rounds.round()
    rounds.worker.cut()
    rule = ARM.gather.stop_rule(False)(rounds.layout)
    rounds.server.connection.post_receive(2, rule, rounds.layout.new_buffer(), 1.0)
    rounds.run()
    assert gone(rounds.server)


def test_the_round_after_a_burst_sends_hardly_more_than_it_needs():
    rounds = Rounds(spread=0.0, rate_bps=1e6, seed=2)
    for loss in (0.0, 0.9, 0.9, 0.9, 0.0):
        rounds.round(loss)
    assert rounds.reports[-1].chunks_sent <= 1.1 * CHUNKS


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("bounded-energy", {"order": "shuffled"}, "gather: .*needs an order that tells"),
        ("bounded-energy", {"floor": 0.0}, "floor is 0.0; valid: above 0, up to 1"),
        ("bounded-energy", {"share": 1.5}, "share is 1.5; valid: above 0, up to 1"),
        ("bounded-energy", {"patience": 0.9}, "patience is 0.9; valid: 1 or more"),
        ("bounded-energy", {"within_rounds": 0}, "within_rounds is 0; valid: whole, 1 or more"),
        ("dblp", {"gather": "bounded-energy"}, ".*valid: by-energy"),
    ],
)
def test_what_does_not_fit_is_said(name, changes, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        preset(name, **changes)


def several(loss, order=None):
    """Eight calm rounds, and sixteen that lose; by default the order of the preset."""
    arm = preset("bounded-energy", **({} if order is None else {"order": order}))
    rounds = Rounds(spread=1.0, arm=arm, rate_bps=1e6, seed=1)
    for number in range(24):
        rounds.round(loss if number >= 8 else 0.0, policy=arm.gather)
    return rounds


def test_a_calm_transfer_sends_what_is_needed_and_not_one_datagram_more():
    for report in several(0.0).reports:
        assert report.chunks_sent == report.chunks_received < CHUNKS


def test_a_lossy_path_is_no_slower_where_the_rest_waits_for_answers():
    waits, at_once = several(0.1), several(0.1, order="by-energy")
    assert np.mean(waits.took_s[8:]) <= 1.05 * np.mean(at_once.took_s[8:])
    copies = [sum(each.chunks_sent for each in one.reports[8:]) for one in (waits, at_once)]
    assert copies[0] < copies[1]


def test_a_receiver_that_wants_more_than_the_order_thinks_gets_it():
    careful = preset("bounded-energy", share=0.999).gather
    rounds = Rounds(spread=2.0, arm=preset("bounded-energy", share=0.5), rate_bps=1e6)
    for _ in range(5):
        assert rounds.round(policy=careful) >= 0.999
