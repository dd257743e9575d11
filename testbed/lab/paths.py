"""Finds the links between two hosts, and the rate that a flow can expect of them.

A switch spreads flows over shortest paths by a hash; here all take the path that comes first by
name, which for a flow's share of the rate is the hash's worst case.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

SERVER = "server"


class DirectedLink(NamedTuple):
    """A link in the direction from `sender` to `receiver`."""

    name: str
    sender: str
    receiver: str

    def as_json(self) -> dict[str, str]:
        return {"link": self.name, "from": self.sender}


def path(network: Mapping[str, Any], first: str, second: str) -> list[DirectedLink]:
    """Return the links of a shortest path between two nodes; none from a node to itself."""
    return paths_to(network, [first], second)[first]


def paths_to(
    network: Mapping[str, Any], firsts: Iterable[str], second: str
) -> dict[str, list[DirectedLink]]:
    """Return `path` from each of `firsts` to `second`; one search serves them all."""
    neighbours = _neighbours(network)
    firsts = list(firsts)
    for node in (*firsts, second):
        if node not in neighbours:
            raise ValueError(f"unknown node {node!r}; valid: {', '.join(sorted(neighbours))}")
    distance, waiting = {second: 0}, deque([second])
    while waiting:
        node = waiting.popleft()
        for back in neighbours[node]:
            if back.receiver not in distance:
                distance[back.receiver] = distance[node] + 1
                waiting.append(back.receiver)
    ways: dict[str, list[DirectedLink]] = {}
    for first in firsts:
        if first not in distance:
            raise ValueError(f"no path from {first!r} to {second!r}")
        node, way = first, list[DirectedLink]()
        while node != second:
            # They are in the order of their receivers' names.
            nearer = (it for it in neighbours[node] if distance[it.receiver] < distance[node])
            way.append(next(nearer))
            node = way[-1].receiver
        ways[first] = way
    return ways


def fair_shares(
    network: Mapping[str, Any],
    workers: Sequence[str],
    option: Literal["rate_bps", "queue_bytes"],
) -> dict[str, float]:
    """Return each worker's share of the links' rates or queues when all talk with the server."""
    # The smallest, over the links of its path, of what the link has divided by the workers that use
    # it. Where the narrowest link is not the same for all, max-min fair shares are larger.
    whole = {link["name"]: int(link[option]) for link in network["links"]}
    ways = paths_to(network, workers, SERVER)
    flows = Counter(link.name for way in ways.values() for link in way)
    return {
        name: min(whole[link.name] / flows[link.name] for link in way) for name, way in ways.items()
    }


def directions(
    network: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Yield each link in both directions, with the port that sends and the one that receives."""
    for link in network["links"]:
        yield link, link["first"], link["second"]
        yield link, link["second"], link["first"]


def _neighbours(network: Mapping[str, Any]) -> dict[str, list[DirectedLink]]:
    by_sender: dict[str, list[DirectedLink]] = {}
    for link, own, other in directions(network):
        way = DirectedLink(link["name"], own["node"], other["node"])
        by_sender.setdefault(way.sender, []).append(way)
    for links in by_sender.values():
        links.sort(key=lambda link: link.receiver)
    return by_sender
