"""Shortest paths as data: which port of which switch leads to which host."""

from __future__ import annotations

from typing import Any

import networkx


def next_hops(network: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """For each switch, `(destination MAC, output port)` for every host.

    Args:
        network: the lab's description (`LabInfo.as_json`): hosts, switches, links.
    """
    graph = networkx.Graph()
    ports: dict[tuple[str, str], int] = {}
    for link in network["links"]:
        first, second = link["first"], link["second"]
        graph.add_edge(first["node"], second["node"])
        ports[first["node"], second["node"]] = first["number"]
        ports[second["node"], first["node"]] = second["number"]
    table: dict[str, list[tuple[str, int]]] = {name: [] for name in network["switches"]}
    for host, facts in network["hosts"].items():
        for switch in table:
            path = networkx.shortest_path(graph, switch, host)
            table[switch].append((facts["mac"], ports[switch, path[1]]))
    return table
