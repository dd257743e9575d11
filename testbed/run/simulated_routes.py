"""Which links a flow takes in virtual time: a shortest path, as the lab's controller routes.

Where several are equally short, a switch chooses by a hash of the flow, which is one direction
between two hosts, so all datagrams of a flow take one path. The lab's hash is that of Open vSwitch,
of addresses and ports. This one is of the two hosts' names, the switch's, and the run's seed.

Switches that spray send each datagram on by itself: those of a flow take all its paths in turn.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Mapping
from typing import Any

Hop = tuple[str, str]  # sender and receiver of a link's direction


class Routes:
    """The shortest paths of a network, which change as links go down and come up."""

    def __init__(self, network: Mapping[str, Any], *, seed: int) -> None:
        self._seed = seed
        self._switch_of: dict[str, str] = {}
        self._neighbours: dict[str, list[str]] = {name: [] for name in network["switches"]}
        for link in network["links"]:
            ends = (link["first"]["node"], link["second"]["node"])
            for own, other in (ends, ends[::-1]):
                if own in self._neighbours and other in self._neighbours:
                    self._neighbours[own].append(other)
                elif own not in self._neighbours:
                    self._switch_of[own] = other
        for each in self._neighbours.values():
            each.sort()
        self._down: set[frozenset[str]] = set()
        self._distances: dict[str, dict[str, int]] = {}  # to a switch, from each that reaches it

    def set_link(self, first: str, second: str, *, up: bool) -> None:
        """A link goes down or comes up, in both directions."""
        (self._down.discard if up else self._down.add)(frozenset((first, second)))
        self._distances.clear()

    def path(self, first: str, second: str) -> list[Hop] | None:
        """The links from one host to another, in order; None where no path is left."""
        node, last = self._switch_of[first], self._switch_of[second]
        distances = self._to(last)
        ends = [(first, node), (last, second)]
        if node not in distances or any(frozenset(each) in self._down for each in ends):
            return None
        hops = ends[:1]
        while node != last:
            nearer = [
                each for each in self._open(node) if distances.get(each) == distances[node] - 1
            ]
            chosen = nearer[self._hash(first, second, node) % len(nearer)]
            hops.append((node, chosen))
            node = chosen
        return [*hops, ends[1]]

    def paths(self, first: str, second: str) -> list[list[Hop]]:
        """All shortest paths between hosts: the one above, then those behind it by name."""
        if (one := self.path(first, second)) is None:
            return []
        last = self._switch_of[second]
        distances, found = self._to(last), [[self._switch_of[first]]]
        while found[0][-1] != last:
            found = [
                [*nodes, each]
                for nodes in found
                for each in self._open(nodes[-1])
                if distances.get(each) == distances[nodes[-1]] - 1
            ]
        every = [list(itertools.pairwise([first, *nodes, second])) for nodes in found]
        begin = every.index(one)
        return every[begin:] + every[:begin]

    def _to(self, last: str) -> dict[str, int]:
        found = self._distances.get(last)
        if found is None:
            found, waiting = {last: 0}, deque([last])
            while waiting:
                node = waiting.popleft()
                for each in self._open(node):
                    if each not in found:
                        found[each] = found[node] + 1
                        waiting.append(each)
            self._distances[last] = found
        return found

    def _open(self, node: str) -> list[str]:
        """The switches next to one, over links that are up."""
        if not self._down:
            return self._neighbours[node]
        return [
            each for each in self._neighbours[node] if frozenset((node, each)) not in self._down
        ]

    def _hash(self, first: str, second: str, switch: str) -> int:
        text = f"{self._seed}/{first}/{second}/{switch}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
