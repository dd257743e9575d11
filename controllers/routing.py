"""Installs shortest paths in the switches, and new ones when a link goes down or comes up.

Open vSwitch 3.1's SELECT hash leaves out UDP ports, so rules match bits of the source port.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import networkx

from controllers.switches import Connection, Flow, Switch
from testbed.lab import paths

_PRIORITY = 10
_IPV4, _UDP = 0x0800, 17
MOST_BUCKETS = 64  # of one group: the number of values of Open vSwitch's hash


@dataclass(frozen=True)
class Hops:
    """A switch's forwarding to one host: `ports` of equal cost, `distance` in links."""

    # `repeat` is the number of choices that earlier switches on the path had. Switches that choose
    # one after another by the same hash would all choose alike, and half of a fat tree's paths
    # would be idle. So this switch must use another digit of the hash.

    ports: tuple[int, ...]
    distance: int
    repeat: int = 1

    def buckets(self, rotation: int = 0) -> tuple[int, ...]:
        """List the output ports of a SELECT group; a switch takes one by its hash."""
        count = len(self.ports)
        return tuple(
            self.ports[(place + rotation) % count]
            for place in range(count)
            for _ in range(self.repeat)
        )


Routes = dict[str, dict[str, Hops]]  # switch -> destination MAC -> how


@dataclass(frozen=True)
class Change:
    """One rule to write; `hops` None removes it, because no path is left."""

    switch: str
    mac: str
    hops: Hops | None


def routes(network: dict[str, Any], down: Collection[frozenset[str]] = ()) -> Routes:
    """Compute all shortest paths, but over links `down`; an unreachable host has no entry."""
    graph = networkx.Graph()
    graph.add_nodes_from([*network["switches"], *network["hosts"]])
    ports: dict[tuple[str, str], int] = {}
    for _, own, other in paths.directions(network):
        ends = own["node"], other["node"]
        ports[ends] = own["number"]
        if frozenset(ends) not in down:
            graph.add_edge(*ends)
    table: Routes = {name: {} for name in network["switches"]}
    for host, facts in network["hosts"].items():
        for switch, hops in _towards(graph, ports, table, host).items():
            table[switch][facts["mac"]] = hops
    return table


def _towards(
    graph: networkx.Graph, ports: dict[tuple[str, str], int], switches: Collection[str], host: str
) -> dict[str, Hops]:
    distance = networkx.single_source_shortest_path_length(graph, host)
    ways: dict[str, int] = {}
    hops_of: dict[str, Hops] = {}
    # From far to near, because a switch's choice depends on the choices before it.
    for switch in sorted(distance, key=lambda node: -distance[node]):
        if switch not in switches:
            continue
        nearer = [node for node in graph[switch] if distance[node] == distance[switch] - 1]
        count, before = len(nearer), ways.get(switch, 1)
        for node in nearer:
            ways[node] = max(ways.get(node, 1), before * count)
        repeat = before if count > 1 and before * count <= MOST_BUCKETS else 1
        towards = tuple(sorted(ports[switch, node] for node in nearer))
        hops_of[switch] = Hops(towards, distance[switch], repeat)
    return hops_of


def udp_rotations(hops: Hops) -> list[tuple[int, int]]:
    """List UDP source ports, by value and mask, for each rotation of a group; none for one port."""
    if len(hops.ports) == 1:
        return []
    shift = (hops.repeat - 1).bit_length()
    count = 1 << (len(hops.ports) - 1).bit_length()
    if count > len(hops.ports):
        count *= 2  # three ports share eight values 3:3:2, but four values 2:1:1
    return [(rotation << shift, (count - 1) << shift) for rotation in range(count)]


