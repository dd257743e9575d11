"""Topologies as real networks: everything is reached, paths share the load, links may fail."""

import json
import socket
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from testbed import experiment
from testbed.lab import sandbox
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.namespaces import socket_in
from testbed.run.session import LabSession
from testbed.shared.messages import Messages
from tests.lab.conftest import SMALL

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

_PORT = 7777
_FLOWS = 128


class Traffic:
    def __init__(self, lab: LabSession) -> None:
        self.info = lab.info
        self.sinks = {name: self._open(name, _PORT) for name in self.info.hosts}

    def pairs(self, *, with_server_only: bool) -> int:
        """Send a datagram between all ordered pairs of hosts, and count the pairs."""
        expected = {
            (a, b)
            for a in self.sinks
            for b in self.sinks
            if a != b and (not with_server_only or "server" in (a, b))
        }
        for a, b in sorted(expected):
            self.sinks[a].sendto(f"{a}>{b}".encode(), (self.info.hosts[b].address, _PORT))
        arrived: Counter[tuple[str, str]] = Counter()
        deadline_s = time.monotonic() + 2
        while len(arrived) < len(expected) and time.monotonic() < deadline_s:
            for name, sink in self.sinks.items():
                for text in received(sink):
                    a, _, b = text.partition(">")
                    assert b == name, f"{text} came to {name}"
                    arrived[a, b] += 1
        assert set(arrived) == expected, f"missing: {sorted(expected - set(arrived))[:5]}"
        assert set(arrived.values()) == {1}, "some came twice"
        return len(expected)

    def spread(self, packets: int, *, interval_s: float = 0.0) -> dict[str, Any]:
        """Flows of different source ports from worker-1 to the server, and the paths they took."""
        sources = [self._open("worker-1", 0) for _ in range(_FLOWS)]
        target = (self.info.hosts["server"].address, _PORT)
        before, texts = self.sent(), []
        for number in range(packets):
            sources[number % _FLOWS].sendto(str(number).encode(), target)
            time.sleep(interval_s)
            texts += received(self.sinks["server"])
        time.sleep(0.3)
        texts += received(self.sinks["server"])
        for source in sources:
            source.close()
        after = self.sent()
        return {
            "sent": packets,
            "arrived": sorted({int(text) for text in texts}),
            "twice": len(texts) - len(set(texts)),
            "links": {name: after[name] - before[name] for name in after},
        }

    def sent(self) -> dict[str, int]:
        listed = json.loads(run(["ip", "-j", "-s", "link"]))
        packets = {entry["ifname"]: entry["stats64"]["tx"]["packets"] for entry in listed}
        return {
            link.second.node: packets[link.first.interface]
            for link in self.info.links
            if link.first.node == "leaf-2" and link.second.node.startswith("spine")
        }

    def _open(self, name: str, port: int) -> socket.socket:
        host = self.info.hosts[name]
        opened = socket_in(host.pid, socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind((host.address, port))
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
        return opened


def received(sink: socket.socket) -> list[str]:
    texts = []
    with suppress(BlockingIOError):
        while True:
            texts.append(sink.recv(100).decode())
    return texts


def memory_bytes() -> int:
    return sum(
        process.memory_full_info().pss
        for process in psutil.process_iter()
        if process.status() != psutil.STATUS_ZOMBIE
    )


def failing_link(traffic: Traffic) -> dict[str, Any]:
    """Traffic before, while and after the link to spine-1 is down, and when it is up again."""
    link = next(
        candidate for candidate in traffic.info.links if candidate.name == "leaf-2--spine-1"
    )
    results = {"before": traffic.spread(_FLOWS * 8)}
    run(["ip", "link", "set", link.first.interface, "down"])
    results["failing"] = traffic.spread(_FLOWS * 8, interval_s=0.0005)
    results["down"] = traffic.spread(_FLOWS * 8)
    run(["ip", "link", "set", link.first.interface, "up"])
    results["recovering"] = traffic.spread(_FLOWS * 8, interval_s=0.0005)
    results["up"] = traffic.spread(_FLOWS * 8)
    return results


def in_sandbox(request: dict[str, Any], _: Messages) -> dict[str, Any]:
    """Asked for a run's configuration, and what to look at."""
    what, began_s = request["what"], time.monotonic()
    lab = LabSession(request["config"])
    lab.begin()
    lab.build()
    result: dict[str, Any] = {"ready_s": time.monotonic() - began_s}
    traffic = Traffic(lab)
    if what == "failing-link":
        result |= failing_link(traffic)
    else:
        result["pairs"] = traffic.pairs(with_server_only=what == "server")
        result["memory_bytes"] = memory_bytes()
    return result


def inside(folder: Path, topology: dict[str, Any], what: str, **changes: Any) -> dict[str, Any]:
    """Build a topology in a sandbox; what came through it, and how long the sandbox took to end."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "topology": topology, **changes}))
    config = experiment.load(str(path))[0].config()
    with sandbox.start(__name__) as box:
        seen, _ = box.ask({"config": config, "what": what})
        began_s = time.monotonic()
    return {**seen, "torn_down_s": time.monotonic() - began_s}


# A dumbbell is in test_every_kind.py and in the tutorial; leaf-spine is a lab below.
def test_in_a_fat_tree_every_host_reaches_every_other(tmp_path):
    topology = {"name": "fat-tree", "workers": 15}
    assert inside(tmp_path, topology, "all")["pairs"] == 16 * 15


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
    assert min(seen["down"]["links"][f"spine-{entry}"] for entry in (2, 3, 4)) >= 14 * 8
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
    result = set()
    for log in (directory / "events").glob("transfers-*.jsonl"):
        for entry in map(json.loads, log.read_text().splitlines()):
            once_bytes = entry["bytes_sent"] - entry["retransmitted_bytes"]
            names = ("round", "leg", "role", "host", "peer", "chunk_count", "chunks_received")
            result.add((*(entry[name] for name in names), once_bytes))
    return result


@pytest.mark.beside
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
