"""Inside a sandbox: two hosts behind a bridge, a burst of UDP and a TCP transfer, sampled."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from testbed import sampling
from testbed.lab import sandbox
from testbed.lab.kernel import namespaces, shaping
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.shaping import LinkShape, Output
from testbed.transport.core.wire import DATA_PORTS

RATE_BPS = 20_000_000
QUEUE_BYTES = 60_000
TCP_BYTES = 1_500_000
HOSTS = {"server": "10.0.0.1", "worker-1": "10.0.0.2"}


def main() -> None:
    directory = Path(sys.argv[1])
    (directory / "logs").mkdir()
    (directory / "events").mkdir()
    sandbox.end_with_lifeline()
    sandbox.prepare()
    hosts = _network()
    order = _order(hosts)
    with sampling.sampled(directory, order):
        _wait_for_samples(directory)
        _burst(hosts)
        time.sleep(0.3)
        noted = _transfer(hosts)
        time.sleep(0.1)
        noted |= {
            "switch": shaping.queue_statistics("s1-server"),
            "host": shaping.queue_statistics("worker-1-eth0", pid=hosts["worker-1"]),
        }
        time.sleep(0.05)
    print(json.dumps(noted), flush=True)


def _network() -> dict[str, int]:
    run(["ip", "link", "add", "s1", "type", "bridge"])
    _quiet("s1")
    run(["ip", "link", "set", "s1", "up"])
    hosts = {}
    for name, address in HOSTS.items():
        pid = hosts[name] = subprocess.Popen(["unshare", "--net", "sleep", "60"]).pid
        home = Path("/proc/self/ns/net").stat().st_ino
        while Path(f"/proc/{pid}/ns/net").stat().st_ino == home:
            time.sleep(0.002)
        own, port = f"{name}-eth0", f"s1-{name}"
        peer = ["peer", "name", own, "netns", str(pid)]
        run(["ip", "link", "add", port, "type", "veth", *peer])
        _quiet(port)
        _quiet(own, pid)
        run(["ip", "link", "set", port, "master", "s1", "up"])
        run([*shaping.inside(pid), "ip", "address", "add", f"{address}/24", "dev", own])
        run([*shaping.inside(pid), "ip", "link", "set", own, "up"])
        fast = LinkShape(rate_bps=1_000_000_000, queue_bytes=10_000_000)
        slow = LinkShape(rate_bps=RATE_BPS, queue_bytes=QUEUE_BYTES)
        ends = ((port, None, slow), (own, pid, fast))
        shaping.shape_all(Output(interface=name, pid=at, shape=shape) for name, at, shape in ends)
    return hosts


def _quiet(interface: str, pid: int | None = None) -> None:
    """No packets of IPv6's own accord: the counters are compared at two moments."""
    run([*shaping.inside(pid), "ip", "link", "set", interface, "addrgenmode", "none"])


def _order(hosts: dict[str, int]) -> dict[str, Any]:
    links = [
        {
            "link": f"{name}--s1",
            "ends": [
                {"from": name, "interface": f"{name}-eth0", "pid": pid},
                {"from": "s1", "interface": f"s1-{name}", "pid": None},
            ],
            "rate_bps": RATE_BPS,
            "queue_bytes": QUEUE_BYTES,
        }
        for name, pid in hosts.items()
    ]
    return {
        "links": links,
        "hosts": {name: {"pid": pid, "address": HOSTS[name]} for name, pid in hosts.items()},
        "processes": {},
        "flows": {"hosts": list(hosts), "ports": DATA_PORTS, "centre": "server"},
        "run": {"key": "scene"},
    }


def _wait_for_samples(directory: Path) -> None:
    deadline_s = time.monotonic() + 20
    while not (directory / "live.json").exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError((directory / "logs" / "sampler.log").read_text())
        time.sleep(0.01)


def _burst(hosts: dict[str, int]) -> None:
    """Five times what the queue holds."""
    sender = namespaces.socket_in(hosts["worker-1"], socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(5 * QUEUE_BYTES // 1400):
        sender.sendto(bytes(1400), (HOSTS["server"], 9))


def _transfer(hosts: dict[str, int]) -> dict[str, Any]:
    """Kernel TCP through the same bottleneck, on one of the training's ports."""
    listener = namespaces.socket_in(hosts["server"], socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((HOSTS["server"], 47000))
    listener.listen()
    sender = namespaces.socket_in(hosts["worker-1"], socket.AF_INET, socket.SOCK_STREAM)
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    sender.connect((HOSTS["server"], 47000))
    receiver, _ = listener.accept()
    got = 0

    def receive() -> None:
        nonlocal got
        while got < TCP_BYTES:
            got += len(receiver.recv(1 << 16))

    reading = threading.Thread(target=receive)
    reading.start()
    sender.sendall(bytes(TCP_BYTES))
    reading.join(30)
    time.sleep(0.1)  # the last acknowledgements
    info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (again,) = (int.from_bytes(info[100:104], sys.byteorder),)
    time.sleep(0.1)
    return {"retransmits": again, "received": got}


if __name__ == "__main__":
    main()