def waves(old: Routes, new: Routes) -> list[list[Change]]:
    """List the changes from old to new routes, in waves that never make a loop."""
    # Rules nearer to their destination come first. So a packet that meets a changed switch meets
    # only changed switches from there on, and each hop brings it nearer. Before that, unchanged
    # switches bring it nearer by the old distance. Rules without a path are removed last.
    changes: dict[int, list[Change]] = {}
    removals: list[Change] = []
    for switch in new:
        before, after = old.get(switch, {}), new[switch]
        for mac, hops in after.items():
            if mac not in before or before[mac].buckets() != hops.buckets():
                changes.setdefault(hops.distance, []).append(Change(switch, mac, hops))
        removals += [Change(switch, mac, None) for mac in before if mac not in after]
    ordered = [changes[distance] for distance in sorted(changes)]
    return [*ordered, removals] if removals else ordered


class Routing:
    """The forwarding rules of all switches, as they are now."""

    # Its methods wait for answers of switches. Call them from green threads, never from the event
    # handlers that deliver these answers.

    def __init__(
        self,
        network: dict[str, Any],
        switches: Mapping[str, Switch],
        report: Callable[[str], None],
    ) -> None:
        self._network = network
        self._switches = switches
        self._report = report
        self._neighbours = {
            (own["node"], own["number"]): other["node"]
            for _, own, other in paths.directions(network)
            if own["node"] in network["switches"]
        }
        self._planned: Routes = {name: {} for name in network["switches"]}
        self._dead_ports: set[tuple[str, int]] = set()
        self._is_stale = self.is_busy = False
        self._reroute()

    @property
    def down(self) -> set[frozenset[str]]:
        return {frozenset((end[0], self._neighbours[end])) for end in self._dead_ports}

    def bring_back(self, switch: str, connection: Connection) -> None:
        """Reroute by what a connected switch says of its ports, then give it its whole plan."""
        ports = connection.ports()
        # A port that an impairment holds down comes back as up with the switch.
        self.ports_are(switch, self._switches[switch].live_ports(ports))
        self._switches[switch].bring_back(connection, ports)

    def ports_are(self, switch: str, live: Mapping[int, bool]) -> None:
        """Reroute where ports are not as they were; ports without a link do not count."""
        changed = {
            (switch, port)
            for port, is_live in live.items()
            if (switch, port) in self._neighbours
            and ((switch, port) not in self._dead_ports) != is_live
        }
        self._dead_ports ^= changed
        for end in sorted(changed):
            state = "dead" if end in self._dead_ports else "alive"
            self._report(f"{switch} port {end[1]} (to {self._neighbours[end]}) is {state}")
        if changed:
            self._reroute()

    def _reroute(self) -> None:
        """Plan the present routes; a call during another makes that one go on."""
        self._is_stale = True
        if self.is_busy:
            return
        self.is_busy = True
        try:
            while self._is_stale:
                self._is_stale = False
                self._install(routes(self._network, self.down))
        finally:
            self.is_busy = False

    def _install(self, new: Routes) -> None:
        count = 0
        for wave in waves(self._planned, new):
            for change in wave:
                self._apply(change.switch, change.mac, change.hops)
            for name in sorted({change.switch for change in wave}):
                self._switches[name].confirm_forwarding()
            count += len(wave)
        for switch in self._switches.values():
            switch.drop_unused_groups()
        self._report(f"{count} rules changed; down: {sorted(map(sorted, self.down))}")

    def _apply(self, switch: str, mac: str, hops: Hops | None) -> None:
        planned = self._planned[switch]
        before = _flows(mac, planned.pop(mac, None))
        after = _flows(mac, hops)
        places = {flow.place for flow in after}
        self._switches[switch].put(*(flow for flow in after if flow not in before))
        self._switches[switch].drop(*(flow for flow in before if flow.place not in places))
        if hops is not None:
            planned[mac] = hops


def _flows(mac: str, hops: Hops | None) -> list[Flow]:
    """List the entries that forward to a host: one, and those that spread UDP over paths."""
    if hops is None:
        return []
    host = ("eth_dst", mac)
    plain = Flow(priority=_PRIORITY, match=(host,), ports=hops.buckets())
    udp = (host, ("eth_type", _IPV4), ("ip_proto", _UDP))
    return [plain] + [
        Flow(
            priority=_PRIORITY + 1,
            match=(*udp, ("udp_src", bits)),
            ports=hops.buckets(rotation),
        )
        for rotation, bits in enumerate(udp_rotations(hops))
    ]
