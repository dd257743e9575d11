"""Builds the benchmark's networks in a sandbox: namespaces joined by veth pairs.

Every host is a process that holds a network namespace; what is to run there forks and enters it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.lab.delay import DelaySettings, Middle, Relay, netem
from testbed.lab.kernel import socket_defaults
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.namespaces import CLONE_NEWNET, entered
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.kernel.rtnetlink import bring_up_silent
from testbed.lab.kernel.shaping import LinkShape, inside, shape
from testbed.transport.wire import DATA_PORTS

SERVER_ADDRESS = "10.77.0.1"
# What queues hold: the product of rate and delay plus this, so that TCP finds a usual buffer.
QUEUE_S = 0.02
# Off as in the labs: without checksum offload a relay sees whole packets too.
_SINGLE_PACKETS = ("tx", "rx", "tso", "gso", "gro")


@dataclass(frozen=True, kw_only=True)
class LinkKind:
    rate_bps: int | None = None  # of each host's link, Ethernet frames; None for unshaped
    rtt_s: float = 0.0  # added round trip of a single pair, half of it each way
    loss: float = 0.0  # Bernoulli, towards the server: data datagrams, TCP segments with data
    workers: int = 1  # 1: a single veth pair; more share the server's link through a bridge
    offloads: bool = False  # segmentation and coalescing are left to the interfaces


@dataclass
class Host:
    """A network namespace and the process that holds it."""

    name: str
    address: str
    pid: int


@dataclass
class Network:
    """Hosts that are joined; `close` ends all of it."""

    server: Host
    workers: list[Host]
    relay: Relay | None = None
    losses: PacketFilter | None = None

    def close(self) -> None:
        """End the relay and the processes; the kernel removes interfaces with namespaces."""
        if self.relay is not None:
            self.relay.close()
            shutil.rmtree(self.relay.path.parent)
        # Before their namespaces, which the kernel clears up later and in its own time.
        # Not from /sys, which shows the interfaces outside the sandbox.
        for interface in json.loads(run(["ip", "-j", "link"])):
            if interface["ifname"].startswith("bench"):
                with contextlib.suppress(CommandError):  # its other end took it along
                    run(["ip", "link", "delete", interface["ifname"]])
        for pid in [self.server.pid, *(worker.pid for worker in self.workers)]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def build(kind: LinkKind) -> Network:
    server = _host("server", SERVER_ADDRESS)
    workers = [_host(f"worker-{i}", f"10.77.0.{i + 1}") for i in range(1, kind.workers + 1)]
    for host in (server, *workers):
        _prepare(host)
    network = _pair(server, workers[0], kind) if len(workers) == 1 else _star(server, workers, kind)
    if kind.loss:
        network.losses = _lose(server, kind.loss)
    return network


def _pair(server: Host, worker: Host, kind: LinkKind) -> Network:
    inner = ("bench-s", "bench-w")
    if kind.rtt_s:
        for name, host in zip(inner, (server, worker), strict=True):
            _veth(name, host)
            bring_up_silent(name)
    else:
        _veth("bench-s", server)
        run(["ip", "link", "set", "bench-s", "name", "eth0", "netns", str(worker.pid)])
    for host in (server, worker):
        _configure(host, kind)
    relay = _delay(inner, kind) if kind.rtt_s else None
    _wait_until_reachable(worker)
    return Network(server, [worker], relay)


def _delay(inner: tuple[str, str], kind: LinkKind) -> Relay | None:
    """Join the inner ends of a link, by netem or by the relay that is returned."""
    middle = Middle(
        link="server--worker-1",
        nodes=("server", "worker-1"),
        interfaces=inner,
        rate_bps=kind.rate_bps,
        settings=DelaySettings(delay_s=kind.rtt_s / 2),
    )
    if not netem.missing(*inner):
        netem.setup([middle])
        return None
    relay = Relay([middle], Path(tempfile.mkdtemp()) / "delay.sock").start()
    relay.wait_until_ready()
    return relay


def _veth(name: str, host: Host) -> None:
    peer = ["peer", "name", "eth0", "netns", str(host.pid)]
    run(["ip", "link", "add", name, "type", "veth", *peer])


def _star(server: Host, workers: list[Host], kind: LinkKind) -> Network:
    assert not kind.rtt_s  # no case delays several links
    run(["ip", "link", "add", "benchbr", "type", "bridge"])
    run(["ip", "link", "set", "benchbr", "up"])
    for index, host in enumerate([server, *workers]):
        name = f"bench{index}"
        _veth(name, host)
        run(["ip", "link", "set", name, "master", "benchbr", "up"])
        _offloads(None, name, kind.offloads)
        _configure(host, kind)
        if kind.rate_bps is not None:
            shape(name, _shape_of(kind))
    for worker in workers:
        _wait_until_reachable(worker)
    return Network(server, workers)


def queue_bytes(kind: LinkKind) -> float:
    """Return what each end's queue holds; math.inf where there is none."""
    return math.inf if kind.rate_bps is None else max(150_000, int(kind.rate_bps / 8 * QUEUE_S))


def _shape_of(kind: LinkKind) -> LinkShape:
    assert kind.rate_bps is not None
    return LinkShape(rate_bps=kind.rate_bps, queue_bytes=int(queue_bytes(kind)))


def _host(name: str, address: str) -> Host:
    """Fork the process of a new network namespace; return when it has it."""
    ready, answering = os.pipe()
    pid = os.fork()
    if not pid:
        failed = ctypes.CDLL(None).unshare(CLONE_NEWNET)
        os.write(answering, b"x" if failed else b"k")
        while True:
            signal.pause()
    os.close(answering)
    answer = os.read(ready, 1)
    os.close(ready)
    if answer != b"k":
        raise CommandError("unshare: the kernel refuses a network namespace")
    return Host(name, address, pid)


def _prepare(host: Host) -> None:
    with entered(host.pid):
        socket_defaults.reserve_ports(None, *DATA_PORTS)
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1\n")
    run([*inside(host.pid), "ip", "link", "set", "lo", "up"])


def _configure(host: Host, kind: LinkKind) -> None:
    here = inside(host.pid)
    run([*here, "ip", "address", "add", f"{host.address}/24", "dev", "eth0"])
    run([*here, "ip", "link", "set", "eth0", "up"])
    _offloads(host.pid, "eth0", kind.offloads)
    if kind.rate_bps is not None:
        shape("eth0", _shape_of(kind), pid=host.pid)


def _offloads(pid: int | None, interface: str, enabled: bool) -> None:
    words = [word for name in _SINGLE_PACKETS for word in (name, "on" if enabled else "off")]
    run([*inside(pid), "ethtool", "-K", interface, *words])


def _lose(server: Host, loss: float) -> PacketFilter:
    """Drop data that arrives at the server: UDP, and TCP segments that are not bare ACKs."""
    from testbed.lab import loss_table
    from testbed.lab.loss_table import LossModel

    # The filter's table lives as long as the namespace.
    table = loss_table.drawn(LossModel(loss_good=loss), "bench")
    losses = PacketFilter(server.pid, "eth0", table)
    losses.lose(data_ports=DATA_PORTS)
    return losses


def _wait_until_reachable(worker: Host) -> None:
    """Resolve addresses beforehand, so that no case pays for it."""
    deadline_s = time.monotonic() + 5
    while True:
        try:
            run([*inside(worker.pid), "ping", "-c", "1", "-W", "1", SERVER_ADDRESS])
            return
        except CommandError:
            if time.monotonic() > deadline_s:
                raise
