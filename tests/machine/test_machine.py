"""Capabilities of a machine, and the probe of a rate that it holds."""

import time
from typing import Any

import pytest

from testbed.machine import capabilities, steadiness
from testbed.machine.steadiness import Findings, Moment
from testbed.shared.yaml_input import InputError
from tests.busy import busy_process
from tests.conftest import disturbance

QUIET = Moment(late_p50_s=0.00006, late_p99_s=0.0004, others=0.01, stolen=0.0)


def moment(late_p99_s, others, stolen=0.0):
    return Moment(late_p50_s=0.0001, late_p99_s=late_p99_s, others=others, stolen=stolen)


def test_the_first_rate_that_arrives_is_what_a_machine_holds():
    tried = [(100_000_000, 0.8), (50_000_000, 1.0)]
    result = Findings(moment=QUIET, trials=tried)
    assert result.rate_bps == 50_000_000
    assert "4 hosts hold 50 Mbit/s (there arrived 80% of 100, 100% of 50" in result.sentence()
    none = Findings(moment=QUIET, trials=tried[:1])
    assert none.rate_bps is None
    assert none.sentence().startswith("no rate held (there arrived 80% of 100 Mbit/s)")
    assert Findings(moment=QUIET, trials=tried[1:]).sentence().startswith("4 hosts hold 50 Mbit/s;")


def test_a_probe_goes_down_the_rates_until_one_arrives(monkeypatch):
    shares = {100_000_000: 0.8, 50_000_000: 0.99, 20_000_000: 1.0}
    monkeypatch.setattr(steadiness, "share_arrived", shares.get)
    monkeypatch.setattr(steadiness, "watch", lambda: QUIET)
    result = steadiness.probe()
    assert result.trials == [(100_000_000, 0.8), (50_000_000, 0.99)]
    assert result.rate_bps == 50_000_000


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (QUIET, ""),
        (moment(0.0013, others=0.05), ""),
        (moment(0.0013, others=0.3), "others take 30% of"),
        (moment(0.0013, others=0.02, stolen=0.2), "others take 2% and the hypervisor 20% of"),
        (moment(0.006, others=0.0), "p99 6.00 ms"),
    ],
)
def test_a_machine_is_disturbed_by_others_or_by_late_timers(seen, words):
    assert words in disturbance(seen)
    assert bool(disturbance(seen)) is bool(words)


@pytest.mark.parametrize(("others", "is_told"), [(0.2, False), (0.5, True)])
def test_others_that_a_gate_would_not_pass_are_told(others, is_told):
    words = moment(0.001, others=others).sentence()
    assert ("runs may be invalid; close other programs" in words) is is_told


def test_a_busy_neighbour_is_seen_and_this_process_is_not():
    with busy_process(start_new_session=True):
        time.sleep(0.2)
        seen = steadiness.watch(0.5)
    assert seen.others > 0.1
    assert seen.late_p50_s > 0
    assert seen.late_p99_s >= seen.late_p50_s


def test_a_run_tries_what_it_needs_alone_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    def result_of(_module: str, request: dict[str, Any]) -> dict[str, Any]:
        tried.extend(request["names"])
        return {name: {"available": name != "shaping", "reason": "no HTB"} for name in tried}

    monkeypatch.setattr(capabilities.sandbox, "result_of", result_of)
    with pytest.raises(
        InputError,
        match=r"cannot run a lab: shaping: no HTB \(apt-get install iproute2; modprobe sch_htb\)$",
    ):
        capabilities.require()
    assert ["sandbox", *tried] == list(capabilities.REQUIRED)


def test_each_congestion_control_that_is_tried_has_words_on_what_it_enables_and_how_to_get_it():
    tried = {f"tcp-{name}" for name in capabilities.TCP_CONGESTION_CONTROLS}
    assert tried == {name for name in capabilities._ABOUT if name.startswith("tcp-")}
    assert all(entry["enables"] and entry["how"] for entry in capabilities._ABOUT.values())
