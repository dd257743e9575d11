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
    ProtocolError,
    Receiver,
    preset,
)
from testbed.transport.core import worth
from testbed.transport.core.events import TransferDone
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.tolerance import Progress
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import ORDERS, ByEnergy
from testbed.transport.policies.repair import Passes
from testbed.transport.policies.tolerance.by_energy import BoundedEnergy
from tests.transport.transfer_parts import all_frames, new_receiver
from tests.transport.two_parties import Two, ended, gone
from tests.transport.virtual import SESSION, layout_of, random_payload

CHUNKS, FLOOR, SHARE, ROUNDS = 100, 0.05, 0.9, 7
ARM = preset("bounded-energy", floor=FLOOR, share=SHARE, within_rounds=ROUNDS)


def energies(layout, payload):
    return np.square(layout.rows(payload).view("<f4").astype(np.float64)).sum(axis=1)


def must_of(arranger):
    assert arranger.worth is not None
    return arranger.worth >= worth.MUST


class Rounds(Two):
    """One gather after another; payloads whose chunks differ in energy as widely as `spread`."""

    def __init__(self, *, spread=1.0, arm=ARM, **settings):
        order = ORDERS.create(arm.order)
        super().__init__(chunks=CHUNKS, repair=arm.repair, order=order, **settings)
        self.spread = spread
        self.reports = []
        self.took_s = []

    def round(self, loss=0.0, *, policy=ARM.gather, number=None, scale=1.0):
        number = len(self.reports) if number is None else number
        transfer, began_s = Leg.GATHER.transfer(number), self.simulation.now_s
        self.link.loss = loss
        payload = random_payload(self.layout, transfer)
        factors = np.random.default_rng(transfer).standard_normal(CHUNKS) * self.spread
        rows = self.layout.rows(payload).view("<f4")
        rows *= scale * np.exp(factors)[:, np.newaxis].astype(np.float32)
        self.sent[transfer], self.into[transfer] = payload, self.layout.new_buffer()
        rule = policy.stop_rule(False)(self.layout)
        self.server.connection.post_receive(transfer, rule, self.into[transfer], began_s)
        self.worker.connection.post_send(transfer, payload, began_s)
        self.server.work()
        self.worker.work()
        both = (self.worker, self.server)
        self.simulation.run(
            done=lambda: all(transfer in ended(party) for party in both), limit=400_000
        )
        told = [each for each in self.server.events if isinstance(each, TransferDone)]
        self.took_s.append(told[-1].report.ended_s - began_s)
        self.reports.append(
            next(
                each.report
                for each in self.worker.events
                if isinstance(each, TransferDone) and each.transfer == transfer
            )
        )
        energy = energies(self.layout, payload)
        return float(energy[self.reports[-1].received].sum() / max(energy.sum(), 1e-300))


# What chunks are worth.


@given(st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=50))
def test_an_energy_lies_between_the_bounds_of_its_byte(found):
    energy = np.array(found)
    told = worth.encode(energy)
    assert (worth.LEAST[told] * energy.max() <= energy).all()
    assert (energy <= worth.MOST[told] * energy.max()).all()
    assert (told < worth.MUST).all()


def test_what_is_no_number_must_arrive_and_zeros_are_worth_nothing():
    rows = np.ones((4, 8), "<f4")
    rows[1], rows[2, 3], rows[3, 0] = 0, np.nan, 3e38
    told = worth.encode(worth.energies(rows.view(np.uint8)))
    assert told.tolist() == [1, 0, worth.MUST, worth.MUST - 1]


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


def test_worth_that_comes_before_it_is_asked_for_reaches_the_receiver():
    rounds = Rounds(spread=2.0, rate_bps=1e6)
    transfer, payload = Leg.GATHER.transfer(0), random_payload(rounds.layout, 1)
    rows = rounds.layout.rows(payload).view("<f4")
    rows *= np.exp(2 * np.random.default_rng(1).standard_normal(CHUNKS))[:, np.newaxis]
    rounds.sent[transfer], rounds.into[transfer] = payload, rounds.layout.new_buffer()
    rounds.worker.connection.post_send(transfer, payload, rounds.simulation.now_s)
    rounds.worker.work()
    rounds.simulation.run(until_s=rounds.simulation.now_s + 0.01)
    rule = ARM.gather.stop_rule(False)(rounds.layout)
    now_s = rounds.simulation.now_s
    rounds.server.connection.post_receive(transfer, rule, rounds.into[transfer], now_s)
    rounds.server.work()
    rounds.simulation.run(done=lambda: transfer in ended(rounds.server), limit=400_000)
    (done,) = [each for each in rounds.server.events if isinstance(each, TransferDone)]
    arrived = done.report.chunks_received
    assert arrived is not None and arrived < 0.9 * CHUNKS  # without it, all are waited for


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


