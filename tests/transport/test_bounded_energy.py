"""The protocol `bounded-energy`, gather after gather in virtual time."""

import numpy as np
import pytest

from testbed.transport import (
    Leg,
    PayloadLayout,
    preset,
)
from testbed.transport.core.tolerance import StopRule
from testbed.transport.policies.congestion import FixedRate
from tests.transport.energy_rounds import (
    CHUNKS,
    FLOOR,
    ROUNDS,
    SHARE,
    Rounds,
)
from tests.transport.two_parties import Two
from tests.transport.virtual import random_payload


@pytest.mark.parametrize(("layouts", "remembered"), [(1, 16), (20, 320), (40, 512)])
def test_a_rule_looks_back_on_16_transfers_of_each_layout(layouts, remembered):
    seen = []

    class Counting(StopRule):
        def satisfied(self, progress):
            return False  # but for all chunks

        def deadline_s(self, progress):
            seen.append(len(progress.recent))

    parts = PayloadLayout([(str(number), 4) for number in range(layouts)], 16)
    two = Two(layout=parts, tensor_by_tensor=True)
    for number in range(remembered + 10):
        layout, transfer = parts.each[number % layouts], Leg.GATHER.transfer(number)
        two.receive(transfer, rule=Counting(), layout=layout)
        two.send(transfer, random_payload(layout, number))
        two.run()
    assert max(seen) == seen[-1] == remembered


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
    must = -(-CHUNKS // 61)  # have their turn
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
    rounds.simulation.at(rounds.simulation.now_s + 1.0, lambda: setattr(rounds.link, "loss", 0.0))
    began_s = rounds.simulation.now_s
    share = rounds.round(0.99)
    assert share >= FLOOR
    assert rounds.simulation.now_s - began_s <= 0.5  # before the loss does
    rounds.round(number=100)  # what is known of losses is of the round before
    assert rounds.round(number=101) >= SHARE


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("bounded-energy", {"order": "shuffled"}, "gather: .*needs an order that tells"),
        ("bounded-energy", {"floor": 0.0}, "floor is 0.0; valid: above 0, up to 1"),
        ("bounded-energy", {"at_most": 0}, "at_most is 0; valid: above 0, up to 1"),
        ("bounded-energy", {"patience": 0.9}, "patience is 0.9; valid: 1 or more"),
        ("bounded-energy", {"within_rounds": 0}, "within_rounds is 0; valid: a whole number, 1"),
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
    copies = [sum(report.chunks_sent for report in one.reports[8:]) for one in (waits, at_once)]
    assert copies[0] < copies[1]


def test_a_receiver_that_wants_more_than_the_order_thinks_gets_it():
    careful = preset("bounded-energy", share=0.999, at_most=1).gather
    rounds = Rounds(spread=2.0, arm=preset("bounded-energy", share=0.5), rate_bps=1e6)
    for _ in range(5):
        assert rounds.round(policy=careful) >= 0.999
