"""The links between two hosts, and the rate and delay that a flow can expect of them.

A switch spreads flows over shortest paths by a hash; here all take the path that comes first by
name, which for a flow's share of the rate is the hash's worst case.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

SERVER = "server"


class DirectedLink(NamedTuple):
    """A link in the direction from `sender` to `receiver`."""

    name: str
    sender: str
    receiver: str

    def as_json(self) -> dict[str, str]:
        return {"link": self.name, "from": self.sender}


def path(network: Mapping[str, Any], first: str, second: str) -> list[DirectedLink]:
    """The links of a shortest path between two nodes, in order; empty from a node to itself."""
    neighbours = _neighbours(network)
    for node in (first, second):
        if node not in neighbours:
            raise ValueError(f"unknown node {node!r}; valid: {', '.join(sorted(neighbours))}")
    came_by: dict[str, DirectedLink] = {}
    waiting = deque([first])
    while waiting:
        node = waiting.popleft()
        if node == second:
            break
        for link in neighbours[node]:
            if link.receiver != first and link.receiver not in came_by:
                came_by[link.receiver] = link
                waiting.append(link.receiver)
    found: list[DirectedLink] = []
    node = second
    while node != first:
        if node not in came_by:
            raise ValueError(f"no path from {first!r} to {second!r}")
        found.insert(0, came_by[node])
        node = came_by[node].sender
    return found


def paths_to(
    network: Mapping[str, Any], firsts: Iterable[str], second: str
) -> dict[str, list[DirectedLink]]:
    """For each of `firsts`, what `path` gives for it and `second`; one search serves them all."""
    neighbours = _neighbours(network)
    distance, waiting = {second: 0}, deque([second])
    onward: dict[str, DirectedLink] = {}
    while waiting:
        node = waiting.popleft()
        for back in neighbours[node]:
            if back.receiver not in distance:
                distance[back.receiver] = distance[node] + 1
                waiting.append(back.receiver)
    for node, hops in distance.items():
        # They are in the order of their receivers' names.
        nearer = (each for each in neighbours[node] if distance[each.receiver] == hops - 1)
        if (first_by_name := next(nearer, None)) is not None:
            onward[node] = first_by_name
    found: dict[str, list[DirectedLink]] = {}
    for first in firsts:
        if first not in distance:
            raise ValueError(f"no path from {first!r} to {second!r}")
        node, way = first, list[DirectedLink]()
        while node != second:
            way.append(onward[node])
            node = way[-1].receiver
        found[first] = way
    return found


def path_rate_bps(network: Mapping[str, Any], first: str, second: str) -> int:
    """The rate of the narrowest link between two nodes, bit/s of Ethernet frames."""
    rates = {link["name"]: int(link["rate_bps"]) for link in network["links"]}
    return min(rates[link.name] for link in path(network, first, second))


def path_rtt_s(network: Mapping[str, Any], first: str, second: str) -> float:
    """The configured round trip between two nodes in seconds: without queues and processing."""
    delays = {link["name"]: float(link["delay_s"]) for link in network["links"]}
    return 2 * sum(delays[link.name] for link in path(network, first, second))


def path_jitters_s(network: Mapping[str, Any], first: str, second: str) -> list[float]:
    """The configured jitters of the links between two nodes, where there is one, in seconds."""
    jitters = {link["name"]: float(link.get("jitter_s", 0)) for link in network["links"]}
    return [jitters[link.name] for link in path(network, first, second) if jitters[link.name]]


def path_loss(network: Mapping[str, Any], first: str, second: str) -> float:
    """The configured share of frames that the links between two nodes lose, one way."""
    losses = {link["name"]: float(link.get("loss", 0)) for link in network["links"]}
    return 1 - prod(1 - losses[link.name] for link in path(network, first, second))


def path_delivered_bps(network: Mapping[str, Any], first: str, second: str) -> float:
    """What arrives of a flow that fills the path, bit/s of Ethernet frames, after losses."""
    links = {link["name"]: link for link in network["links"]}
    flow_bps = float("inf")
    for each in path(network, first, second):
        link = links[each.name]
        flow_bps = min(flow_bps, int(link["rate_bps"])) * (1 - float(link.get("loss", 0)))
    return flow_bps


def fair_shares_bps(
    network: Mapping[str, Any], workers: list[str] | None = None
) -> dict[str, float]:
    """Each worker's share when all talk with the server at once, bit/s of Ethernet frames."""
    # The smallest, over the links of its path, of the link's rate divided by the workers that use
    # it. Where the narrowest link is not the same for all, max-min fair shares are larger.
    return _shares(network, "rate_bps", workers)


def fair_queues_bytes(
    network: Mapping[str, Any], workers: list[str] | None = None
) -> dict[str, float]:
    """Each worker's share of the smallest queue, like `fair_shares_bps`, in bytes."""
    return _shares(network, "queue_bytes", workers)


def _shares(network: Mapping[str, Any], option: str, workers: list[str] | None) -> dict[str, float]:
    if workers is None:
        workers = [name for name in network["hosts"] if name != SERVER]
    whole = {link["name"]: int(link[option]) for link in network["links"]}
    ways = paths_to(network, workers, SERVER)
    flows = Counter(link.name for way in ways.values() for link in way)
    return {
        name: min(whole[link.name] / flows[link.name] for link in way) for name, way in ways.items()
    }


def _neighbours(network: Mapping[str, Any]) -> dict[str, list[DirectedLink]]:
    found: dict[str, list[DirectedLink]] = {}
    for link in network["links"]:
        ends = (link["first"]["node"], link["second"]["node"])
        for sender, receiver in (ends, ends[::-1]):
            found.setdefault(sender, []).append(DirectedLink(link["name"], sender, receiver))
    for links in found.values():
        links.sort(key=lambda link: link.receiver)
    return found
