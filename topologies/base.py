"""The base of all topologies: Mininet's `Topo`, with typed links and checked names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import networkx
from mininet.topo import Topo
from pydantic import ValidationError

from testbed.shared import own_code, problems, units
from topologies.settings import (
    MOST_EXTRA_HOSTS,
    MOST_LAB_WORKERS,
    LinkParameters,
    TopologyParameters,
)

# Linux allows 15 characters; Mininet calls interfaces NODE-ethNUMBER.
_INTERFACE_NAME_CHARACTERS = 15
# So long the calibration's first probe waits for its answer. Geostationary satellites take 0.6 s.
_MOST_RTT_S = 2.5
_NODE_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_-]*$")
_MOST_LINKS = 100_000  # a fat tree of 20,000 hosts has 64,000


class LabTopo(Topo):
    """A topology of the lab.

    Subclasses have `build(parameters)`, which calls `addHost`, `addSwitch` and `addLink`.
    """

    def __init__(self, parameters: TopologyParameters) -> None:
        self.parameters = parameters
        self._links: dict[tuple[str, str], LinkParameters] = {}
        self._made: dict[tuple[str, bool], LinkParameters] = {}
        self._switch_numbers = itertools.count(1)
        super().__init__(parameters)  # which calls `build`
        self._check()
        self._apply_overrides()
        self._set_options()

    def addNode(self, name: str, **options: Any) -> str:  # noqa: N802 (Mininet's name)
        if not isinstance(name, str) or not _NODE_NAME.match(name):
            raise ValueError(f"node {name!r}: a name is letters, digits, - and _")
        if "--" in name:
            raise ValueError(f"node {name!r}: two hyphens join the two ends in a link's name")
        if name in self.g.nodes():
            raise ValueError(f"node {name!r} is there twice")
        of_switch = {"isSwitch", "dpid"} if options.get("isSwitch") else set()
        if other := options.keys() - of_switch:  # such as `ip`
            raise ValueError(f"node {name}: {min(other)}: the lab makes nodes itself; leave it out")
        added: str = super().addNode(name, **options)
        return added

    def addSwitch(self, name: str) -> str:  # noqa: N802
        """Add a switch; datapath ids count from 1 in the order of the calls."""
        added: str = super().addSwitch(name, dpid=f"{next(self._switch_numbers):016x}")
        return added

    def addLink(self, first: str, second: str, **options: Any) -> None:  # noqa: N802
        """Link two nodes; `options`: keys of a link, such as `delay_s`, where it differs."""
        for node in (first, second):
            if node not in self.g.nodes():
                raise ValueError(f"link {first}--{second}: there is no node {node!r}")
        if first == second:
            raise ValueError(f"link {first}--{second} leads back to its beginning")
        if len(self._links) == _MOST_LINKS:
            raise ValueError(f"more than {_MOST_LINKS:,} links; valid: fewer hosts or switches")
        if (first, second) in self._links or (second, first) in self._links:
            raise ValueError(f"two links between {first} and {second}")
        is_core = self.isSwitch(first) and self.isSwitch(second)
        try:
            self._links[first, second] = self._link(units.converted(options), is_core)
        except ValidationError as error:
            wrong = problems.input_error(error, LinkParameters)
            raise ValueError(f"link {first}--{second}: {wrong}") from None
        super().addLink(first, second)

    def _link(self, options: dict[str, Any], is_core: bool) -> LinkParameters:
        """Join a link's settings of all scopes; most links have those of others, made once."""
        key = (repr(options), is_core)
        if key not in self._made:
            link = LinkParameters(**options)
            if is_core:
                link = link.over(self.parameters.core)
            self._made[key] = link.over(self.parameters)
        return self._made[key]

    def link_options(self) -> dict[str, dict[str, Any]]:
        """The options of links by `FIRST--SECOND`, in the order in which they were added."""
        return {
            f"{first}--{second}": {
                key: value
                for key, value in self.linkInfo(first, second).items()
                if key not in ("node1", "node2", "port1", "port2")
            }
            for first, second in self._links
        }

    def as_graph(self) -> networkx.Graph:
        """Nodes and links; each edge has its `delay_s`."""
        graph = networkx.Graph()
        graph.add_nodes_from(self.nodes())
        for (first, second), link in self._links.items():
            graph.add_edge(first, second, delay_s=link.delay_s or 0.0)
        return graph

    def longest_rtt_s(self) -> float:
        """Find the round trip of the farthest two hosts over shortest paths, without queues."""
        graph = self.as_graph()
        # Hosts are many and have one link each: of each switch the farthest two count.
        farthest_s: dict[str, list[float]] = {}
        for host in self.hosts(sort=False):
            ((_, switch, edge),) = graph.edges(host, data=True)
            farthest_s.setdefault(switch, []).append(edge["delay_s"])
            graph.remove_node(host)
        # Fewest hops first, as the controller routes; among those the least delay.
        hop_s = 1e6  # more than all delays of a path together
        for _, _, edge in graph.edges(data=True):
            edge["cost"] = hop_s + edge["delay_s"]
        longest_s = 0.0
        for switch, here_s in farthest_s.items():
            longest_s = max(longest_s, sum(sorted(here_s)[-2:]) if here_s[1:] else 0.0)
            costs = networkx.single_source_dijkstra_path_length(graph, switch, weight="cost")
            for other, there_s in farthest_s.items():
                if other != switch:
                    between_s = costs[other] % hop_s
                    longest_s = max(longest_s, max(here_s) + between_s + max(there_s))
        return 2 * longest_s

    def add_fabric(self, leaves: int, spines: int, **options: Any) -> list[str]:
        """Add `leaf-N` and `spine-N`, with a link from each to each; return the leaves."""
        near = [self.addSwitch(f"leaf-{number}") for number in range(1, leaves + 1)]
        far = [self.addSwitch(f"spine-{number}") for number in range(1, spines + 1)]
        for leaf in near:
            for spine in far:
                self.addLink(leaf, spine, **options)
        return near

    def spread(self, names: Sequence[str], switches: Sequence[str]) -> None:
        """Add hosts and link them to the switches in turn."""
        for position, name in enumerate(names):
            self.addLink(self.addHost(name), switches[position % len(switches)])

    def _check(self) -> None:
        graph, hosts = self.as_graph(), self.hosts()
        for name in self.parameters.all_host_names():
            if name not in graph or self.isSwitch(name):
                raise ValueError(f"there is no host {name!r}; needed: server, worker-1, ...")
        for host in hosts:
            if graph.degree(host) != 1:
                raise ValueError(
                    f"host {host!r} has {graph.degree(host)} links; a host has exactly one"
                )
            (neighbour,) = graph.neighbors(host)
            if not self.isSwitch(neighbour):
                raise ValueError(f"host {host!r} is linked to {neighbour!r}, which is no switch")
        if not networkx.is_connected(graph):
            parts = sorted(networkx.connected_components(graph), key=len)
            raise ValueError(f"{sorted(parts[0])[0]!r} is not connected to {hosts[0]!r}")
        # A user's own may read `core` for links of whatever sort.
        if self.parameters.core != LinkParameters() and not (
            own_code.is_own(self.parameters.name)
            or any(self.isSwitch(first) and self.isSwitch(second) for first, second in self._links)
        ):
            raise ValueError(
                f"core: topology {self.parameters.name!r} has no link between switches; "
                "valid: the keys at the top level, or links"
            )
        if len(hosts) > 1 + MOST_LAB_WORKERS + MOST_EXTRA_HOSTS:
            return  # of more hosts no lab is built, and no interface made
        for node, ports in self.ports.items():
            longest = f"{node}-eth{max(ports)}"
            if len(longest) > _INTERFACE_NAME_CHARACTERS:
                raise ValueError(
                    f"node {node!r}: its interface {longest} has {len(longest)} characters; "
                    f"valid: up to {_INTERFACE_NAME_CHARACTERS}"
                )

    def _apply_overrides(self) -> None:
        for name, changes in self.parameters.links.items():
            first, _, second = name.partition("--")
            ends = (first, second) if (first, second) in self._links else (second, first)
            if ends not in self._links:
                some = ", ".join([*self.link_options()][:4])
                raise ValueError(f"links: there is no link {name!r}; valid: {some}, ...")
            self._links[ends] = changes.over(self._links[ends])

    def _set_options(self) -> None:
        asked = any(link.queue_bdp is not None or link.delay_s for link in self._links.values())
        rtt_s = self.longest_rtt_s() if asked else 0.0
        if rtt_s > _MOST_RTT_S:
            raise ValueError(
                f"delay_s: the farthest two hosts are a round trip of {rtt_s:g} s apart; "
                f"valid: up to {_MOST_RTT_S:g} s; a delay of 10 ms is 0.01, or 10ms"
            )
        for (first, second), link in self._links.items():
            info = self.linkInfo(first, second)
            places = {key: info[key] for key in ("node1", "node2", "port1", "port2")}
            self.setlinkInfo(first, second, places | link.options(rtt_s))
