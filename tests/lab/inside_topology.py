"""Inside a sandbox: builds a network and says what came through it (`test_topologies`)."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import psutil

from testbed.lab.kernel.commands import run
from testbed.lab.kernel.namespaces import socket_in
from testbed.run.session import LabSession
from testbed.shared.messages import Messages

_PORT = 7777
_FLOWS = 128


class Traffic:
    """Datagrams between the hosts of a lab, and where switches sent them."""

    def __init__(self, lab: LabSession) -> None:
        self.info = lab.info
        self.sinks = {name: self._open(name, _PORT) for name in self.info.hosts}

    def pairs(self, *, with_server_only: bool) -> int:
        """How many ordered pairs of hosts one datagram each went between; all should."""
        wanted = {
            (a, b)
            for a in self.sinks
            for b in self.sinks
            if a != b and (not with_server_only or "server" in (a, b))
        }
        for a, b in sorted(wanted):
            self.sinks[a].sendto(f"{a}>{b}".encode(), (self.info.hosts[b].address, _PORT))
        arrived: Counter[tuple[str, str]] = Counter()
        deadline_s = time.monotonic() + 2
        while len(arrived) < len(wanted) and time.monotonic() < deadline_s:
            for name, sink in self.sinks.items():
                for text in received(sink):
                    a, _, b = text.partition(">")
                    assert b == name, f"{text} came to {name}"
                    arrived[a, b] += 1
        assert set(arrived) == wanted, f"missing: {sorted(wanted - set(arrived))[:5]}"
        assert set(arrived.values()) == {1}, "some came twice"
        return len(wanted)

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
        """Packets that went out of leaf-2 to each spine."""
        listed = json.loads(run(["ip", "-j", "-s", "link"]))
        packets = {each["ifname"]: each["stats64"]["tx"]["packets"] for each in listed}
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
    """All datagrams that wait."""
    texts = []
    with suppress(BlockingIOError):
        while True:
            texts.append(sink.recv(100).decode())
    return texts


def memory_bytes() -> int:
    """Of all processes of the sandbox, what they share divided among them."""
    return sum(
        each.memory_full_info().pss
        for each in psutil.process_iter()
        if each.status() != psutil.STATUS_ZOMBIE
    )


def failing_link(traffic: Traffic) -> dict[str, Any]:
    """Traffic before, while and after the link to spine-1 is down, and when it is up again."""
    link = next(each for each in traffic.info.links if each.name == "leaf-2--spine-1")
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
