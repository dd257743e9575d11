"""Workers that share processes train as those that do not; 128 hosts are a lab like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.conftest import SMALL
from tests.lab.test_topologies import inside

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

PAYLOADS: dict[str, Any] = {
    "training": {"model": "mlp", "batch_size": 1, "pace": {"kind": "payload-only", "scale": 0.1}},
    "arms": {"exact": {"protocol": "dblp", "low": 0, "high": 0}},
}


def exchanged(directory: Path) -> set[tuple[Any, ...]]:
    """Every transfer of a run with what does not depend on the time."""
    found = set()
    for log in (directory / "events").glob("transfers-*.jsonl"):
        for each in map(json.loads, log.read_text().splitlines()):
            once_bytes = each["bytes_sent"] - each["retransmitted_bytes"]
            names = ("round", "leg", "role", "host", "peer", "chunk_count", "chunks_received")
            found.add((*(each[name] for name in names), once_bytes))
    return found


def test_workers_that_share_a_process_exchange_what_others_do(run_small, tmp_path):
    results = run_small(
        **PAYLOADS,
        rounds=3,
        topology=SMALL["topology"] | {"workers": 3},
        factors={"training.pace.workers_per_process": [1, 2]},
    )
    results.assert_trained()
    apart, together = sorted(
        (path for path in (tmp_path / "out").glob("*/exact-s*") if path.is_dir()),
        key=lambda path: json.loads((path / "config.json").read_text())["factors"].popitem()[1],
    )
    assert len(exchanged(apart)) == 3 * 2 * 2 * 3  # rounds, legs, ends, workers
    assert exchanged(together) == exchanged(apart)
    logs = {path.name for path in (together / "logs").glob("worker*")}
    assert logs == {"worker-1-to-2.log", "worker-3.log"}


@pytest.mark.long
def test_128_hosts_are_a_lab_in_30_s(tmp_path):
    topology = {"name": "fat-tree", "k": 8, "workers": 127, "rate_bps": 10_000_000}
    seen = inside(tmp_path, topology, "server", training=PAYLOADS["training"])
    assert seen["pairs"] == 2 * 127
    assert seen["ready_s"] < 30
    assert seen["torn_down_s"] < 5
    assert seen["memory_bytes"] < 6 << 30
