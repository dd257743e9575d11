"""Computes shortest paths: the ports of each switch to each host, and how to change rules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import networkx

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

    def buckets(self, turn: int = 0) -> tuple[int, ...]:
        """The output ports of a SELECT group, rotated by `turn`; a switch takes one by its hash."""
        count = len(self.ports)
        return tuple(
            self.ports[(place + turn) % count] for place in range(count) for _ in range(self.repeat)
        )


Routes = dict[str, dict[str, Hops]]  # switch -> destination MAC -> how


@dataclass(frozen=True)
class Change:
    """One rule to write; `hops` None removes it, because no path is left."""

    switch: str
    mac: str
    hops: Hops | None


def link_name(first: str, second: str) -> frozenset[str]:
    """A link's name: its two ends, in either order."""
    return frozenset((first, second))


def routes(network: dict[str, Any], down: Collection[frozenset[str]] = ()) -> Routes:
    """Compute all shortest paths to all hosts; an unreachable host has no entry."""
    graph = networkx.Graph()
    graph.add_nodes_from([*network["switches"], *network["hosts"]])
    ports: dict[tuple[str, str], int] = {}
    for link in network["links"]:
        first, second = link["first"], link["second"]
        ports[first["node"], second["node"]] = first["number"]
        ports[second["node"], first["node"]] = second["number"]
        if link_name(first["node"], second["node"]) not in down:
            graph.add_edge(first["node"], second["node"])
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
    found: dict[str, Hops] = {}
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
        found[switch] = Hops(towards, distance[switch], repeat)
    return found


def udp_turns(hops: Hops) -> list[tuple[int, int]]:
    """Value and mask of UDP's source port for each rotation of a group; none for one port."""
    if len(hops.ports) == 1:
        return []
    shift = (hops.repeat - 1).bit_length()
    count = 1 << (len(hops.ports) - 1).bit_length()
    if count > len(hops.ports):
        count *= 2  # three ports share eight values 3:3:2, but four values 2:1:1
    return [(turn << shift, (count - 1) << shift) for turn in range(count)]


def waves(old: Routes, new: Routes) -> list[list[Change]]:
    """The changes from old to new routes, in waves that never make a loop."""
    # Rules nearer to their destination come first. So a packet that meets a changed switch meets
    # only changed switches from there on, and each hop brings it nearer. Before that, unchanged
    # switches bring it nearer by the old distance. Rules without a path are removed last.
    changes: dict[int, list[Change]] = {}
    removals: list[Change] = []
    for switch in new:
        before, after = old.get(switch, {}), new[switch]
        for mac, hops in after.items():
            known = before.get(mac)
            if known is None or known.buckets() != hops.buckets():
                changes.setdefault(hops.distance, []).append(Change(switch, mac, hops))
        removals += [Change(switch, mac, None) for mac in before if mac not in after]
    ordered = [changes[distance] for distance in sorted(changes)]
    return [*ordered, removals] if removals else ordered
