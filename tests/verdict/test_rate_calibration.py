"""A path's rate is the median of all stretches of a saturated path, and their scatter is told."""

from __future__ import annotations

import random

import numpy as np
import pytest

from testbed.verdict import rate_calibration
from testbed.verdict.rate_calibration import stretches_bps, summary

RATE_BPS = 100_000_000
FRAME_S = 1514 * 8 / RATE_BPS


def arrivals(count, *, kept=lambda number: True, slow=lambda number: 1.0):
    at_s, found = 0.0, []
    for number in range(count):
        at_s += FRAME_S * slow(number)
        if kept(number):
            found.append((number, at_s))
    return found


def test_a_steady_path_has_its_rate_in_every_stretch_and_one_that_is_silent_none():
    trials = stretches_bps(arrivals(1000), 40)
    assert len(trials) > 20
    assert trials == [pytest.approx(RATE_BPS)] * len(trials)
    steady = summary(trials, RATE_BPS)
    assert (steady.median_bps, steady.trials) == (pytest.approx(RATE_BPS), len(trials))
    assert steady.spread == pytest.approx(0, abs=1e-9)
    assert stretches_bps([(0, 0.0)], 40, loss=0.2, delivered_share=0.8) == []
    assert summary([], RATE_BPS) == rate_calibration.Rate(median_bps=0, spread=1.0, trials=0)


def test_the_rate_of_a_lossy_path_is_that_before_its_losses():
    gappy = arrivals(1000, kept=lambda number: number % 5 != 2)
    told = stretches_bps(gappy, 40, loss=0.2, delivered_share=0.8)
    assert told == [pytest.approx(RATE_BPS, rel=0.02)] * len(told)
    # Without a configured loss, frames that are missing make the path slower than configured.
    assert max(stretches_bps(gappy, 40)) < 0.82 * RATE_BPS
    # A narrow link behind a lossy one is full all the same: what arrives is its rate.
    full = stretches_bps(arrivals(1000), 40, loss=0.2, delivered_share=1)
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
    told = stretches_bps(lost, 40, loss=0.2, delivered_share=0.8000001)
    chance = rate_calibration.chance_spread(RATE_BPS, 0.2)
    assert summary(told, RATE_BPS).spread > 0.07
    assert summary(told, RATE_BPS, chance=chance).spread < 0.05


@pytest.mark.parametrize("rate_bps", [2_000_000, RATE_BPS])
@pytest.mark.parametrize("jitters_s", [(0.001,), (0.001, 0.001), (0.005, 0.001)])
def test_what_jitter_makes_of_a_steady_rate_is_no_scatter(rate_bps, jitters_s):
    """Ordered jitter on every link, as the relay and netem carry it out."""
    draws = np.random.default_rng(7)
    frames = rate_calibration.stretch_frames(rate_bps, jitters_s)
    at_s = np.arange(40 * frames) * 1514 * 8 / rate_bps
    for jitter_s in jitters_s:
        at_s = np.maximum.accumulate(at_s + draws.uniform(-jitter_s, jitter_s, len(at_s)))
    told = stretches_bps(list(enumerate(at_s)), frames)
    chance = rate_calibration.chance_spread(rate_bps, 0.0, jitters_s)
    assert 0.003 < chance < 0.045
    assert summary(told, rate_bps, chance=chance).spread < 0.03
    assert summary(told, rate_bps).median_bps == pytest.approx(rate_bps, rel=0.01)


def test_a_blast_lasts_long_enough_and_not_too_long():
    for rate_bps in (100_000, 1_000_000, 10_000_000, RATE_BPS, 1_000_000_000):
        assert 0.05 < rate_calibration.duration_s(rate_bps) < 2.5
        assert 0.05 < rate_calibration.duration_s(rate_bps, (0.001, 0.001)) < 3
