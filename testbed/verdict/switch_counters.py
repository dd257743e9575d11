"""Reads Open vSwitch's counters: packet sockets, table misses, flows, groups and meters.

OpenFlow statistics exist as text only; the patterns here were written against OVS 2.17 to 3.1.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.process_sockets import sockets_of
from testbed.lab.whole_batches import are_whole

_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_OPENFLOW = ("ovs-ofctl", "-O", "OpenFlow13")
_COUNTED = re.compile(r"n_packets=(\d+), n_bytes=\d+,")
_VOLATILE = re.compile(
    r"(duration=[\d.]+s|n_packets=\d+|n_bytes=\d+|idle_age=\d+|hard_age=\d+),? ?"
)
_AGE = re.compile(r"duration=([\d.]+)s")
# By so much may the switch's own clock, which it reads once a turn, be behind.
_CLOCK_S = 0.02
_ACTIONS = re.compile(r"actions=(.*)$")
_OUTPUT = re.compile(r"(?:^|,)output:\"?([\w-]+)\"?")
_GROUP = re.compile(r"(?:^|,)group:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One flow entry. `identity` is its text without what changes as packets pass.

    `since_s`: the span of the monotonic clock in which it was made.
    """

    identity: str
    actions: str
    packets: int
    since_s: tuple[float, float] = (0.0, 0.0)

    def output_ports(self) -> list[str]:
        """Ports (numbers, or names where the switch prints them) that each packet leaves by."""
        return _OUTPUT.findall(self.actions)

    def groups(self) -> list[int]:
        """Groups that it hands packets to."""
        return [int(each) for each in _GROUP.findall(self.actions)]


@dataclass(frozen=True, kw_only=True)
class SwitchCounters:
    """Sums since the switch began; `bucket_packets`: group -> packets through each bucket.

    `entered`: lookups in the first table; `lookups`, `matched`: in all tables.
    """

    entered: int
    lookups: int
    matched: int
    flows: list[Flow]
    bucket_ports: dict[int, list[list[str]]]
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


def read(switches: Iterable[str]) -> dict[str, SwitchCounters]:
    """All counters of the named switches, after their caches have been written back.

    Raises:
        CommandError: Open vSwitch does not answer.
    """
    # Packets are counted in the datapath's cache; a revalidator adds them to the flow entries.
    run(["ovs-appctl", "revalidator/wait"])
    return {name: _read(name) for name in switches}


def _read(switch: str) -> SwitchCounters:
    asked_s = time.monotonic()
    flows = run([*_OPENFLOW, "--no-names", "dump-flows", switch])
    parsed = parse_flows(flows, (asked_s, time.monotonic()))
    entered, lookups, matched = parse_tables(run([*_OPENFLOW, "dump-tables", switch]))
    bucket_ports: dict[int, list[list[str]]] = {}
    bucket_packets: dict[int, list[int]] = {}
    if any(flow.groups() for flow in parsed):
        bucket_ports = parse_group_ports(run([*_OPENFLOW, "--no-names", "dump-groups", switch]))
        bucket_packets = parse_group_packets(run([*_OPENFLOW, "dump-group-stats", switch]))
    meter_drops = 0
    if "meter" in flows:
        meter_drops = parse_meter_drops(run([*_OPENFLOW, "meter-stats", switch]))
    return SwitchCounters(
        entered=entered,
        lookups=lookups,
        matched=matched,
        flows=parsed,
        bucket_ports=bucket_ports,
        bucket_packets=bucket_packets,
        meter_drops=meter_drops,
    )


def parse_flows(text: str, asked_s: tuple[float, float] = (0.0, 0.0)) -> list[Flow]:
    """The entries that `ovs-ofctl dump-flows` printed, which ran between two monotonic times."""
    found = []
    for line in text.splitlines():
        packets, actions = _COUNTED.search(line), _ACTIONS.search(line)
        if packets and actions:
            age = _AGE.search(line)
            age_s = float(age.group(1)) if age else 0.0
            found.append(
                Flow(
                    identity=_VOLATILE.sub("", line).strip(),
                    actions=actions.group(1),
                    packets=int(packets.group(1)),
                    since_s=(asked_s[0] - age_s - _CLOCK_S, asked_s[1] - age_s + _CLOCK_S),
                )
            )
    return found


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


def parse_tables(text: str) -> tuple[int, int, int]:
    """Lookups in the first table of `ovs-ofctl dump-tables`, lookups and matches over all tables.

    A table that says `ditto` has the counts of the one before, which for an unused table are 0.

    Raises:
        CommandError: it has no table.
    """
    pairs = re.findall(r"lookup=(\d+), matched=(\d+)", text)
    if not pairs:
        raise CommandError(f"ovs-ofctl printed no tables: {text[:80]!r}")
    return (
        int(pairs[0][0]),
        sum(int(pair[0]) for pair in pairs),
        sum(int(pair[1]) for pair in pairs),
    )


def parse_group_ports(text: str) -> dict[int, list[list[str]]]:
    """Group -> the output ports of each bucket, from `ovs-ofctl dump-groups`."""
    return {
        group: [re.findall(r"output:\"?([\w-]+)\"?", each) for each in line.split("bucket=")[1:]]
        for group, line in _groups(text)
    }


def parse_group_packets(text: str) -> dict[int, list[int]]:
    """Group -> packets through each bucket, from `ovs-ofctl dump-group-stats`."""
    return {
        group: [int(each) for each in re.findall(r"bucket\d+:packet_count=(\d+)", line)]
        for group, line in _groups(text)
    }


def _groups(text: str) -> Iterator[tuple[int, str]]:
    for line in text.splitlines():
        if number := re.search(r"group_id=(\d+)", line):
            yield int(number.group(1)), line


def parse_meter_drops(text: str) -> int:
    """Packets that the meters of `ovs-ofctl meter-stats` dropped."""
    bands = re.findall(r"^\s*\d+:\s*packet_count:(\d+)", text, re.MULTILINE)
    return sum(int(each) for each in bands)
