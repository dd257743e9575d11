"""What a machine can do and what it holds: capabilities, the probe, and the highest link rate."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import pytest

from testbed.machine import capabilities, highest_rate, steadiness
from testbed.machine.highest_rate import LADDER_MBPS, Highest, climb
from testbed.machine.steadiness import Findings, Moment
from testbed.shared.yaml_input import InputError
from tests.busy import busy_process

QUIET = Moment(late_p50_s=0.00006, late_p99_s=0.0004, others=0.01, stolen=0.0)


def moment(late_p99_s, others, stolen=0.0):
    return Moment(late_p50_s=0.0001, late_p99_s=late_p99_s, others=others, stolen=stolen)


def trial(rate_bps, reached=1.0):
    return highest_rate.Trial(
        rate_bps=rate_bps,
        incast_bps=reached * rate_bps,
        broadcast_bps=rate_bps,
        idle=0.5,
        lab_cores=0.4,
        switch_cores=0.2,
        rtt_s=0.0002,
    )


def test_the_first_rate_that_arrives_is_what_a_machine_holds():
    tried = [trial(100_000_000, reached=0.8), trial(50_000_000)]
    found = Findings(moment=QUIET, trials=tried)
    assert found.rate_bps == 50_000_000
    assert "4 hosts hold 50 Mbit/s (there arrived 80% of 100, 100% of 50" in found.sentence()
    none = Findings(moment=QUIET, trials=tried[:1])
    assert none.rate_bps is None
    assert none.sentence().startswith("no rate held (there arrived 80% of 100 Mbit/s)")


def test_a_probe_goes_down_the_rates_until_one_arrives(monkeypatch):
    reached = {100_000_000: 0.8, 50_000_000: 0.99, 20_000_000: 1.0}
    monkeypatch.setattr(highest_rate, "attempt", lambda rate: trial(rate, reached=reached[rate]))
    monkeypatch.setattr(steadiness, "watch", lambda: QUIET)
    found = steadiness.probe()
    assert [each.rate_bps for each in found.trials] == [100_000_000, 50_000_000]
    assert found.rate_bps == 50_000_000


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (QUIET, ""),
        (moment(0.0013, others=0.05), ""),
        (moment(0.0013, others=0.3), "others take 30% of"),
        (moment(0.0013, others=0.02, stolen=0.2), "others take 2% and the hypervisor 20% of"),
        (moment(0.006, others=0.0), "timers are 6.0 ms late"),
    ],
)
def test_a_machine_is_disturbed_by_others_or_by_late_timers(found, words):
    assert found.disturbed.startswith(words)
    assert bool(found.disturbed) is bool(words)


@pytest.mark.parametrize(("others", "told"), [(0.2, False), (0.5, True)])
def test_others_that_a_gate_would_not_pass_are_told(others, told):
    words = moment(0.001, others=others).sentence()
    assert ("runs may be invalid; close other programs" in words) is told


def test_a_busy_neighbour_is_seen_and_this_process_is_not():
    with busy_process(start_new_session=True):
        time.sleep(0.2)
        seen = steadiness.watch(0.5)
    assert seen.others > 0.1
    assert seen.late_p50_s > 0
    assert seen.late_p99_s >= seen.late_p50_s


FAR_S = 1e12


def machine(limit_mbps, *, flaky=()):
    """Tries a rate on a machine that holds up to `limit_mbps`; the first try at `flaky` fails."""
    unlucky = set(flaky)

    def attempt(rate_bps):
        fails = rate_bps > limit_mbps * 1e6 or rate_bps in unlucky
        unlucky.discard(rate_bps)
        return trial(rate_bps, reached=0.9 if fails else 1.0)

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
    limited = dataclasses.replace(trial(10**9), **change)
    assert not limited.held
    assert word in limited.limit()


def test_a_run_tries_what_it_needs_alone_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    def result_of(_module: str, request: dict[str, Any]) -> dict[str, Any]:
        tried.extend(request["wanted"])
        words = {"reason": "no HTB", "enables": "every run", "how": "modprobe sch_htb"}
        return {name: {"available": name != "shaping", **words} for name in tried}

    monkeypatch.setattr(capabilities.sandbox, "result_of", result_of)
    with pytest.raises(
        InputError, match=r"cannot run a lab: shaping: no HTB \(modprobe sch_htb\)$"
    ):
        capabilities.require()
    assert ["sandbox", *tried] == list(capabilities.REQUIRED)


def test_each_congestion_control_that_is_tried_has_words_on_what_it_enables_and_how_to_get_it():
    tried = {f"tcp-{name}" for name in capabilities.TCP_CONGESTION_CONTROLS}
    assert tried == {name for name in capabilities._ABOUT if name.startswith("tcp-")}
    assert all(each["enables"] and each["how"] for each in capabilities._ABOUT.values())
