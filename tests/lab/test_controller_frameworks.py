"""Ryu and os-ken drive the same lab."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

# All other labs run with Ryu, where it can be had.
FRAMEWORK = [pytest.param("ryu", marks=pytest.mark.long), "os-ken"]
TIMELINE = [
    {"kind": "loss", "name": "half", "q": 0.5, "rounds": [2]},
    {"kind": "burst", "name": "flood", "rounds": [4], "rate_factor": 3, "duration_s": 0.05},
]


@pytest.mark.parametrize("framework", FRAMEWORK)
def test_forwarding_loss_and_burst_take_effect(run_small, framework, held_rate_bps):
    results = run_small(controller=framework, rounds=6, impairments=TIMELINE)
    results.assert_trained()
    manifest = json.loads((results.run() / "manifest.json").read_text())
    assert manifest["controller"]["framework"] == framework
    assert manifest["controller"]["version"]
    config = json.loads((results.run() / "config.json").read_text())
    assert config["controller"] == framework
    ended = {
        each["name"]: each for each in results.events("impairments") if each["action"] == "end"
    }
    # Two workers' gradients are some hundreds of chunks; half of what is sent is lost.
    assert ended["half"]["dropped"] > 50
    # Three times the link's rate: the queue takes a little, the link a third.
    frames = 3 * held_rate_bps * 0.05 / (1514 * 8)
    assert 0.8 * frames < ended["flood"]["frames_sent"] < 1.2 * frames
    assert 0.4 < ended["flood"]["dropped"] / ended["flood"]["frames_sent"] < 0.9
