"""Inside a sandbox: small networks without a controller, and what was measured on them."""

import contextlib
import functools
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from testbed.lab import link_control, sandbox
from testbed.lab.delay import relay_client
from testbed.lab.kernel import shaping
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.namespaces import socket_in
from testbed.lab.kernel.shaping import inside
from testbed.lab.network import HostInfo, Network, set_rps
from testbed.lab.openvswitch import OpenVSwitch
from testbed.shared import dscp
from testbed.shared.messages import Messages
from testbed.transport.net.udp import SO_RCVBUFFORCE
from tests.own_network import queue_statistics

RATE_BPS, QUEUE_BYTES = 100_000_000, 150_000
_DRAINED_WITHIN_S = 2.0


def switched(
    delayed_by: str = "auto", adjustable: bool = False, /, **links: dict[str, Any]
) -> tuple[Network, OpenVSwitch]:
    """Hosts around one switch that forwards as an ordinary one; a link's options by its host."""
    from mininet.topo import Topo

    class Star(Topo):
        def build(self) -> None:
            switch = self.addSwitch("s1")
            for host, options in links.items():
                common = {"rate_bps": RATE_BPS, "queue_bytes": QUEUE_BYTES}
                self.addLink(self.addHost(host), switch, **{**common, **options})

    private = sandbox.prepare()
    switch = OpenVSwitch(private, private)
    switch.start()
    built = Network(
        topology=Star(), private=private, logs=private, delayed_by=delayed_by, adjustable=adjustable
    )
    built.build()
    built.start()
    run(["ovs-ofctl", "-O", "OpenFlow13", "add-flow", "s1", "actions=NORMAL"])
    return built, switch


def switch_port(built: Network, host: str) -> str:
    """The other end of a host's link."""
    return next(link.second.interface for link in built.info.links if link.first.node == host)


def ping(
    here: HostInfo, there: HostInfo, *, count: int, interval_s: float = 0.01, size: int = 1000
) -> list[float]:
    """The round trips that were answered, in seconds; two more go ahead for the switch to learn."""
    unchecked = [*inside(here.pid), "sh", "-c", '"$@" || true', "-", "ping", "-W", "1"]
    run([*unchecked, "-c", "2", "-i", "0.2", there.address])
    expected = ["-c", str(count), "-i", str(interval_s), "-s", str(size)]
    printed = run([*unchecked, *expected, there.address])
    return [float(text) / 1e3 for text in re.findall(r"time=([0-9.]+) ms", printed)]


def record_without_frames_in_flight(built: Network) -> dict[str, Any]:
    """The record of delayed links once every frame that came has left."""
    deadline_s = time.monotonic() + _DRAINED_WITHIN_S
    while True:
        record = relay_client.document(built.info.as_json())
        if not any(map(_in_flight, record["directions"])) or time.monotonic() > deadline_s:
            return record
        time.sleep(0.005)


def star() -> dict[str, Any]:
    """Round trips over links of several delays, one that loses, and who takes what arrives."""
    built, _ = switched(
        near={},
        plain={},
        one={"delay_s": 0.001},
        five={"delay_s": 0.005},
        twenty={"delay_s": 0.02},
        jittery={"delay_s": 0.005, "jitter_s": 0.004},
        lossy={"delay_s": 0.001},
    )
    hosts = built.info.hosts
    delays: dict[str, Any] = {
        name: ping(hosts["near"], hosts[name], count=60)
        for name in ("plain", "one", "five", "twenty", "jittery")
    }
    delays["record"] = record_without_frames_in_flight(built)
    ping(hosts["near"], hosts["lossy"], count=1)
    before = [
        direction["lost"] for direction in relay_client.document(built.info.as_json())["directions"]
    ]
    link_control.LinkControl(built.info.as_json()).change("s1", "lossy", {"loss": 0.2})
    answered = ping(hosts["near"], hosts["lossy"], count=1000, interval_s=0.002, size=56)
    counters = record_without_frames_in_flight(built)["directions"]
    losses = {
        "answered": len(answered),
        "before": before,
        "lost": {
            counter["from"]: counter["lost"] for counter in counters if "lossy" in counter["link"]
        },
        "in flight": [_in_flight(counter) for counter in counters],
    }
    return {"delays": delays, "losses": losses, "steered": _steered(built)}


