"""Reads the kernel's counters of interfaces, queues and protocols in one network namespace."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

from testbed.lab.kernel import netlink, rtnetlink
from testbed.lab.kernel.namespaces import entered
from testbed.lab.kernel.netlink import NetlinkError
from testbed.lab.kernel.rtnetlink import GET_QDISC, IN_CLASS, ROOT, TCMSG

# Attributes of a queueing discipline, and those in its STATS2 (linux/gen_stats.h).
_KIND, STATS2 = 1, 7
STATS_BASIC, STATS_QUEUE, _STATS_PACKETS64 = 1, 3, 8


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A queueing discipline. `sent_packets` counts packets that left it, `drops` those refused."""

    interface: str
    kind: str
    is_root: bool
    sent_packets: int
    sent_bytes: int
    backlog_packets: int
    backlog_bytes: int
    drops: int


@dataclass(frozen=True, kw_only=True)
class InterfaceCounters:
    """An interface's own counters (/proc/net/dev). A veth's `received` is what its peer sent."""

    received: int
    receive_drops: int
    sent: int
    send_drops: int


@dataclass(frozen=True, kw_only=True)
class NamespaceCounters:
    interfaces: dict[str, InterfaceCounters]
    queues: dict[str, list[Queue]] = field(default_factory=dict)
    protocols: dict[str, int] = field(default_factory=dict)  # "Udp.RcvbufErrors" -> count


def read(pid: int | None) -> NamespaceCounters:
    """Read all counters of the namespace of process `pid` (None: this one)."""
    with entered(pid):
        interfaces = _interfaces(Path("/proc/thread-self/net/dev").read_text())
        return NamespaceCounters(interfaces=interfaces, queues=queues(), protocols=_protocols())


def offered(interface: str, pid: int | None) -> tuple[int, int]:
    """Count packets that a shaped interface sent, and those that its full queue refused."""
    with entered(pid):
        of_interface = queues().get(interface, [])
    sent = sum(queue.sent_packets for queue in of_interface if queue.is_root)
    return sent, sum(queue.drops for queue in of_interface if queue.kind in ("bfifo", "red"))


def queues() -> dict[str, list[Queue]]:
    """Read the queueing disciplines of every interface of the calling thread's namespace."""
    names = dict(socket.if_nameindex())
    by_interface: dict[str, list[Queue]] = {}
    with netlink.connect(netlink.ROUTE) as opened:
        for kind, content in netlink.dump(opened, GET_QDISC, TCMSG.pack(0, 0, 0, 0, 0)):
            if kind != rtnetlink.NEW_QDISC:
                continue
            _, owner, _, parent, _ = TCMSG.unpack_from(content)
            if owner in names:
                queue = _queue(names[owner], parent, content)
                by_interface.setdefault(queue.interface, []).append(queue)
    return by_interface


def waiting(interface: str) -> tuple[int, str]:
    """Return the bytes that wait at a shaped interface, and the kind of their queue."""
    # The kind is empty without a queue below the shaper; of two, it is that of the one served last.
    with netlink.connect(netlink.ROUTE) as opened:
        index = rtnetlink.interface_index(opened, interface)
        chain: list[Queue] = []
        for parent in (ROOT, IN_CLASS, rtnetlink.LAST_SERVED):
            try:
                content = netlink.ask(opened, GET_QDISC, TCMSG.pack(0, index, 0, parent, 0))
            except NetlinkError:
                break
            chain.append(_queue(interface, parent, content))
            if parent == IN_CLASS and chain[-1].kind != "htb":
                break
    return chain[0].backlog_bytes if chain else 0, chain[-1].kind if len(chain) > 1 else ""


def _queue(interface: str, parent: int, data: memoryview) -> Queue:
    about = netlink.values(data, TCMSG.size)
    statistics = netlink.values(about[STATS2])
    sent_bytes, sent_packets = struct.unpack_from("=QI", statistics[STATS_BASIC])
    if _STATS_PACKETS64 in statistics:
        (sent_packets,) = struct.unpack_from("=Q", statistics[_STATS_PACKETS64])
    backlog_packets, backlog_bytes, drops = struct.unpack_from("=III", statistics[STATS_QUEUE])
    return Queue(
        interface=interface,
        kind=netlink.string(about[_KIND]),
        is_root=parent == ROOT,
        sent_packets=sent_packets,
        sent_bytes=sent_bytes,
        backlog_packets=backlog_packets,
        backlog_bytes=backlog_bytes,
        drops=drops,
    )


def _interfaces(text: str) -> dict[str, InterfaceCounters]:
    counters = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        values = [int(part) for part in numbers.split()]
        counters[name.strip()] = InterfaceCounters(
            received=values[1], receive_drops=values[3], sent=values[9], send_drops=values[11]
        )
    return counters


def _protocols() -> dict[str, int]:
    counters: dict[str, int] = {}
    lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        title, *keys = names.split()
        for key, value in zip(keys, values.split()[1:], strict=True):
            counters[f"{title.rstrip(chr(58))}.{key}"] = int(value)
    path = Path("/proc/thread-self/net/snmp6")
    for line in path.read_text().splitlines() if path.exists() else []:
        key, value = line.split()
        counters[key] = int(value)
    return counters
