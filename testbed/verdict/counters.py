"""Reads all counters of a lab at one moment: hosts, queues, sockets, flows, filters, delays."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.lab import datapath
from testbed.lab.delay import relay_client
from testbed.lab.kernel import link_counters
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.link_counters import NamespaceCounters
from testbed.lab.kernel.namespaces import entered
from testbed.lab.kernel.packet_filter import FilterCounters
from testbed.lab.kernel.process_status import sockets_of
from testbed.lab.network import LabInfo
from testbed.lab.openflow_statistics import Flow, Statistics

_SOL_PACKET, _PACKET_STATISTICS = 263, 6


@dataclass(frozen=True, kw_only=True)
class SwitchCounters:
    """Sums since the switch began; `bucket_packets`: group -> packets through each bucket."""

    entered: int  # lookups in the first table
    lookups: int  # in all tables
    matched: int
    flows: list[Flow]
    bucket_ports: dict[int, list[tuple[int, ...]]]
    bucket_packets: dict[int, list[int]]


class PortSockets:
    """The receiving sockets of the switch daemon's ports, and what the kernel dropped at each."""

    def __init__(self, daemon_pid: int) -> None:
        # The kernel resets a socket's statistics when they are read: nobody else may read them.
        self._sockets: dict[str, list[socket.socket]] = {}
        for port in sockets_of(daemon_pid, socket.AF_PACKET):
            if interface := port.getsockname()[0]:
                self._sockets.setdefault(interface, []).append(port)
            else:  # the one that all ports send through
                port.close()
        self._sums = dict.fromkeys(self._sockets, (0, 0))
        self.read()
        self._sums = dict.fromkeys(self._sockets, (0, 0))  # what came before does not count

    def read(self) -> dict[str, tuple[int, int]]:
        """Read, by interface, the frames that arrived and those that found the buffer full."""
        for interface, sockets in self._sockets.items():
            for port in sockets:
                statistics = port.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
                arrived, dropped = struct.unpack("=II", statistics)
                before = self._sums[interface]
                self._sums[interface] = before[0] + arrived, before[1] + dropped
        return dict(self._sums)


def read_switches(switches: Iterable[str], *, last: bool = False) -> dict[str, SwitchCounters]:
    # Packets are counted in the datapath's cache; a revalidator adds them to the flow entries twice
    # a second. To empty the cache adds them at once.
    run(["ovs-appctl", "revalidator/purge" if last else "revalidator/wait"])
    counters = {}
    for name in switches:
        with Statistics(name) as statistics:
            tables = statistics.tables()
            counters[name] = SwitchCounters(
                entered=tables[0].lookups,
                lookups=sum(table.lookups for table in tables),
                matched=sum(table.matched for table in tables),
                flows=statistics.flows(),
                bucket_ports=statistics.bucket_ports(),
                bucket_packets=statistics.bucket_packets(),
            )
    return counters


def lasting(before: Sequence[Flow], after: Sequence[Flow]) -> list[tuple[Flow, Flow]]:
    """Pair the entries that were there all the time between two readings."""
    # One that was removed and made again counts from 0: it looks the same, but is younger.
    old = {flow.identity: flow for flow in before}
    pairs = ((old[flow.identity], flow) for flow in after if flow.identity in old)
    return [
        (early, late)
        for early, late in pairs
        if early.since_s[0] <= late.since_s[1] and late.since_s[0] <= early.since_s[1]
    ]


_IDLE_S = 0.02
_PATIENCE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Counters:
    """One reading. Namespaces by process id (None: the switches'), sockets by interface."""

    at_s: float
    idle: bool
    namespaces: dict[int | None, NamespaceCounters]
    sockets: dict[str, tuple[int, int]]  # the kernel's datapath has none
    switches: dict[str, SwitchCounters]
    filter_drops: dict[str, int]  # on purpose, by host
    delayed: dict[tuple[str, str], tuple[int, int]]  # link, sender -> dropped, lost in the middle
    lost_upcalls: int = 0  # packets that the kernel's datapath could not hand to the daemon


class CounterReader:
    def __init__(self, network: LabInfo, switch_pid: int) -> None:
        self._network = network
        self._pids: list[int | None] = [None, *(host.pid for host in network.hosts.values())]
        self._filters = {name: FilterCounters(host.pid) for name, host in network.hosts.items()}
        for pid in self._pids:
            _silence_ipv6(pid)
        in_kernel = network.datapath == "kernel"
        self._sockets = None if in_kernel else PortSockets(switch_pid)

    def read(self, changed_s: float = 0.0, *, last: bool = False) -> Counters:
        """Wait until no packet moves, for some seconds at most, then read all counters."""
        # Counters lie in different places and are read one after another. If a packet moved
        # meanwhile, some have it and others have not, so all are read again. Frames in flight on a
        # delayed link are in no counter until they arrive.
        links = self._network.links
        delays_s = (max(link.delay_s + link.jitter_s, link.most_delay_s or 0.0) for link in links)
        longest_s = max(changed_s, 0.0, *delays_s)
        deadline_s = time.monotonic() + _PATIENCE_S + 4 * longest_s
        while True:
            namespaces, idle = self._when_idle(deadline_s, _IDLE_S + 2 * longest_s)
            counters = self._all(namespaces, idle, last=last)
            if not idle or _moved(namespaces) == _moved(self._namespaces()):
                return counters

    def _all(
        self, namespaces: dict[int | None, NamespaceCounters], idle: bool, *, last: bool
    ) -> Counters:
        return Counters(
            at_s=time.monotonic(),
            idle=idle,
            namespaces=namespaces,
            sockets=self._sockets.read() if self._sockets else {},
            switches=read_switches(self._network.switches, last=last),
            filter_drops={name: drops.dropped() for name, drops in self._filters.items()},
            delayed=self._delayed(),
            lost_upcalls=0 if self._sockets else datapath.lost_upcalls(),
        )

    def _delayed(self) -> dict[tuple[str, str], tuple[int, int]]:
        if self._network.delayed_by is None:
            return {}
        directions = relay_client.document(self._network.as_json())["directions"]
        return {(way["link"], way["from"]): (way["dropped"], way["lost"]) for way in directions}

    def _when_idle(
        self, deadline_s: float, idle_s: float
    ) -> tuple[dict[int | None, NamespaceCounters], bool]:
        """Read the counters until they stand still so long, and no queue holds a packet."""
        before = self._namespaces()
        while time.monotonic() < deadline_s:
            time.sleep(idle_s)
            now = self._namespaces()
            if _moved(before) == _moved(now) and not _waiting(now):
                return now, True
            before = now
        return before, False

    def _namespaces(self) -> dict[int | None, NamespaceCounters]:
        return {pid: link_counters.read(pid) for pid in self._pids}


def _silence_ipv6(pid: int | None) -> None:
    """Switch IPv6 off: nothing here needs it, and its announcements would add packets."""
    with entered(pid):
        for name in ("all", "default"):
            with suppress(OSError):  # a kernel without IPv6
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")


def _moved(namespaces: Mapping[int | None, NamespaceCounters]) -> dict[Any, int]:
    return {
        (pid, name): interface.sent + interface.send_drops
        for pid, counters in namespaces.items()
        for name, interface in counters.interfaces.items()
        if name != "lo"
    }


def _waiting(namespaces: Mapping[int | None, NamespaceCounters]) -> bool:
    return any(
        queue.backlog_packets
        for counters in namespaces.values()
        for queues in counters.queues.values()
        for queue in queues
    )
