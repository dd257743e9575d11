"""The gates of what was calibrated before training: rates, round trips, losses, queues."""

import contextlib
import itertools
import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from testbed.verdict import calibration
from testbed.verdict.calibration import (
    Calibration,
    median_chance_s,
    path_over,
    stretches_bps,
    summary,
)
from tests.verdict.evidence_of_gates import LINK, gate_of, network_of, path, queue, stopping

RATE_BPS = 100_000_000
FRAME_S = 1514 * 8 / RATE_BPS


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"rate_bps": 96e6}, ["rate_error"]),
        ({"rate_spread": 0.06}, ["rate_spread"]),
        ({"probes_lost": 1}, ["idle_loss"]),
        ({"rtt_s": 0.00031}, ["rtt_error_s"]),
        ({"rtt_s": 0.00091, "switches": 3}, ["rtt_error_s"]),
        ({"rtt_s": 0.00089, "switches": 3}, []),
        ({"configured_rtt_s": 0.02, "rtt_s": 0.0225}, ["rtt_error"]),
        ({"configured_rtt_s": 0.02, "rtt_s": 0.0175}, ["rtt_error"]),
        ({"configured_rtt_s": 0.02, "rtt_s": 0.0215}, []),  # the larger of both limits holds
    ],
)
def test_one_bad_path_is_enough(changes, keys):
    assert stopping(paths=[path(), path(**changes)]) == dict.fromkeys(keys, "failed")


@pytest.mark.parametrize(
    ("peak_bytes", "passed"),
    [(150_000, True), (150_001, False), (146_000, True), (145_999, False), (60_000, False)],
)
def test_a_full_queue_reaches_its_limit_and_does_not_exceed_it(peak_bytes, passed):
    stopped = stopping(queues=[queue(), queue(peak_bytes=peak_bytes)])
    assert stopped == ({} if passed else {"queue_error": "failed"})


def idle_loss(*paths):
    return gate_of("idle_loss", calibration=Calibration(paths=list(paths)))


@pytest.mark.parametrize(
    ("probe_loss", "sent", "most"),
    [(0.0, 20, 0), (0.0199, 20, 6), (0.0975, 20, 10), (0.36, 20, 17), (0.36, 4, 4)],
)
def test_configured_loss_explains_as_many_lost_probes_as_chance_allows(probe_loss, sent, most):
    lossy = {"configured_probe_loss": probe_loss, "probes_sent": sent}
    assert path(**lossy).lost_by_chance() == most / sent
    # The probability of more is at most 1e-6, and that of one less is not.
    beyond = sum(
        math.comb(sent, lost) * probe_loss**lost * (1 - probe_loss) ** (sent - lost)
        for lost in range(most + 1, sent + 1)
    )
    assert beyond <= 1e-6
    assert idle_loss(path(probes_lost=most, **lossy)).outcome == "passed"
    if most < sent:
        assert idle_loss(path(), path(probes_lost=most + 1, **lossy)).outcome == "failed"


def test_the_gate_of_idle_loss_says_what_is_configured_and_hides_no_path_without():
    lossy = path(probes_lost=15, configured_probe_loss=0.0975)
    gate = idle_loss(lossy)
    assert (gate.value, gate.limit) == (0.75, 0.5)
    assert "configured loss takes 0.0975 of round trips" in gate.note
    passing = path(probes_lost=5, configured_probe_loss=0.0975)
    assert idle_loss(passing, path(probes_lost=1)).outcome == "failed"


@pytest.mark.parametrize("probes", [4, 20])
@pytest.mark.parametrize("jitters_s", [(0.001,), (0.004, 0.004)])
def test_round_trips_may_be_off_by_what_jitter_explains(probes, jitters_s):
    """The median of probes that drew their jitter on each link, there and back: never beyond."""
    draws = np.random.default_rng(3)
    both_ways = np.array([*jitters_s, *jitters_s])
    off_s = draws.uniform(-both_ways, both_ways, (100_000, probes, len(both_ways))).sum(axis=2)
    chance_s = median_chance_s(jitters_s, probes)
    medians_s = np.abs(np.median(off_s, axis=1))
    assert medians_s.max() < chance_s
    assert chance_s < 6 * medians_s.std() * 1.7
    near = path(configured_rtt_s=0.02, rtt_s=0.0219 + chance_s, rtt_chance_s=chance_s)
    assert "rtt_error" not in stopping(paths=[near])
    far = path(configured_rtt_s=0.02, rtt_s=0.0221 + chance_s, rtt_chance_s=chance_s)
    assert stopping(paths=[far]) == {"rtt_error": "failed"}


def test_what_a_path_is_configured_to_do_follows_from_its_links():
    """Through a slow link in the middle, behind or in front of one that loses a tenth."""
    lossy = replace(LINK, delay_s=0.001, jitter_s=0.0005, loss=0.1)
    narrow = replace(LINK, rate_bps=30_000_000, delay_s=0.01)
    host: Any = None
    behind = path_over(host, host, [narrow, lossy], [lossy, narrow])
    assert (behind.rate_bps, behind.hops, behind.jitters_s) == (30_000_000, 2, (0.0005,))
    assert behind.rtt_s == pytest.approx(0.022)
    assert (behind.loss, behind.probe_loss) == (pytest.approx(0.1), pytest.approx(0.19))
    assert behind.delivered_share == pytest.approx(0.9)
    # The narrow link is full nevertheless.
    assert path_over(host, host, [lossy, narrow], [narrow, lossy]).delivered_share == 1


