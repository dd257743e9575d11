"""What the sampler costs: `python -m tests.benchmarks.sampler_cost [LINKS] [SECONDS]` prints it.

Builds so many links between hosts and one switch namespace in a sandbox, all shaped, and samples
their both ends; with `tcp` as third word also a TCP connection between each host and the first.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from testbed import sampling
from testbed.lab import sandbox
from testbed.lab.kernel import namespaces, shaping
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import LinkShape
from testbed.transport.core.wire import DATA_PORTS

_SHAPE = LinkShape(rate_bps=100_000_000, queue_bytes=150_000)


def main() -> None:
    if os.getpid() != 1:
        words = sys.argv[1:] or ["10", "10"]
        process = sandbox.start("tests.benchmarks.sampler_cost", *words, terminal=True)
        sys.exit(process.wait())
    links, seconds, tcp = int(sys.argv[1]), float(sys.argv[2]), "tcp" in sys.argv
    sandbox.prepare()
    run(["ip", "link", "add", "s1", "type", "bridge"])
    run(["ip", "link", "set", "s1", "up"])
    names = ["server", *(f"worker-{number}" for number in range(1, links))]
    hosts = {name: _host(name, f"10.0.0.{number}") for number, name in enumerate(names, 1)}
    connections = [_connect(hosts, name, index) for index, name in enumerate(names[1:]) if tcp]
    order: dict[str, Any] = {
        "links": [
            {
                "link": f"{name}--s1",
                "ends": [
                    {"from": name, "interface": f"{name}-eth0", "pid": host["pid"]},
                    {"from": "s1", "interface": f"s1-{name}", "pid": None},
                ],
                "rate_bps": _SHAPE.rate_bps,
                "queue_bytes": _SHAPE.queue_bytes,
            }
            for name, host in hosts.items()
        ],
        "hosts": hosts,
        "processes": {},
        "flows": {"hosts": names, "ports": DATA_PORTS if tcp else None, "centre": "server"},
        "run": {"key": "cost"},
    }
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "logs").mkdir()
        (directory / "events").mkdir()
        with sampling.sampled(directory, order):
            time.sleep(seconds)
        facts = json.loads((directory / "samples" / "sampler.json").read_text())
    print(json.dumps(facts, indent=2))
    print(f"{links} links, {2 * len(connections)} TCP flows: {facts['cpu_share']:.2%} of a core")
    os._exit(0)


def _host(name: str, address: str) -> dict[str, Any]:
    pid = subprocess.Popen(["unshare", "--net", "sleep", "600"]).pid
    home = Path("/proc/self/ns/net").stat().st_ino
    while Path(f"/proc/{pid}/ns/net").stat().st_ino == home:
        time.sleep(0.002)
    own, port = f"{name}-eth0", f"s1-{name}"
    run(["ip", "link", "add", port, "type", "veth", "peer", "name", own, "netns", str(pid)])
    run(["ip", "link", "set", port, "master", "s1", "up"])
    run([*shaping.inside(pid), "ip", "address", "add", f"{address}/24", "dev", own])
    run([*shaping.inside(pid), "ip", "link", "set", own, "up"])
    shaping.shape(port, _SHAPE)
    shaping.shape(own, _SHAPE, pid=pid)
    return {"pid": pid, "address": address}


def _connect(hosts: dict[str, Any], name: str, index: int) -> list[socket.socket]:
    server = hosts["server"]
    listener = namespaces.socket_in(server["pid"], socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((server["address"], 47000 + index))
    listener.listen()
    client = namespaces.socket_in(hosts[name]["pid"], socket.AF_INET, socket.SOCK_STREAM)
    client.connect((server["address"], 47000 + index))
    accepted, _ = listener.accept()
    return [listener, client, accepted]


if __name__ == "__main__":
    main()
