"""Inside a sandbox: two hosts at a switch, a burst of UDP and a TCP transfer, sampled."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.lab.kernel import namespaces, shaping
from testbed.lab.network import HostInfo
from testbed.shared.messages import Messages
from testbed.transport.wire import DATA_PORTS
from testbed.verdict import sampler as sampling
from tests.lab import link_trials

RATE_BPS = 20_000_000
QUEUE_BYTES = 60_000
TCP_BYTES = 1_500_000


def in_sandbox(request: dict[str, Any], _: Messages) -> dict[str, Any]:
    directory = Path(request["directory"])
    for name in ("logs", "events"):
        (directory / name).mkdir()
    built, switch = link_trials.switched(
        **{
            "server": {"rate_bps": RATE_BPS, "queue_bytes": QUEUE_BYTES},
            "worker-1": {"rate_bps": 1_000_000_000, "queue_bytes": 10_000_000},
        }
    )
    hosts = built.info.hosts
    for host in hosts.values():
        with namespaces.entered(host.pid):  # what it says unasked would be in one of two readings
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    link_trials.ping(hosts["worker-1"], hosts["server"], count=1)
    switch.deepen_buffers()
    flows = {"hosts": list(hosts), "ports": DATA_PORTS, "centre": "server"}
    order = sampling.order_of(built.info, flows=flows, processes={}, config={"key": "scene"})
    with sampling.sampled(directory, order):
        _wait_for_samples(directory)
        _burst(hosts)
        time.sleep(0.3)
        noted = _transfer(hosts)
        time.sleep(0.1)
        noted |= {
            "switch": shaping.queue_statistics(hosts["server"].switch_interface),
            "host": shaping.queue_statistics("worker-1-eth0", pid=hosts["worker-1"].pid),
        }
        time.sleep(0.05)
    return noted


def _wait_for_samples(directory: Path) -> None:
    deadline_s = time.monotonic() + 20
    while not (directory / "live.json").exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError((directory / "logs" / "sampler.log").read_text())
        time.sleep(0.01)


def _burst(hosts: Mapping[str, HostInfo]) -> None:
    """Five times what the queue holds."""
    sender = namespaces.socket_in(hosts["worker-1"].pid, socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(5 * QUEUE_BYTES // 1400):
        sender.sendto(bytes(1400), (hosts["server"].address, 9))


def _transfer(hosts: Mapping[str, HostInfo]) -> dict[str, Any]:
    """Kernel TCP through the same bottleneck, on one of the training's ports."""
    listener = namespaces.socket_in(hosts["server"].pid, socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((hosts["server"].address, 47000))
    listener.listen()
    sender = namespaces.socket_in(hosts["worker-1"].pid, socket.AF_INET, socket.SOCK_STREAM)
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    sender.connect((hosts["server"].address, 47000))
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
