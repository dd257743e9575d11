"""Topologies as real networks: everything is reached, paths share the load, links may fail."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import experiment
from testbed.lab import sandbox
from tests.lab.conftest import SMALL

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]


def inside(folder: Path, topology: dict[str, Any], what: str, **changes: Any) -> dict[str, Any]:
    """What `inside_topology` saw; with the time that the sandbox took to end."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "topology": topology, **changes}))
    config = experiment.load(str(path))[0].config()
    with sandbox.start("tests.lab.inside_topology") as box:
        seen, _ = box.ask({"config": config, "what": what})
        began_s = time.monotonic()
    return {**seen, "torn_down_s": time.monotonic() - began_s}


@pytest.mark.parametrize(
    "topology",
    [
        # leaf-spine is a lab below.
        pytest.param({"name": "fat-tree", "workers": 15}, id="fat-tree"),
        pytest.param(
            *({"name": "dumbbell", "workers": 4, "core": {"delay_s": 0.005}},),
            id="dumbbell",
        ),
    ],
)
def test_every_host_reaches_every_other(tmp_path, topology):
    hosts = 1 + topology["workers"] + topology.get("extra_hosts", 0)
    assert inside(tmp_path, topology, "all")["pairs"] == hosts * (hosts - 1)


def test_64_hosts_are_ready_and_gone_in_time(tmp_path):
    topology = {"name": "leaf-spine", "workers": 63, "leaves": 4, "spines": 4}
    seen = inside(tmp_path, topology, "server")
    assert seen["pairs"] == 2 * 63
    assert seen["ready_s"] < 15
    assert seen["torn_down_s"] < 3


def test_flows_share_the_paths_and_go_around_a_link_that_fails(tmp_path):
    topology = {"name": "leaf-spine", "workers": 3, "leaves": 2, "spines": 4}
    seen = inside(tmp_path, topology, "failing-link")
    everything = list(range(seen["before"]["sent"]))
    for phase in ("before", "down", "up"):
        assert seen[phase]["arrived"] == everything, phase
    for phase in ("before", "up"):
        # 128 flows on four paths: 32 each; a fair hash gives fewer than 14 once in 10 000 times.
        assert min(seen[phase]["links"].values()) >= 14 * 8, seen[phase]["links"]
    assert seen["down"]["links"]["spine-1"] == 0
    assert min(seen["down"]["links"][f"spine-{each}"] for each in (2, 3, 4)) >= 14 * 8
    # A loop or a second copy would arrive twice; what is lost is what was on its way meanwhile.
    assert all(seen[phase]["twice"] == 0 for phase in seen if isinstance(seen[phase], dict))
    lost = sorted(set(everything) - set(seen["failing"]["arrived"]))
    assert len(lost) < 0.1 * len(everything), f"lost from {lost[0]} to {lost[-1]}"
    # A device whose carrier is back drops what it is given until the kernel has woken its queue.
    lost = sorted(set(everything) - set(seen["recovering"]["arrived"]))
    assert not lost or lost[-1] < 20, f"lost from {lost[0]} to {lost[-1]}, of one each 0.5 ms"


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