def _in_flight(counters: dict[str, Any]) -> int:
    ended = (counters[key] for key in ("frames_out", "dropped", "lost"))
    return int(counters["frames_in"] - sum(ended))


def _steered(built: Network) -> dict[str, Any]:
    """The processors that take an interface's frames, before and after they were chosen."""
    inner = next(link.middle[0] for link in built.info.links if link.middle is not None)
    ends = [(built.info.hosts["near"].pid, "near-eth0"), (None, "s1-eth1"), (None, inner)]
    before = [_processors(*end) for end in ends]
    done = set_rps(ends)
    return {"done": done, "before": before, "after": [_processors(*end) for end in ends]}


def chosen(delayed_by: str) -> dict[str, Any]:
    try:
        built, _ = switched(delayed_by, near={}, far={"delay_s": 0.02})
    except shaping.MissingCapabilityError as error:
        return {"unsupported": str(error)}
    hosts = built.info.hosts
    return {
        "round_trips_s": ping(hosts["near"], hosts["far"], count=5),
        "record": relay_client.document(built.info.as_json()),
    }


def _processors(pid: int | None, interface: str) -> int:
    show = f"mount -t sysfs none /sys && cat /sys/class/net/{interface}/queues/rx-0/rps_cpus"
    return int(run([*inside(pid), "unshare", "--mount", "sh", "-c", show]).replace(",", ""), 16)


