"""The search for the highest link rate, on a machine whose limit is known."""

import itertools
import time

import pytest

from testbed.machine.highest_rate import LADDER_MBPS, Highest, Trial, climb

FAR_S = 1e12


def machine(limit_mbps, *, flaky=()):
    """Tries a rate on a machine that holds up to `limit_mbps`; the first try at `flaky` fails."""
    unlucky = set(flaky)

    def attempt(rate_bps):
        fails = rate_bps > limit_mbps * 1e6 or rate_bps in unlucky
        unlucky.discard(rate_bps)
        share = 0.9 if fails else 1.0
        return Trial(
            rate_bps=rate_bps,
            incast_bps=share * rate_bps,
            broadcast_bps=rate_bps,
            idle=0.5,
            lab_cores=0.9,
            switch_cores=0.4,
        )

    return attempt


@pytest.mark.parametrize("limit_mbps", [120, 430, 999, 1720])
def test_it_comes_close_to_the_limit_from_below(limit_mbps):
    found = Highest(list(climb(machine(limit_mbps), FAR_S)))
    assert found.best is not None
    best_mbps = found.best.rate_bps / 1e6
    steps = [b - a for a, b in itertools.pairwise(LADDER_MBPS) if a <= best_mbps]
    assert limit_mbps - steps[-1] / 8 - 1 <= best_mbps <= limit_mbps
    assert "incast" in found.limited_by


def test_one_bad_moment_does_not_end_the_climb():
    found = Highest(list(climb(machine(450, flaky=[200_000_000]), FAR_S)))
    assert found.best is not None
    assert found.best.rate_bps >= 400_000_000


def test_a_machine_that_holds_nothing_is_told_so():
    found = Highest(list(climb(machine(0.5), FAR_S)))
    assert found.as_json()["available"] is False
    assert found.as_json()["highest_bps"] is None
    assert "no rate was held in the userspace datapath" in found.sentence()


@pytest.mark.parametrize(("limit_mbps", "expected_mbps"), [(60, 50), (13, 12), (2, 1)])
def test_a_slow_machine_is_told_the_rate_that_it_holds(limit_mbps, expected_mbps):
    found = Highest(list(climb(machine(limit_mbps), time.monotonic())))
    assert found.best is not None
    assert found.best.rate_bps == expected_mbps * 1_000_000


def test_it_ends_when_its_time_is_over():
    assert len(list(climb(machine(10_000), time.monotonic()))) == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"idle": 0.01}, "processors"),
        ({"switch_cores": 0.99, "incast_bps": 9e8}, "the switch"),
        ({"broadcast_bps": 9e8}, "broadcast"),
    ],
)
def test_what_limits_is_named(change, word):
    fine = {"incast_bps": 1e9, "broadcast_bps": 1e9, "idle": 0.4}
    fine |= {"lab_cores": 1.1, "switch_cores": 0.5}
    trial = Trial(rate_bps=10**9, **{**fine, **change})
    assert not trial.held
    assert word in trial.limit()
