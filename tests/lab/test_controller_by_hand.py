"""The controller against a plain Open vSwitch bridge, with a description that a person wrote."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from tests.lab.conftest import wait_for
from tests.lab.lab_under_test import LabUnderTest, sandboxed

EXAMPLE = Path(__file__).parents[2] / "controllers" / "by-hand.yaml"


def test_openflow_kinds_work_on_a_bridge_that_the_lab_did_not_make(tmp_path: Path) -> None:
    description = yaml.safe_load(EXAMPLE.read_text())
    log = tmp_path / "events" / "impairments.jsonl"
    log.parent.mkdir()
    description["log"] = str(log)
    description["impairments"] = [
        {"kind": "blackout", "host": "b", "at_s": [1.5], "duration_s": 0.5},
        {"kind": "police", "host": "b", "at_s": [2.5], "duration_s": 1, "rate_bps": 5_000_000},
        {"kind": "burst", "host": "a", "at_s": [2.6], "duration_s": 0.05, "rate_factor": 1},
        {"kind": "link-down", "host": "a", "at_s": [4], "duration_s": 0.5},
    ]
    path = tmp_path / "hand.yaml"
    path.write_text(yaml.safe_dump(description))
    with sandboxed("tests.lab.inside_bridges", str(path), tmp_path) as first_pid:
        lab = LabUnderTest(tmp_path, first_pid)
        with lab.flow("a", "b") as flow:

            def is_logged(name: str, action: str) -> dict[str, float]:
                return next(each for each in lab.events(name) if each["action"] == action)

            def wait_until(name: str, action: str) -> dict[str, float]:
                wait_for(lambda: any(each["action"] == action for each in lab.events(name)), 10)
                return is_logged(name, action)

            sent = flow.send(200)
            assert flow.received() == sent

            wait_until("blackout-b", "begin")
            time.sleep(0.05)  # the switch's cache
            flow.send(200)
            assert flow.received() == []
            assert wait_until("blackout-b", "end")["dropped"] == 200
            time.sleep(0.05)  # the switch's cache
            sent = flow.send(200)
            assert flow.received() == sent

            wait_until("police-b", "begin")
            time.sleep(0.05)  # the switch's cache
            flow.send(100, payload_bytes=1000, rate_bps=30e6)  # empties the bucket
            flow.received(quiet_s=0.02)
            began_s = time.monotonic()
            flow.send(2000, payload_bytes=1000, rate_bps=30e6)
            took_s = time.monotonic() - began_s
            rate_bps = len(flow.received()) * 1042 * 8 / took_s
            assert rate_bps == pytest.approx(5e6, rel=0.1)
            frames = wait_until("burst-a", "end")["frames_sent"]
            assert frames == pytest.approx(100e6 * 0.05 / (1514 * 8), rel=0.01)

            wait_until("link-down-a", "begin")
            time.sleep(0.05)  # the switch's cache
            flow.send(50)
            assert flow.received() == []
            wait_until("link-down-a", "end")
            time.sleep(0.2)
            sent = flow.send(200)
            assert flow.received() == sent
    assert json.loads((tmp_path / "network.json").read_text())["switches"] == {"s1": 1}
