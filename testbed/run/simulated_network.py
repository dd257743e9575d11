"""The network of a run in virtual time: the topology's links and switches, and routes over them."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
        for own, other in _both(ends):
            if not topology.isSwitch(own.node):
                hosts[own.node] = _host(own, other, links[-1], numbers[own.node])
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


def _host(own: Port, other: Port, link: LinkEnds, number: int) -> HostInfo:
    return HostInfo(
        name=own.node,
        address=f"10.0.{number >> 8}.{number & 255}",
        mac=f"00:00:00:00:{number >> 8:02x}:{number & 255:02x}",
        pid=0,
        interface=own.interface,
        switch=other.node,
        switch_port=other.number,
        switch_interface=other.interface,
        rate_bps=link.rate_bps,
        queue_bytes=link.queue_bytes,
    )


class Routes:
    """The shortest paths of a network, which change as links go down and come up.

    Where several are equally short, a switch chooses by a hash of the two hosts' names, its own,
    and the run's seed.
    """

    def __init__(self, network: Mapping[str, Any], *, seed: int) -> None:
        self._seed = seed
        self._graph = networkx.Graph()  # of the links that are up
        self._switch_of: dict[str, str] = {}
        for _, own, other in lab_paths.directions(network):
            self._graph.add_edge(own["node"], other["node"])
            if own["node"] not in network["switches"]:
                self._switch_of[own["node"]] = other["node"]
        self._distances: dict[str, dict[str, int]] = {}  # to a switch, from each that reaches it

    def set_link(self, first: str, second: str, *, up: bool) -> None:
        """A link goes down or comes up, in both directions."""
        (self._graph.add_edges_from if up else self._graph.remove_edges_from)([(first, second)])
        self._distances.clear()

    def path(self, first: str, second: str) -> list[Hop] | None:
        """The links from one host to another, in order; None where no path is left."""
        node, last = self._switch_of[first], self._switch_of[second]
        distances = self._to(last)
        ends = [(first, node), (last, second)]
        if node not in distances or not all(self._graph.has_edge(*end) for end in ends):
            return None
        hops = ends[:1]
        while node != last:
            nearer = self._nearer(node, distances)
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
                [*nodes, each] for nodes in found for each in self._nearer(nodes[-1], distances)
            ]
        every = [list(itertools.pairwise([first, *nodes, second])) for nodes in found]
        begin = every.index(one)
        return every[begin:] + every[:begin]

    def _to(self, last: str) -> dict[str, int]:
        if last not in self._distances:
            self._distances[last] = dict(
                networkx.single_source_shortest_path_length(self._graph, last)
            )
        return self._distances[last]

    def _nearer(self, node: str, distances: Mapping[str, int]) -> list[str]:
        """The nodes next to one that are a link nearer, by name."""
        nearer = distances[node] - 1
        return sorted(each for each in self._graph[node] if distances.get(each) == nearer)

    def _hash(self, first: str, second: str, switch: str) -> int:
        text = f"{self._seed}/{first}/{second}/{switch}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass
class RoutedWay(Way):
    """A way that follows the network's routes."""

    # No path is left: control messages wait until there is one.
    broken: bool = field(default=False, init=False)
    _held: list[Callable[[], None]] = field(default_factory=list, init=False)

    def send_control(self, simulation: Simulation, arrive: Callable[[], None]) -> None:
        if self.broken:
            self._held.append(arrive)
        else:
            super().send_control(simulation, arrive)

    def lead(self, simulation: Simulation, paths: Sequence[Sequence[Link]]) -> None:
        """Over the first of these paths from now on, or where it sprays over all of them."""
        links, kept = paths[0], list(paths[1:]) == list(self.paths[1:])
        if not self.broken and list(links) == list(self.links) and kept:
            return
        self.links, self.broken = links, False
        self.paths = paths if len(paths) > 1 else ()
        held, self._held = self._held, []
        for arrive in held:
            super().send_control(simulation, arrive)
        for changed in self.on_change:
            changed()


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
        self._ways: dict[Hop, RoutedWay] = {}  # by their two hosts
        self._before: dict[Hop, Gate] = {}
        self._behind: dict[Hop, Gate] = {}
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
        """By worker: its way to the server, and back."""
        return {name: (self._way(name, "server"), self._way("server", name)) for name in workers}

    def _way(self, first: str, second: str) -> Way:
        paths = self._passed(first, second)
        way = self._ways[first, second] = RoutedWay(paths[0] if paths else ())
        way.paths = paths if len(paths) > 1 else ()
        return way

    def path(self, first: str, second: str) -> list[Link]:
        """The links from one host to another, without gates; none where no path is left."""
        return [self.links[hop] for hop in self._routes.path(first, second) or ()]

    def _passed(self, first: str, second: str) -> list[list[Link]]:
        """The paths of the transport's datagrams, first the flow's; none where none is left."""
        if self._spray:
            paths = self._routes.paths(first, second)
        else:
            path = self._routes.path(first, second)
            paths = [] if path is None else [path]
        return [self._with_gates(hops) for hops in paths]

    def _with_gates(self, hops: Sequence[Hop]) -> list[Link]:
        stages: Sequence[Mapping[Hop, Link]] = (self._before, self.links, self._behind)
        return [stage[hop] for hop in hops for stage in stages if hop in stage]

    def gate(self, sender: str, receiver: str, *, behind: bool) -> Gate:
        """What datagrams pass behind a direction or before its queue; made before any is sent."""
        gates, hop = self._behind if behind else self._before, (sender, receiver)
        if hop not in gates:
            gates[hop] = Gate(self._simulation)
            self._reroute()
        return gates[hop]

    def prepare_cut(self, first: str, second: str) -> None:
        """Makes what `set_link` needs, before anything is sent."""
        for sender, receiver in _both([first, second]):
            if receiver in self.info["switches"]:
                self.gate(sender, receiver, behind=True)

    def set_link(self, first: str, second: str, *, up: bool) -> None:
        """A link goes down, with all that is on it, or comes up; routes follow at once."""
        for sender, receiver in _both([first, second]):
            link = self.links[sender, receiver]
            if up:
                link.restore()
                continue
            link.cut()
            if receiver in self.arrivals:
                self.arrivals[receiver].drop_announced()
            else:
                self._behind[sender, receiver].drop()
        self._routes.set_link(first, second, up=up)
        self._reroute()

    def _reroute(self) -> None:
        for ends, way in self._ways.items():
            if paths := self._passed(*ends):
                way.lead(self._simulation, paths)
            else:
                way.broken = True
