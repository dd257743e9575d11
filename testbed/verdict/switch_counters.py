"""Reads Open vSwitch's counters: packet sockets, table misses, flows, groups and meters."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from testbed.lab.kernel.commands import run
from testbed.lab.kernel.process_sockets import sockets_of
from testbed.lab.openflow_statistics import Flow, Statistics
from testbed.lab.whole_batches import are_whole

_SOL_PACKET, _PACKET_STATISTICS = 263, 6


@dataclass(frozen=True, kw_only=True)
class SwitchCounters:
    """Sums since the switch began; `bucket_packets`: group -> packets through each bucket.

    `entered`: lookups in the first table; `lookups`, `matched`: in all tables.
    """

    entered: int
    lookups: int
    matched: int
    flows: list[Flow]
    bucket_ports: dict[int, list[tuple[int, ...]]]
    bucket_packets: dict[int, list[int]]
    meter_drops: int


class PortSockets:
    """The receiving sockets of the switch daemon's ports, and what the kernel dropped at each.

    The kernel resets a socket's statistics when they are read, so the sums are kept here. Nobody
    else may read them.
    """

    def __init__(self, daemon_pid: int) -> None:
        self._daemon_pid = daemon_pid
        self._sockets: dict[str, list[socket.socket]] = {}
        for found in sockets_of(daemon_pid, socket.AF_PACKET):
            interface = found.getsockname()[0]
            if interface:
                self._sockets.setdefault(interface, []).append(found)
            else:  # the one that all ports send through
                found.close()
        self._sums = dict.fromkeys(self._sockets, (0, 0))
        self.read()
        self._sums = dict.fromkeys(self._sockets, (0, 0))  # what came before does not count

    def read(self) -> dict[str, tuple[int, int]]:
        """Interface -> (frames that arrived, those of them that found the socket's buffer full)."""
        for interface, sockets in self._sockets.items():
            for each in sockets:
                statistics = each.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
                arrived, dropped = struct.unpack("=II", statistics)
                before = self._sums[interface]
                self._sums[interface] = before[0] + arrived, before[1] + dropped
        return dict(self._sums)

    def whole_batches(self) -> bool:
        """Whether a full queue refuses single packets of the daemon, not the rest of a batch."""
        with ExitStack() as opened:
            found = [
                opened.enter_context(each)
                for each in sockets_of(self._daemon_pid, socket.AF_PACKET)
            ]
            # The socket that all ports send through is made with the first packet.
            senders = [each for each in found if not each.getsockname()[0]]
            return all(map(are_whole, senders))


def read(switches: Iterable[str], *, last: bool = False) -> dict[str, SwitchCounters]:
    """All counters of the named switches, after their caches have been written back.

    Args:
        switches: their names.
        last: nothing is to be forwarded fast any more.

    Raises:
        CommandError, OSError: Open vSwitch does not answer.
    """
    # Packets are counted in the datapath's cache; a revalidator adds them to the flow entries twice
    # a second. To empty the cache adds them at once.
    run(["ovs-appctl", "revalidator/purge" if last else "revalidator/wait"])
    with ExitStack() as opened:
        connections = {name: opened.enter_context(Statistics(name)) for name in switches}
        return {name: _read(each) for name, each in connections.items()}


def _read(statistics: Statistics) -> SwitchCounters:
    tables = statistics.tables()
    return SwitchCounters(
        entered=tables[0].lookups,
        lookups=sum(each.lookups for each in tables),
        matched=sum(each.matched for each in tables),
        flows=statistics.flows(),
        bucket_ports=statistics.bucket_ports(),
        bucket_packets=statistics.bucket_packets(),
        meter_drops=statistics.meter_drops(),
    )


def lasting(before: Sequence[Flow], after: Sequence[Flow]) -> list[tuple[Flow, Flow]]:
    """The entries that were there all the time between two readings, as each had them.

    One that was removed and made again counts from 0: it looks the same, but is younger.
    """
    old = {flow.identity: flow for flow in before}
    pairs = ((old[flow.identity], flow) for flow in after if flow.identity in old)
    return [
        (early, late)
        for early, late in pairs
        if early.since_s[0] <= late.since_s[1] and late.since_s[0] <= early.since_s[1]
    ]
