"""The network of a run in virtual time: the topology's links and switches, and routes over them."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import networkx
import numpy as np

import topologies
from testbed.lab import paths as lab_paths
from testbed.lab.network import HostInfo, LabInfo, LinkEnds, Port
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Gate, Link
from testbed.simulate.peer import Arrivals, Way

Hop = tuple[str, str]  # sender and receiver of a link's direction


def describe(parameters: topologies.TopologyParameters) -> LabInfo:
    """The network as the lab describes it; hosts have no process and switches no interface."""
    topology = topologies.build(parameters)
    hosts, links = {}, []
    numbers = {name: number for number, name in enumerate(topology.hosts(), start=1)}
    for name, options in topology.link_options().items():
        ends = _ports(topology, *name.split("--"))
        kept = {key: option for key, option in options.items() if option is not None}
        links.append(LinkEnds(name=name, first=ends[0], second=ends[1], **kept))
        for own in ends:
            if not topology.isSwitch(own.node):
                number = numbers[own.node]
                hosts[own.node] = HostInfo(
                    name=own.node,
                    address=f"10.0.{number >> 8}.{number & 255}",
                    mac=f"00:00:00:00:{number >> 8:02x}:{number & 255:02x}",
                    pid=0,
                    interface=own.interface,
                )
    switches = {name: int(topology.nodeInfo(name)["dpid"], 16) for name in topology.switches()}
    return LabInfo(hosts=hosts, switches=switches, links=links)


def _both(ends: Sequence[Any]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    first, second = ends
    return (first, second), (second, first)


def _ports(topology: Any, first: str, second: str) -> list[Port]:
    info = topology.linkInfo(first, second)
    numbers = {info[f"node{end}"]: info[f"port{end}"] for end in (1, 2)}
    return [
        Port(
            node=node,
            interface=f"{node}-eth{numbers[node]}",
            number=numbers[node],
            pid=None if topology.isSwitch(node) else 0,
        )
        for node in (first, second)
    ]


class Routes:
    """The shortest paths of a network.

    Where several are equally short, a switch chooses by a hash of the two hosts' names, its own,
    and the run's seed.
    """

    def __init__(self, network: Mapping[str, Any], *, seed: int) -> None:
        self._seed = seed
        self._graph = networkx.Graph()
        self._switch_of: dict[str, str] = {}
        for _, own, other in lab_paths.directions(network):
            self._graph.add_edge(own["node"], other["node"])
            if own["node"] not in network["switches"]:
                self._switch_of[own["node"]] = other["node"]
        self._distances: dict[str, dict[str, int]] = {}  # to a switch, from each node

    def path(self, first: str, second: str) -> list[Hop]:
        nodes, last = [first, self._switch_of[first]], self._switch_of[second]
        while (switch := nodes[-1]) != last:
            nearer = self._nearer(switch, last)
            text = f"{self._seed}/{first}/{second}/{switch}"
            number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
            nodes.append(nearer[number % len(nearer)])
        return list(itertools.pairwise([*nodes, second]))

    def paths(self, first: str, second: str) -> list[list[Hop]]:
        """All shortest paths between hosts: the one above, then those behind it by name."""
        last, switches = self._switch_of[second], [[self._switch_of[first]]]
        while switches[0][-1] != last:
            switches = [
                [*nodes, node] for nodes in switches for node in self._nearer(nodes[-1], last)
            ]
        paths = [list(itertools.pairwise([first, *nodes, second])) for nodes in switches]
        begin = paths.index(self.path(first, second))
        return paths[begin:] + paths[:begin]

    def _nearer(self, switch: str, last: str) -> list[str]:
        """The nodes next to a switch that are a link nearer to the last one, by name."""
        if last not in self._distances:
            self._distances[last] = networkx.single_source_shortest_path_length(self._graph, last)
        distances = self._distances[last]
        nearer = distances[switch] - 1
        return sorted(node for node in self._graph[switch] if distances[node] == nearer)


class SimulatedNetwork:
    """The links of a described network, and who is joined by which of them.

    A direction of a link is its sender's output: a queue in bytes, then the rate, then the delay.
    """

    def __init__(
        self,
        simulation: Simulation,
        info: LabInfo,
        *,
        seed: int,
        delays_change: bool = False,
        spray: bool = False,
    ) -> None:
        """`spray`: switches choose a path for each datagram, not for each flow."""
        self.info = info.as_json()
        self.links: dict[Hop, Link] = {}
        self._simulation = simulation
        self._routes = Routes(self.info, seed=seed)
        self._spray = spray
        self._ways: dict[Hop, Way] = {}  # by their two hosts
        self._gates: dict[Hop, Gate] = {}
        draws = iter(np.random.SeedSequence([seed, 7]).generate_state(2 * len(info.links)).tolist())
        for link in info.links:
            for sender, receiver in _both([link.first.node, link.second.node]):
                self.links[sender, receiver] = Link(
                    simulation,
                    rate_bps=link.rate_bps,
                    # As in the lab: evenly from delay_s - jitter_s to delay_s + jitter_s.
                    delay_s=link.delay_s - link.jitter_s,
                    queue_bytes=link.queue_bytes,
                    loss=link.loss,
                    jitter_s=2 * link.jitter_s,
                    in_order=delays_change or link.jitter_s > 0,
                    seed=next(draws),
                )
        self.arrivals = {name: Arrivals(simulation) for name in info.hosts}

    def hold_back_senders(self) -> None:
        """No host's own queue overflows: a kernel lets its TCP fill it with little."""
        # What does not fit waits in the sender's socket there, in the queue here.
        for (sender, _), link in self.links.items():
            if sender in self.arrivals:
                link.set_queue(math.inf)

    def ways(self, workers: Sequence[str]) -> dict[str, tuple[Way, Way]]:
        """It returns each worker's way to the server, and back."""
        return {name: (self._way(name, "server"), self._way("server", name)) for name in workers}

    def _way(self, first: str, second: str) -> Way:
        way = self._ways[first, second] = Way(())
        self._route(first, second)
        return way

    def _route(self, first: str, second: str) -> None:
        """Set the links of the way between two hosts: the flow's path, or all that it sprays."""
        way, routes = self._ways[first, second], self._routes
        hops = routes.paths(first, second) if self._spray else [routes.path(first, second)]
        stages: Sequence[Mapping[Hop, Link]] = (self.links, self._gates)
        paths = [[stage[hop] for hop in path for stage in stages if hop in stage] for path in hops]
        way.links, way.paths = paths[0], paths if len(paths) > 1 else ()

    def gate(self, sender: str, receiver: str) -> Gate:
        """The gate behind a direction; made before anything is sent."""
        hop = sender, receiver
        if hop not in self._gates:
            self._gates[hop] = Gate(self._simulation)
            for ends in self._ways:
                self._route(*ends)
        return self._gates[hop]
