"""The kernel's counters of interfaces, queues and protocols in one network namespace, read fast.

Plain netlink and /proc: no program is started, so that 64 namespaces take some 20 ms.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from testbed.lab.kernel.namespaces import entered

_NETLINK_ROUTE = 0
_RTM_GETLINK, _RTM_NEWQDISC, _RTM_GETQDISC = 18, 36, 38
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_HEADER = struct.Struct("=IHHII")
_TCMSG = struct.Struct("=BxxxiIII")
_ATTRIBUTE = struct.Struct("=HH")
_TCA_KIND, _TCA_STATS2 = 1, 7
_TCA_STATS_BASIC, _TCA_STATS_QUEUE, _TCA_STATS_PKT64 = 1, 3, 8
_ROOT = 0xFFFFFFFF
_RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Queue:
    """One queueing discipline. `sent_packets` counts what left it, `drops` what it refused."""

    interface: str
    kind: str
    is_root: bool
    sent_packets: int
    sent_bytes: int
    backlog_packets: int
    backlog_bytes: int
    drops: int


@dataclass(frozen=True, kw_only=True)
class Interface:
    """An interface's own counters (/proc/net/dev). A veth's `received` is what its peer sent."""

    received: int
    receive_drops: int
    sent: int
    send_drops: int


@dataclass(frozen=True, kw_only=True)
class NamespaceCounters:
    """Everything that is counted in one network namespace."""

    interfaces: dict[str, Interface]
    queues: dict[str, list[Queue]] = field(default_factory=dict)
    protocols: dict[str, int] = field(default_factory=dict)  # "Udp.RcvbufErrors" -> count


def read(pid: int | None, *, with_protocols: bool = True) -> NamespaceCounters:
    """All counters of the namespace of process `pid` (None: this one).

    Raises:
        OSError: the namespace is gone.
    """
    with entered(pid) if pid is not None else nullcontext():
        interfaces = _interfaces(Path("/proc/thread-self/net/dev").read_text())
        found = queues()
        protocols = _protocols() if with_protocols else {}
    return NamespaceCounters(interfaces=interfaces, queues=found, protocols=protocols)


def queue_drops(interface: str, pid: int | None) -> int:
    """Packets that the queue of a shaped interface refused because it was full.

    Raises:
        OSError: the namespace is gone.
    """
    with entered(pid) if pid is not None else nullcontext():
        found = queues().get(interface, [])
    return sum(queue.drops for queue in found if queue.kind in ("bfifo", "red"))


def queues() -> dict[str, list[Queue]]:
    """The queueing disciplines of every interface of the calling thread's namespace."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as netlink:
        return read_queues(netlink, dict(socket.if_nameindex()))


def read_queues(
    netlink: socket.socket, names: dict[int, str], index: int = 0
) -> dict[str, list[Queue]]:
    """As `queues`, through an open netlink socket; `index`: of one interface only."""
    request = _TCMSG.pack(0, index, 0, 0, 0)
    head = _HEADER.pack(
        _HEADER.size + len(request), _RTM_GETQDISC, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0
    )
    netlink.send(head + request)
    found: dict[str, list[Queue]] = {}
    for body in _messages(netlink):
        _, owner, _, parent, _ = _TCMSG.unpack_from(body)
        if owner in names and index in (0, owner):
            queue = _queue(names[owner], parent, body[_TCMSG.size :])
            found.setdefault(queue.interface, []).append(queue)
    return found


def _messages(netlink: socket.socket) -> Iterator[bytes]:
    while True:
        data = netlink.recv(_RECEIVE_BYTES)
        offset = 0
        while offset < len(data):
            length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                raise OSError("netlink: the kernel refused a question for queue statistics")
            if kind == _RTM_NEWQDISC:
                yield data[offset + _HEADER.size : offset + length]
            offset += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def _queue(interface: str, parent: int, data: bytes) -> Queue:
    kind = ""
    sent_bytes = sent_packets = backlog_bytes = backlog_packets = drops = 0
    for attribute, value in _attributes(data):
        if attribute == _TCA_KIND:
            kind = value.rstrip(b"\0").decode()
        elif attribute == _TCA_STATS2:
            for statistic, record in _attributes(value):
                if statistic == _TCA_STATS_BASIC:
                    sent_bytes, sent_packets = struct.unpack_from("=QI", record)
                elif statistic == _TCA_STATS_PKT64:
                    (sent_packets,) = struct.unpack_from("=Q", record)
                elif statistic == _TCA_STATS_QUEUE:
                    backlog_packets, backlog_bytes, drops = struct.unpack_from("=III", record)
    return Queue(
        interface=interface,
        kind=kind,
        is_root=parent == _ROOT,
        sent_packets=sent_packets,
        sent_bytes=sent_bytes,
        backlog_packets=backlog_packets,
        backlog_bytes=backlog_bytes,
        drops=drops,
    )


def _interfaces(text: str) -> dict[str, Interface]:
    found = {}
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        values = [int(each) for each in numbers.split()]
        found[name.strip()] = Interface(
            received=values[1], receive_drops=values[3], sent=values[9], send_drops=values[11]
        )
    return found


def _protocols() -> dict[str, int]:
    """`Ip`, `Udp` and `Tcp` of /proc/net/snmp, and the IPv6 counters, which have unique names."""
    found: dict[str, int] = {}
    lines = Path("/proc/thread-self/net/snmp").read_text().splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        title, *keys = names.split()
        for key, value in zip(keys, values.split()[1:], strict=True):
            found[f"{title.rstrip(chr(58))}.{key}"] = int(value)
    path = Path("/proc/thread-self/net/snmp6")
    for line in path.read_text().splitlines() if path.exists() else []:
        key, value = line.split()
        found[key] = int(value)
    return found
