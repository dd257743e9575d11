"""The protocol `bounded-energy`: energy, order, stop rule, and gather after gather."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.transport import Leg, PayloadLayout, ProtocolError, chunk_energy, preset
from testbed.transport.chunk_energy import BoundedEnergy
from testbed.transport.congestion import FixedRate
from testbed.transport.messages import ControlMessage, MessageType
from testbed.transport.order import (
    ORDERS,
    Arranger,
    ByEnergy,
    OrderContext,
    sending_order,
)
from testbed.transport.receiver import Incoming, TransferTimes
from testbed.transport.settings import SlowestPeer
from tests.transport.virtual import (
    Two,
    all_frames,
    ended,
    layout_of,
    new_receiver,
    progress,
    random_payload,
    reports,
    settings_of,
)

CHUNKS, FLOOR, SHARE, ROUNDS = 100, 0.05, 0.9, 7
ARM = preset("bounded-energy", floor=FLOOR, share=SHARE, at_most=1, within_rounds=ROUNDS)


def energies(layout, payload):
    return np.square(layout.rows(payload).view("<f4").astype(np.float64)).sum(axis=1)


def rule_of(layout, **options):
    return BoundedEnergy(**options).stop_rule(False)(layout)


def told(body, transfer=6):
    return ControlMessage(MessageType.ENERGY, transfer, body)


def must_of(arranger):
    assert arranger.energy_levels is not None
    return arranger.energy_levels >= chunk_energy.MUST


class Rounds(Two):
    """One gather after another; payloads whose chunks differ in energy as widely as `spread`."""

    def __init__(self, *, spread=1.0, arm=ARM, **settings):
        order = sending_order(arm.order, arm.marks, arm.keep, seed=0)
        super().__init__(chunks=CHUNKS, repair=arm.repair, order=order, **settings)
        self.spread = spread
        self.reports = []
        self.took_s = []

    def round(self, loss=0.0, *, policy=ARM.gather, number=None, scale=1.0):
        number = len(self.reports) if number is None else number
        transfer, began_s = Leg.GATHER.transfer(number), self.simulation.now_s
        self.link.set_loss(loss)
        payload = random_payload(self.layout, transfer)
        factors = np.random.default_rng(transfer).standard_normal(CHUNKS) * self.spread
        rows = self.layout.rows(payload).view("<f4")
        rows *= scale * np.exp(factors)[:, np.newaxis].astype(np.float32)
        self.receive(transfer, rule=policy.stop_rule(False)(self.layout))
        self.send(transfer, payload)
        both = (self.worker, self.server)
        self.simulation.run(
            done=lambda: all(transfer in ended(peer) for peer in both), limit=400_000
        )
        received, sent = reports(self.server)[-1], reports(self.worker)[-1]
        self.took_s.append(received.ended_s - began_s)
        self.reports.append(sent)
        energy = energies(self.layout, payload)
        return float(energy[self.reports[-1].received].sum() / max(energy.sum(), 1e-300))


# The energy of chunks.


@given(st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=50))
def test_an_energy_lies_between_the_bounds_of_its_byte(energies):
    energy = np.array(energies)
    coded = chunk_energy.encode(energy)
    assert (chunk_energy.LEAST[coded] * energy.max() <= energy).all()
    assert (energy <= chunk_energy.MOST[coded] * energy.max()).all()
    assert (coded < chunk_energy.MUST).all()


def test_what_is_no_number_must_arrive_and_zeros_have_no_energy():
    rows = np.ones((4, 8), "<f4")
    rows[1], rows[2, 3], rows[3, 0] = 0, np.nan, 3e38
    layout = PayloadLayout([("w", rows.size)], 32)
    coded = chunk_energy.encode(chunk_energy.energies(rows.view(np.uint8), layout))
    assert coded.tolist() == [1, 0, chunk_energy.MUST, chunk_energy.MUST - 1]


def test_the_energy_of_chunks_may_come_before_it_is_asked_for():
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
    receiver, _ = new_receiver(layout, rule=rule_of(layout))
    with pytest.raises(ProtocolError, match="ENERGY with a body of 2 bytes; valid: 3"):
        receiver.on_message(told(b"\1\1"), 0.0)
    receiver.on_message(told(b"\177\177\377"), 0.0)
    with pytest.raises(ProtocolError, match="valid: 3, once a transfer"):
        receiver.on_message(told(b"\177\177\377"), 0.0)
    receiver.on_datagrams(all_frames(layout), 0.0)
    assert receiver.stopped


def unasked(*bodies, **settings):
    """A server that was told of so many transfers what nobody has asked for: transfer and body."""
    rounds = Rounds(**settings)
    for transfer, body in bodies:
        rounds.server.connection.on_control(told(body, transfer).encode(), 0.0)
    return rounds.server.connection


def post(connection, transfer):
    layout = layout_of(CHUNKS)
    connection.post_receive(transfer, ARM.gather.stop_rule(False)(layout), layout.new_buffer(), 0.0)


ENERGY = b"\177" * CHUNKS


def test_energy_of_a_transfer_that_is_skipped_is_refused():
    connection = unasked((2, ENERGY))
    assert connection.lost is None
    post(connection, 4)
    assert "it sends transfer 2, which this side has skipped: it is at 4" in str(connection.lost)


@pytest.mark.parametrize("bodies", [[ENERGY, ENERGY], [ENERGY[1:]]])
def test_energy_that_no_transfer_would_take_is_refused_before_it_is_asked_for(bodies):
    connection = unasked(*((2, body) for body in bodies))
    assert f"bytes; valid: {CHUNKS}, once a transfer" in str(connection.lost)


def test_a_peer_may_tell_ahead_of_no_more_transfers_than_may_be_in_flight():
    three = [(number, ENERGY) for number in (2, 4, 6)]
    connection = unasked(*three, transfers_in_flight=2)
    assert "ENERGYs for 3 transfers that nobody asked for; valid: at most 2" in str(connection.lost)
    connection = unasked(*three[:2], transfers_in_flight=2)
    assert connection.lost is None
    post(connection, 2)  # which makes room
    connection.on_control(told(ENERGY).encode(), 0.0)
    assert connection.lost is None


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 10_000))
def test_per_tensor_each_counts_for_its_elements(sizes, seed):
    draws = np.random.default_rng(seed)
    layout = PayloadLayout([(str(place), size) for place, size in enumerate(sizes)], 32)
    buffer = layout.new_buffer()
    floats = layout.floats(buffer)
    scales = 10.0 ** draws.integers(-6, 6, len(sizes))
    floats[:] = draws.uniform(1, 2, len(floats)) * np.repeat(scales, sizes)
    rows = layout.rows(buffer)
    energies = chunk_energy.by_tensor(chunk_energy.energies(rows, layout), rows, layout)
    parts = np.square(floats, dtype=np.float64)
    expected = np.zeros(layout.chunk_count)
    ends = np.cumsum(sizes)
    for end, size in zip(ends, sizes, strict=True):
        part = slice(end - size, end)
        chunk = np.arange(end - size, end) // layout.elements_per_chunk
        np.add.at(expected, chunk, parts[part] / parts[part].mean())
    assert energies == pytest.approx(expected, rel=1e-5)


def test_per_tensor_a_nan_spoils_its_own_chunk_and_zeros_are_nothing():
    layout = PayloadLayout([("broken", 16), ("still", 16), ("sound", 16)], 32)
    buffer = layout.new_buffer()
    floats = layout.floats(buffer)
    floats[:16], floats[32:] = 3.0, 1e-9
    floats[2] = np.nan
    rows = layout.rows(buffer)
    energies = chunk_energy.by_tensor(chunk_energy.energies(rows, layout), rows, layout)
    assert np.isnan(energies[0])
    assert energies[1:] == pytest.approx([16, 0, 0, 8, 8], rel=1e-5)


# The order: which chunks must arrive, which are urgent, and which go first.


def context_of(number, **more):
    layout = layout_of(50)
    return OrderContext(
        transfer=Leg.GATHER.transfer(number),
        layout=layout,
        rows=layout.rows(random_payload(layout)),
        **more,
    )


@given(st.integers(0, 1000), st.integers(1, 61), st.integers(1, 4))
def test_each_chunk_must_arrive_once_in_so_many_rounds_of_its_layout(first, within, layouts):
    musts = np.zeros(50, np.int64)
    order = ByEnergy(floor=1e-9, within_rounds=within)
    for step in range(first, first + within):  # the layout's own rounds are all `layouts` rounds
        context = context_of(layouts * step + layouts - 1, layouts=layouts)
        arranger = order.arranger(context)
        musts += must_of(arranger)
        assert np.array_equal(arranger(np.arange(50)), order.permutation(context))
    assert (musts >= 1).all()
    assert np.count_nonzero(musts > 1) <= 1  # the floor is one chunk here


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


def levels_of(order, context):
    values = order.arranger(context).energy_levels
    assert values is not None
    return values


def test_what_did_not_come_must_come_in_the_next_round_and_in_its_own_in_any_case():
    order = ByEnergy(floor=1e-9, within_rounds=50)  # in round n chunk n must come
    missed = np.isin(np.arange(50), [7, 8])
    usual = levels_of(order, context_of(8))
    now = levels_of(order, context_of(8, missed=missed))
    assert now[7] == usual[7] | chunk_energy.MUST > usual[7]
    assert now[8] == chunk_energy.MUST < usual[8]
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


# The stop rule: what a receiver has when it stops, and when it is late.


# Of four chunks that all hold as much and are needed.
FOUR = np.array([chunk_energy.MUST | 90, 90, 90, 90], np.uint8)


def drawn(seed, spread=3.0):
    """A generator, and of 80 chunks the energy and what is told of it."""
    draws = np.random.default_rng(seed)
    energy = np.exp(spread * draws.standard_normal(80))
    return draws, energy, chunk_energy.encode(energy)


@given(st.integers(0, 10_000), st.floats(0.05, 1.0), st.booleans())
@example(107, 0.9296875, False)
def test_it_never_stops_above_its_bound(seed, share, late):
    draws, energy, values = drawn(seed)
    values[draws.integers(0, 80, 3)] |= chunk_energy.MUST
    rule = rule_of(layout_of(80), share=share, patience=2.0)
    received = np.zeros(80, np.bool_)
    for chunk in draws.permutation(80):
        received[chunk] = True
        slowest = [(10.0 if count % 4 else 99.0, count) for count in range(1, 161)]
        now_s = 20.0 if late else 19.9
        state = progress(
            received, now_s=now_s, energy_levels=values, first_sign_s=0.0, slowest=slowest
        )
        least = rule.missing(state)
        whole = received[values >= chunk_energy.MUST].all()
        holds = energy[~received].sum() <= (1 - share) * energy.sum() * (1 + 1e-9)
        if rule.satisfied(state):
            assert whole
            assert late or holds
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
    draws, energy, values = drawn(seed, spread)
    policy = BoundedEnergy(share=0.95, at_most=at_most)
    most = math.ceil(at_most * 80)

    def needed(order):
        rule, received = policy.stop_rule(False)(layout_of(80)), np.zeros(80, np.bool_)
        for count, chunk in enumerate(order, start=1):
            received[chunk] = True
            if rule.satisfied(progress(received, energy_levels=values)):
                return count, energy[received].sum() / energy.sum()
        raise AssertionError("it lacks something")

    largest_first = chunk_energy.by_level(values)
    count, held = needed(largest_first)
    assert count == min(most, chunk_energy.needed_chunks(values, 0.95)[0])
    # A byte is rounded to a sixth of a power of two.
    assert needed(draws.permutation(80))[1] >= held / 1.27
    fewest, _ = needed(largest_first[::-1])
    assert fewest >= count


@given(st.integers(0, 10_000), st.floats(0.01, 1.0))
def test_a_late_one_with_a_floor_has_it_in_any_chunks(seed, floor):
    draws, energy, values = drawn(seed)
    values[draws.integers(0, 80, 3)] |= chunk_energy.MUST  # no late one waits for these
    last = int(draws.integers(0, 80))
    values[last] = chunk_energy.MUST  # but for this one
    rule = rule_of(layout_of(80), floor=floor)
    received = np.zeros(80, np.bool_)
    slowest = [(1.0, count) for count in range(1, 161)]
    for chunk in draws.permutation(80):
        received[chunk] = True
        state = progress(
            received, now_s=100.0, energy_levels=values, first_sign_s=0.0, slowest=slowest
        )
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
    rule = rule_of(layout_of(4), share=0.5)
    values = np.array([0, 127, 127, 127 | chunk_energy.MUST], np.uint8)

    def having(*received, energy_levels=values):
        return progress(np.isin(np.arange(4), received), energy_levels=energy_levels)

    assert rule.missing(having(0, energy_levels=None)) == 3
    assert not rule.satisfied(having(0, 1, 2, energy_levels=None))
    assert rule.missing(having()) == 2
    assert rule.missing(having(1, 2)) == 1
    assert not rule.satisfied(having(1, 2))
    assert rule.satisfied(having(1, 3))


def test_when_it_is_late_is_decided_once():
    rule = rule_of(layout_of(4), share=0.9, patience=2.0)
    recent: list[tuple[float, int]] = []
    at_s = dict.fromkeys(("now_s", "first_s", "last_s", "first_sign_s"), 4.0)
    state = progress([True, False, False, False], **at_s, energy_levels=FOUR, slowest=recent)
    assert rule.deadline_s(state) is None
    recent.append((1.0, 4))
    assert rule.deadline_s(state) == 6.0
    recent[:] = [(9.0, 4)]  # others that end meanwhile change nothing
    assert rule.deadline_s(state) == 6.0
    assert rule.satisfied(replace(state, now_s=6.0))


def test_a_transfer_is_not_late_because_it_was_asked_for_late():
    layout = layout_of(4)
    rule = rule_of(layout, share=0.9, patience=2.0)
    times = TransferTimes(SlowestPeer())
    times.note(0, (1.0, 4))
    receiver, _ = new_receiver(layout, rule=None, times=times)
    receiver.on_datagrams(all_frames(layout)[:1], 0.0)
    receiver.adopt(layout.new_buffer(), rule, 10.0)
    receiver.on_message(told(FOUR.tobytes()), 10.0)
    assert not receiver.stopped
    assert receiver.next_deadline_s() == 12.0
    receiver.on_deadline(12.0)
    assert receiver.stopped
    assert receiver.took is None  # nor does it tell how long others take


@pytest.mark.parametrize(("early", "took"), [(0, (13.0, 4)), (1, (3.0, 3)), (4, None)])
def test_what_comes_after_it_was_asked_for_tells_how_long_others_take(early, took):
    layout = layout_of(4)
    receiver, _ = new_receiver(layout, rule=None)
    receiver.on_message(told(bytes([90] * 4)), 0.0)
    receiver.on_datagrams(all_frames(layout)[:early], 0.0)
    posted_s = 10.0 if early else 0.0
    receiver.adopt(layout.new_buffer(), rule_of(layout), posted_s)
    if early < 4:
        receiver.on_datagrams(all_frames(layout)[early:], 13.0)
    assert receiver.stopped
    assert receiver.took == took


def test_no_transfer_is_late_before_the_slowest_peer_would_be_there():
    # The other peer takes ten times as long: what this one gives up before that wins nothing.
    slowest = SlowestPeer()
    quick, slow = TransferTimes(slowest), TransferTimes(slowest)
    for transfer in range(8):
        slow.note(transfer, (10.0, 4))
        quick.note(transfer, (1.0, 4))
    quick.note(8, (1.0, 4))  # of the present round, whose slowest is not known
    layout = layout_of(4)
    rule = rule_of(layout, share=0.9, patience=2.0)
    receiver, _ = new_receiver(layout, number=8, rule=rule, times=quick)
    receiver.on_message(told(FOUR.tobytes(), 8), 0.0)
    assert receiver.next_deadline_s() == 20.0


def test_one_that_was_cut_short_does_not_stand_for_the_round():
    slowest = SlowestPeer()
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
    slowest, slow = SlowestPeer(in_flight=in_flight), Slow()
    slowest.sides.add(slow)
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
    settings = settings_of(layout, transfers_in_flight=2)
    one, other = (Incoming(peer, settings, [], Counter()) for peer in ("a", "b"))
    for transfer in range(8):
        one._times.note(transfer, (5.0, 4))
    make = BoundedEnergy().stop_rule(False)
    other.post(8, make(layout), layout.new_buffer(), 0.0)
    assert list(other.receivers[8].progress.slowest) == [(5.0, 4)] * 8
    one.post(9, make(layout), layout.new_buffer(), 0.0)
    one._times.note(8, (5.0, 4))  # it is still under way with the other
    assert list(one.receivers[9].progress.slowest) == [(5.0, 4)] * 8


@pytest.mark.parametrize("per", ["payload", "tensor"])
def test_the_preset_says_against_what_energy_is_measured(per):
    layout = PayloadLayout([("large", 4), ("small", 4)], 16)
    buffer = layout.new_buffer()
    layout.floats(buffer)[:] = [9.0, 9.0, 9.0, 9.0, 0.1, 0.1, 0.1, 0.1]
    order = ORDERS.create(preset("bounded-energy", per=per).order, seed=0)
    arrange = order.arranger(OrderContext(transfer=2, layout=layout, rows=layout.rows(buffer)))
    assert isinstance(arrange, Arranger) and arrange.energy_levels is not None
    values = arrange.energy_levels
    large, small = values[:2] & ~np.uint8(chunk_energy.MUST)
    assert large == chunk_energy.MUST - 1
    assert (small == large) == (per == "tensor")


# Gather after gather in virtual time.


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
    for lossy in hit:
        rounds.round(loss * lossy)
    took_s = np.array(rounds.took_s)
    assert np.quantile(took_s[hit], 0.95) <= most * np.median(took_s[~np.array(hit)])


def test_a_calm_transfer_ends_with_a_part_of_the_chunks():
    rounds = Rounds(spread=0.3, arm=(arm := preset("bounded-energy", at_most=0.2)), seed=4)
    must = -(-CHUNKS // 61)  # of each round
    for _ in range(10):
        # They hold more than so many of any others, and far less than the share.
        assert 0.2 < rounds.round(policy=arm.gather) < 0.7
        assert np.count_nonzero(rounds.reports[-1].received) <= 0.2 * CHUNKS + must
        assert rounds.reports[-1].chunks_sent <= 0.2 * CHUNKS + must


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
    rounds.simulation.at(rounds.simulation.now_s + 1.0, lambda: rounds.link.set_loss(0.0))
    began_s = rounds.simulation.now_s
    share = rounds.round(0.99)
    assert share >= FLOOR
    assert rounds.simulation.now_s - began_s <= 0.5  # before the loss does
    rounds.round(number=100)  # what is known of losses is of the round before
    assert rounds.round(number=101) >= SHARE


@pytest.mark.parametrize("keep", [1.0, 0.5, 0.3])
@pytest.mark.parametrize("at_most", [0.25, 1.0])
@pytest.mark.parametrize("per", ["payload", "tensor"])
def test_a_calm_transfer_sends_what_is_needed_and_not_one_datagram_more(keep, at_most, per):
    arm = preset("bounded-energy", keep=keep, at_most=at_most, per=per)
    rounds = Rounds(arm=arm, rate_bps=1e6, seed=1)
    for _ in range(24):
        rounds.round(policy=arm.gather)
    for report in rounds.reports:
        assert report.chunks_sent == report.chunks_received < math.ceil(keep * CHUNKS)
        must = math.ceil(CHUNKS / 61)  # of each round
        assert report.chunks_received <= math.ceil(at_most * keep * CHUNKS) + must


def test_a_receiver_that_wants_more_than_the_order_thinks_gets_it():
    careful = preset("bounded-energy", share=0.999, at_most=1).gather
    rounds = Rounds(spread=2.0, arm=preset("bounded-energy", share=0.5), rate_bps=1e6)
    for _ in range(5):
        assert rounds.round(policy=careful) >= 0.999
