"""The relay of delayed links stands still, or delays links otherwise than configured."""

from __future__ import annotations

import time
from typing import Any

import pytest

from testbed.lab.delay.relay_client import RelayClient
from testbed.lab.sandbox import PRIVATE_DIRECTORY
from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab

RELAY = "testbed.lab.delay.relay"
STOPPED_S = 0.03


def delayed(wrong_lab: WrongLab, *, rounds: int = 20, **changes: Any) -> dict[str, Any]:
    """The small experiment on links that the relay delays by 5 ms and that are hardly ever idle."""
    star = {"name": "star", "workers": 2, "rate_bps": wrong_lab.rate_bps, "queue_bytes": 150_000}
    return {
        "topology": {**star, "delay_s": 0.005, "delayed_by": "relay", **changes},
        "training": {
            "model": "efficientnet-b0",
            "pace": {"kind": "payload-only", "scale": 0.05},
            "evaluate_every": 1000,
        },
        "phases": {"detector": "never-critical"},
        "rounds": rounds,
    }


@pytest.mark.long
def test_a_relay_that_was_stopped_for_30_ms_is_found(wrong_lab: WrongLab):
    def stop(lab: RunningLab) -> None:
        relay = lab.process(RELAY)
        relay.suspend()
        time.sleep(STOPPED_S)
        relay.resume()

    results = wrong_lab.run(meanwhile=stop, **delayed(wrong_lab))
    gate = assert_invalid(results, "relay_late_s")
    assert gate["value"] < STOPPED_S + 0.02
    assert_invalid(results, "relay_late_max_s")


def test_links_that_are_a_fifth_too_long_from_the_start_are_found(wrong_lab: WrongLab):
    longer = """
_right_set = DelayLine.set

def _set(self, settings):
    from dataclasses import replace
    _right_set(self, replace(settings, delay_s=1.2 * settings.delay_s))

DelayLine.set = _set
"""
    results = wrong_lab.run(
        altered_by={"testbed.lab.delay.relayed_direction": longer}, **delayed(wrong_lab, rounds=6)
    )
    # Two links there and two back.
    assert assert_invalid(results, "rtt_error")["value"] > 0.0039
    assert assert_invalid(results, "delay_error_s")["value"] > 0.0009


@pytest.mark.long
def test_a_delay_that_changed_meanwhile_is_found_and_its_link_named(wrong_lab: WrongLab):
    def lengthen(lab: RunningLab) -> None:
        root = f"/proc/{lab.switches()}/root{PRIVATE_DIRECTORY}"
        client = RelayClient(f"{root}/delay.sock")
        client.change("server--s1", "s1", delay_s=0.006)
        time.sleep(0.5)
        client.change("server--s1", "s1", delay_s=0.005)
        client.close()

    results = wrong_lab.run(meanwhile=lengthen, **delayed(wrong_lab))
    gate = assert_invalid(results, "delay_error_s", where="server--s1 from s1")
    assert 0.0005 < gate["value"] < 0.002