def test_when_it_is_late_is_decided_once():
    rule = BoundedEnergy(share=0.9, patience=2.0).stop_rule(False)(layout_of(4))
    recent: list[tuple[float, int]] = []
    progress = Progress(
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
    assert rule.deadline_s(progress) is None
    recent.append((1.0, 4))
    assert rule.deadline_s(progress) == 6.0
    recent[:] = [(9.0, 4)]  # others that end meanwhile change nothing
    assert rule.deadline_s(progress) == 6.0
    assert rule.satisfied(replace(progress, now_s=6.0))


def test_a_transfer_is_not_late_because_it_was_asked_for_late():
    layout = layout_of(4)
    rule = BoundedEnergy(share=0.9, patience=2.0).stop_rule(False)(layout)
    receiver = Receiver(
        session=SESSION,
        transfer=6,
        layout=layout,
        into=layout.new_buffer(),
        rule=None,
        repair=Passes(),
        now_s=0.0,
        recent=[(1.0, 4)],
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
    for number in range(3 * ROUNDS):
        hit = number >= ROUNDS and number % 2 == 1
        assert rounds.round(loss if hit else 0.0) >= (SHARE if number < 1 else FLOOR)
        seen.append(rounds.reports[-1].received)
    for number in range(len(seen) - ROUNDS + 1):
        assert np.logical_or.reduce(seen[number : number + ROUNDS]).all()


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
    assert rounds.simulation.now_s - began_s <= 1.1
    assert rounds.round() >= SHARE


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


# The messages.


def test_what_chunks_are_worth_may_come_before_it_is_asked_for():
    rounds = Rounds()
    transfer, payload = 0, random_payload(rounds.layout)
    rounds.worker.connection.post_send(transfer, payload, 0.0)
    rounds.worker.work()
    rounds.run(until_s=1.0)
    into = rounds.layout.new_buffer()
    rule = ARM.gather.stop_rule(False)(rounds.layout)
    rounds.server.connection.post_receive(transfer, rule, into, 1.0)
    rounds.server.work()
    assert ended(rounds.server) == [transfer]  # at once: all that is needed lay there


def test_it_is_said_once_and_of_each_chunk():
    layout = layout_of(3)
    receiver, _ = new_receiver(layout, rule=BoundedEnergy().stop_rule(False)(layout))
    with pytest.raises(ProtocolError, match="WORTH with a body of 2 bytes; valid: 3"):
        receiver.on_message(ControlMessage(MessageType.WORTH, 6, b"\1\1"), 0.0)
    receiver.on_message(ControlMessage(MessageType.WORTH, 6, b"\177\177\377"), 0.0)
    with pytest.raises(ProtocolError, match="valid: 3, once a transfer"):
        receiver.on_message(ControlMessage(MessageType.WORTH, 6, b"\177\177\377"), 0.0)
    receiver.on_datagrams(all_frames(layout), 0.0)
    assert receiver.stopped


def unasked(*bodies, **settings):
    """A server that was told of so many transfers what nobody has asked for: transfer and body."""
    rounds = Rounds(**settings)
    for transfer, body in bodies:
        message = ControlMessage(MessageType.WORTH, transfer, body)
        rounds.server.connection.on_control(message.encode(), 0.0)
    return rounds.server.connection


def post(connection, transfer):
    layout = layout_of(CHUNKS)
    connection.post_receive(transfer, ARM.gather.stop_rule(False)(layout), layout.new_buffer(), 0.0)


TOLD = b"\177" * CHUNKS


def test_worth_of_a_transfer_that_is_skipped_is_refused():
    connection = unasked((2, TOLD))
    assert connection.lost is None
    post(connection, 4)
    assert "it sends transfer 2, which this side has skipped: it is at 4" in str(connection.lost)


@pytest.mark.parametrize("bodies", [[TOLD, TOLD], [TOLD[1:]]])
def test_worth_that_no_transfer_would_take_is_refused_before_it_is_asked_for(bodies):
    connection = unasked(*((2, body) for body in bodies))
    assert f"bytes; valid: {CHUNKS}, once a transfer" in str(connection.lost)


def test_a_peer_may_tell_ahead_of_no_more_transfers_than_may_be_in_flight():
    told = [(number, TOLD) for number in (2, 4, 6)]
    connection = unasked(*told[:2], transfers_in_flight=2)
    assert connection.lost is None
    connection = unasked(*told, transfers_in_flight=2)
    assert "WORTHs for 3 transfers that nobody asked for; valid: at most 2" in str(connection.lost)
    connection = unasked(*told[:2], transfers_in_flight=2)
    post(connection, 2)  # which makes room
    connection.on_control(ControlMessage(MessageType.WORTH, 6, TOLD).encode(), 0.0)
    assert connection.lost is None


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("bounded-energy", {"order": "shuffled"}, "gather: .*needs an order that tells"),
        ("bounded-energy", {"floor": 0.0}, "floor is 0.0; valid: above 0, up to 1"),
        ("bounded-energy", {"share": 1.5}, "share is 1.5; valid: above 0, up to 1"),
        ("bounded-energy", {"patience": 0.9}, "patience is 0.9; valid: 1 or more"),
        ("bounded-energy", {"within_rounds": 0}, "within_rounds is 0; valid: whole, 1 or more"),
        ("dblp", {"gather": "bounded-energy"}, "valid: by-energy"),
    ],
)
def test_what_does_not_fit_is_said(name, changes, says):
    with pytest.raises(ValueError, match=says):
        preset(name, **changes)