def changes(delay_s: float = 0.005, frame_bytes: int = 1514) -> dict[str, Any]:
    """One UDP flow that never pauses, while rate, queue and delay of its way change."""
    built, _ = switched(
        "auto", not delay_s, near={"rate_bps": 10_000_000}, far={"delay_s": delay_s}
    )
    hosts = built.info.hosts
    links = link_control.LinkControl(built.info.as_json())
    ping(hosts["near"], hosts["far"], count=2)
    source = socket_in(hosts["near"].pid, socket.AF_INET, socket.SOCK_DGRAM)
    # What the sender's own queue holds at most: less than the smallest limit below.
    source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    sink = socket_in(hosts["far"].pid, socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sink.bind((hosts["far"].address, 5000))
    sink.settimeout(1.0)
    ended = threading.Event()
    sent = 0

    def blast() -> None:
        nonlocal sent
        while not ended.is_set():
            source.sendto(
                sent.to_bytes(4, "big").ljust(frame_bytes - 42, b"\0"), sink.getsockname()
            )
            sent += 1

    arrivals: list[tuple[float, int]] = []

    def collect() -> None:
        while True:
            try:
                data = sink.recv(2048)
            except TimeoutError:
                return
            arrivals.append((time.monotonic(), int.from_bytes(data[:4], "big")))

    threads = [threading.Thread(target=entry) for entry in (collect, blast)]
    for thread in threads:
        thread.start()
    steps = []
    costs_s = []
    for rate_bps, queue_bytes, delay_s in (
        (10_000_000, 150_000, 0.005),
        (4_000_000, 60_000, 0.010),
        (15_000_000, 300_000, 0.002),
    ):
        began_s = time.monotonic()
        links.change("near", "s1", {"rate_bps": rate_bps, "queue_bytes": queue_bytes})
        links.change("s1", "far", {"delay_s": delay_s})
        changed_s = time.monotonic()
        costs_s.append(changed_s - began_s)
        time.sleep(0.6)
        steps.append((rate_bps, changed_s + 0.1, time.monotonic() - 0.02))
    ended.set()
    for thread in threads:
        thread.join()
    numbers = [number for _, number in arrivals]
    rates = [
        (
            rate_bps,
            sum(begin_s <= at_s < end_s for at_s, _ in arrivals)
            * frame_bytes
            * 8
            / (end_s - begin_s),
        )
        for rate_bps, begin_s, end_s in steps
    ]
    gaps_s = [after[0] - before[0] for before, after in itertools.pairwise(arrivals)]
    return {
        "sent": sent,
        "received": len(numbers),
        "in_order": numbers == sorted(numbers),
        "rates": rates,
        "longest_gap_s": max(gaps_s),
        "cost_s": max(costs_s),
        "queue": queue_statistics("near-eth0", pid=hosts["near"].pid),
    }


def marks() -> dict[str, Any]:
    """TCP with ECN, DCTCP if there is one, over a link that marks (RED): what its queue counted."""
    built, _ = switched(
        near={}, far={"rate_bps": 20_000_000, "delay_s": 0.002, "ecn_threshold_bytes": 30_000}
    )
    near, far = (built.info.hosts[name] for name in ("near", "far"))
    ping(near, far, count=1)
    for host in (near, far):
        run([*inside(host.pid), "sysctl", "-qw", "net.ipv4.tcp_ecn=1"])
    listener = socket_in(far.pid, socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((far.address, 5000))
    listener.listen()
    source = socket_in(near.pid, socket.AF_INET, socket.SOCK_STREAM)
    for entry in (listener, source):
        entry.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        with contextlib.suppress(FileNotFoundError):
            entry.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"dctcp")
    source.connect(listener.getsockname())
    sink, _ = listener.accept()

    def drain() -> None:
        while sink.recv(1 << 16):
            pass

    thread = threading.Thread(target=drain)
    thread.start()
    deadline_s = time.monotonic() + 1.5
    while time.monotonic() < deadline_s:
        source.send(bytes(1 << 14))
    source.close()
    thread.join()
    (queue,) = (
        queue_statistic
        for queue_statistic in queue_statistics(switch_port(built, "far"))
        if queue_statistic["kind"] == "red"
    )
    return {"marked": queue["marked"], "drops": queue["drops"]}


def classes() -> dict[str, Any]:
    """Datagrams of two classes in turn, 20 times as fast as a switch's port lets them out."""
    two = {"rate_bps": 5_000_000, "queue_bytes": 10_000, "priority_queue_bytes": 100_000}
    built, switch = switched(near={}, far=two)
    near, far = (built.info.hosts[name] for name in ("near", "far"))
    ping(near, far, count=1)
    whole = switch.deepen_buffers().whole_batches
    sink = socket_in(far.pid, socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((far.address, 5000))
    sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)  # it is read afterwards
    sink.settimeout(1)
    sources = {}
    for mark in (dscp.PROTECTED, dscp.DROPPED_FIRST):
        sources[mark] = socket_in(near.pid, socket.AF_INET, socket.SOCK_DGRAM)
        sources[mark].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, mark << 2)
    for _ in range(60):
        for mark, source in sources.items():
            source.sendto(bytes([mark]) * 1000, (far.address, 5000))
    received = dict.fromkeys(sources, 0)
    with contextlib.suppress(TimeoutError):
        while data := sink.recv(2000):
            received[data[0]] += 1
    queues = {
        queue_statistic["handle"]: queue_statistic
        for queue_statistic in queue_statistics(switch_port(built, "far"))
    }
    return {
        "whole_batches": whole,
        "received": [received[mark] for mark in sources],
        "drops": [queues[handle]["drops"] for handle in ("11:", "12:", "1:")],
    }


TRIALS: dict[str, Callable[[], dict[str, Any]]] = {
    **{entry.__name__: entry for entry in (star, changes, marks, classes)},
    "woken": functools.partial(changes, delay_s=0.0, frame_bytes=500),
    **{name: functools.partial(chosen, name) for name in ("netem", "relay")},
}


def in_sandbox(request: dict[str, Any], _: Messages) -> dict[str, Any]:
    return TRIALS[request["trial"]]()
