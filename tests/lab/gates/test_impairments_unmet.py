"""Impairments where nothing is sent."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

IDLE = {"host": "traffic-1", "rounds": [2, 4]}


def test_impairments_that_met_no_packet_are_found_and_named(wrong_lab: WrongLab):
    topology = {
        "name": "star",
        "workers": 2,
        "extra_hosts": 1,
        "rate_bps": wrong_lab.rate_bps,
        "queue_bytes": 150_000,
    }
    entries = [
        {"kind": "loss", "name": "real", "host": "server", "rounds": [3], "q": 0.1},
        {"kind": "loss", "name": "idle-loss", "q": 0.1, **IDLE},
        {"kind": "police", "name": "idle-police", "rate_bps": 1_000_000, **IDLE},
        {"kind": "blackout", "name": "idle-blackout", **IDLE},
        {"kind": "queue", "name": "idle-queue", "rate_factor": 0.5, **IDLE},
    ]
    results = wrong_lab.run(topology=topology, impairments=entries)
    gate = assert_invalid(results, "impairments_unmet", where="idle-loss")
    named = set(gate["where"].split(", "))
    assert named == {"idle-loss", "idle-police", "idle-blackout", "idle-queue"}
    assert gate["value"] == 4
