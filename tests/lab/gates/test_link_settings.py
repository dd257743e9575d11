"""Links that no measurement sees: a core that is never the bottleneck, a queue cut meanwhile."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = pytest.mark.lab


IDLE = {"host": "traffic-1", "rounds": [2, 4]}


def test_a_queue_that_is_cut_a_sampler_that_dies_and_unmet_impairments_are_found(
    wrong_lab: WrongLab,
):
    def cut_and_kill(lab: RunningLab) -> None:
        words = ["qdisc", "change", "dev", "s1-eth1", "parent", "1:10", "handle", "10:"]
        lab.run_in(lab.switches(), "tc", *words, "bfifo", "limit", "15000")
        lab.process("testbed.sampling").kill()

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
    results = wrong_lab.run(
        meanwhile=cut_and_kill, topology=topology, impairments=entries, rounds=20
    )
    where = "server--s1 from s1: queue_bytes 15000 in place of 150000 after the training"
    assert assert_invalid(results, "link_settings", where=where)["value"] == 1
    gone = assert_invalid(results, "samples_missing", outcome="not measured")
    assert "samples/sampler.json is missing" in gone["note"]
    unmet = assert_invalid(results, "impairments_unmet", where="idle-loss")
    named = set(unmet["where"].split(", "))
    assert named == {"idle-loss", "idle-police", "idle-blackout", "idle-queue"}
    assert unmet["value"] == 4