@pytest.mark.parametrize(
    ("disturbed", "median_s"),
    [
        (5, 0.0001),  # other work delayed a batch
        (20, 0.0006),  # slow, and stays so
    ],
)
def test_a_batch_that_is_late_does_not_decide_and_is_not_left_out(monkeypatch, disturbed, median_s):
    """The round trips of one path through one switch, whose probes take these times."""
    nobody: Any = None
    times_s = itertools.chain([0.0006] * disturbed, itertools.repeat(0.0001))
    monkeypatch.setattr(calibration, "_ends", lambda *_: contextlib.nullcontext((None, None)))
    monkeypatch.setattr(calibration, "_BETWEEN_BATCHES_S", 0.0)
    monkeypatch.setattr(calibration, "_round_trip", lambda *_: next(times_s))
    (trips,) = calibration._all_round_trips([calibration._Path(nobody, nobody, 100_000_000)])
    assert len(trips) == 20
    assert sorted(map(float, filter(None, trips)))[10] == median_s


def arrivals(count, *, kept=lambda number: True, slow=lambda number: 1.0):
    at_s, arrived = 0.0, []
    for number in range(count):
        at_s += FRAME_S * slow(number)
        if kept(number):
            arrived.append((number, at_s))
    return arrived


def test_a_steady_path_has_its_rate_in_every_stretch_and_one_that_is_silent_none():
    trials = stretches_bps(arrivals(1000), 40)
    assert len(trials) > 20
    assert trials == [pytest.approx(RATE_BPS)] * len(trials)
    steady = summary(trials, RATE_BPS)
    assert (steady.median_bps, steady.trials) == (pytest.approx(RATE_BPS), len(trials))
    assert steady.spread == pytest.approx(0, abs=1e-9)
    assert stretches_bps([(0, 0.0)], 40, delivered_share=None) == []
    assert summary([], RATE_BPS) == calibration.Rate(median_bps=0, spread=1.0, trials=0)


def test_the_rate_of_a_lossy_path_is_that_before_its_losses():
    gappy = arrivals(1000, kept=lambda number: number % 5 != 2)
    rates = stretches_bps(gappy, 40, delivered_share=None)
    assert rates == [pytest.approx(RATE_BPS, rel=0.02)] * len(rates)
    # Without a configured loss, frames that are missing make the path slower than configured.
    assert max(stretches_bps(gappy, 40)) < 0.82 * RATE_BPS
    # A narrow link behind a lossy one is full all the same: what arrives is its rate.
    full = stretches_bps(arrivals(1000), 40, delivered_share=1)
    assert full == [pytest.approx(RATE_BPS)] * len(full)


@pytest.mark.parametrize("seed", range(40))
def test_a_rate_that_scatters_by_ten_percent_is_told_from_a_steady_one(seed):
    random.seed(seed)
    factors = [max(0.2, random.gauss(1, 0.1)) for _ in range(60)]
    scattered = arrivals(2000, slow=lambda number: 1 / factors[number // 40])
    rate = summary(stretches_bps(scattered, 40), RATE_BPS)
    assert rate.trials >= 40
    assert rate.spread > 0.05
    few = [1.0] * 30 + factors[:10]  # a fifth of the trials disturbed: the machine, not the link
    random.shuffle(few)
    disturbed = summary([RATE_BPS * factor for factor in few], RATE_BPS)
    assert disturbed.spread < 0.05
    assert disturbed.median_bps == pytest.approx(RATE_BPS, rel=0.005)


def test_what_chance_makes_of_configured_losses_is_no_scatter():
    random.seed(1)
    lost = arrivals(20_000, kept=lambda number: random.random() > 0.2)
    rates = stretches_bps(lost, 40, delivered_share=0.8)
    chance = calibration.chance_spread(RATE_BPS, 0.2)
    assert summary(rates, RATE_BPS).spread > 0.07
    assert summary(rates, RATE_BPS, chance=chance).spread < 0.05


@pytest.mark.parametrize("rate_bps", [2_000_000, RATE_BPS])
@pytest.mark.parametrize("jitters_s", [(0.001,), (0.001, 0.001), (0.005, 0.001)])
def test_what_jitter_makes_of_a_steady_rate_is_no_scatter(rate_bps, jitters_s):
    """Ordered jitter on every link, as the relay and netem carry it out."""
    draws = np.random.default_rng(7)
    frames = calibration.stretch_frames(rate_bps, jitters_s)
    at_s = np.arange(40 * frames) * 1514 * 8 / rate_bps
    for jitter_s in jitters_s:
        at_s = np.maximum.accumulate(at_s + draws.uniform(-jitter_s, jitter_s, len(at_s)))
    rates = stretches_bps(list(enumerate(at_s)), frames)
    chance = calibration.chance_spread(rate_bps, 0.0, jitters_s)
    assert 0.003 < chance < 0.045
    assert summary(rates, rate_bps, chance=chance).spread < 0.03
    assert summary(rates, rate_bps).median_bps == pytest.approx(rate_bps, rel=0.01)


def test_a_queue_that_would_take_long_to_drain_is_let_out_faster_for_a_while(monkeypatch):
    rates: dict[str, list[int]] = {}
    monkeypatch.setattr(calibration, "_fill", lambda _link, end: end.node)
    monkeypatch.setattr(calibration, "_backlog", lambda _end: (0, "bfifo"))
    monkeypatch.setattr(
        calibration,
        "_set_rate",
        lambda _link, end, rate_bps: rates.setdefault(end.node, []).append(rate_bps),
    )
    fast = replace(LINK, rate_bps=10_000_000, queue_bytes=150_000)
    slow = replace(LINK, rate_bps=100_000, queue_bytes=64 << 20)
    calibration._fill_all(network_of(fast))
    assert rates == {}
    calibration._fill_all(network_of(slow))
    nodes = (slow.first.node, slow.second.node)
    assert rates == {node: [8 * (64 << 20), 100_000] for node in nodes}
