"""The base of all topologies: Mininet's `Topo`, with typed links and checked names.

A topology says which hosts and switches there are and what is linked; this class gives every link
its options from the parameters, every switch its datapath id, and refuses what Mininet would build
wrongly or not at all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import networkx
from mininet.topo import Topo

from topologies.settings import LinkParameters, TopologyParameters

# Linux allows 15 characters; Mininet calls interfaces NODE-ethNUMBER.
_INTERFACE_NAME_CHARACTERS = 15
_NODE_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9-]*$")
_DATAPATH_ID_DIGITS = 16


class LabTopo(Topo):
    """A topology of the lab.

    Subclasses have `build(parameters)`, which calls `addHost`, `addSwitch` and `addLink`. A `build`
    without a parameter, or with defaults for all, as Mininet's own have it, gets none.

    Raises:
        ValueError: a name twice, a name too long, two links between the same two nodes, a host
            with no link or two, a training host that is missing, a network in pieces, a link
            in `links` that does not exist.
    """

    def __init__(self, parameters: TopologyParameters) -> None:
        self.parameters = parameters
        self._links: dict[tuple[str, str], LinkParameters] = {}
        # Mininet hands what it is given here to `build`.
        super().__init__(*([parameters] if _takes_parameters(self.build) else []))
        self._check()
        self._apply_overrides()
        self._set_options()

    def build(self, parameters: Any) -> None:
        """Add hosts, switches and links; to be written by each topology."""
        raise NotImplementedError

    def addNode(self, name: str, **options: Any) -> str:  # noqa: N802 (Mininet's name)
        """Add a node, once."""
        if not isinstance(name, str) or not _NODE_NAME.match(name):
            raise ValueError(f"node {name!r}: a name is letters, digits and hyphens")
        if "--" in name:
            raise ValueError(f"node {name!r}: two hyphens join the two ends in a link's name")
        if name in self.g.nodes():
            raise ValueError(f"node {name!r} is there twice")
        added: str = super().addNode(name, **options)
        return added

    def addSwitch(self, name: str, **options: Any) -> str:  # noqa: N802
        """Add a switch; datapath ids count from 1 in the order of the calls."""
        number = len(self.switches(sort=False)) + 1
        options.setdefault("dpid", f"{number:0{_DATAPATH_ID_DIGITS}x}")
        added: str = super().addSwitch(name, **options)
        return added

    def addLink(  # noqa: N802
        self,
        first: str,
        second: str,
        port1: int | None = None,
        port2: int | None = None,
        key: Any = None,
        **options: Any,
    ) -> Any:
        """Link two nodes; `options` are keys of `LinkParameters` that differ for this link."""
        for node in (first, second):
            if node not in self.g.nodes():
                raise ValueError(f"link {first}--{second}: there is no node {node!r}")
        if first == second:
            raise ValueError(f"link {first}--{second} leads back to its beginning")
        if (first, second) in self._links or (second, first) in self._links:
            raise ValueError(f"two links between {first} and {second}")
        link = LinkParameters(**options)
        if self.isSwitch(first) and self.isSwitch(second):
            link = link.over(self.parameters.core)
        self._links[first, second] = link.over(self.parameters.every_link())
        return super().addLink(first, second, port1, port2, key)

    def link_names(self) -> list[str]:
        """Every link as `FIRST--SECOND`, in the order in which they were added."""
        return [f"{first}--{second}" for first, second in self._links]

    def link_options(self) -> dict[str, dict[str, Any]]:
        """The options of every link by its name: rate, queue, delay, jitter, loss, ECN."""
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
        """Round trip of the farthest two hosts over shortest paths, without queues, in seconds."""
        graph, hosts = self.as_graph(), self.hosts()
        # Fewest hops first, as the controller routes; among those the least delay.
        hop_s = 1e6  # more than all delays of a path together
        for _, _, edge in graph.edges(data=True):
            edge["cost"] = hop_s + edge["delay_s"]
        longest_s = 0.0
        for host in hosts:
            costs = networkx.single_source_dijkstra_path_length(graph, host, weight="cost")
            longest_s = max(longest_s, *(costs[other] % hop_s for other in hosts))
        return 2 * longest_s

    def spread(self, names: Sequence[str], switches: Sequence[str]) -> None:
        """Add hosts and link them to the switches in turn."""
        for position, name in enumerate(names):
            self.addLink(self.addHost(name), switches[position % len(switches)])

    def _check(self) -> None:
        graph = self.as_graph()
        hosts = self.hosts()
        for name in self.parameters.all_host_names():
            if name not in hosts:
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
        self._check_interfaces()
        identities = [self.nodeInfo(name)["dpid"] for name in self.switches()]
        if len(set(identities)) != len(identities):
            raise ValueError("two switches have the same dpid")

    def _check_interfaces(self) -> None:
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
            ends = next(
                (each for each in ((first, second), (second, first)) if each in self._links), None
            )
            if ends is None:
                some = ", ".join(self.link_names()[:4])
                raise ValueError(f"links: there is no link {name!r}; valid: {some}, ...")
            self._links[ends] = changes.over(self._links[ends])

    def _set_options(self) -> None:
        rtt_s = self.longest_rtt_s()
        for (first, second), link in self._links.items():
            info = {**self.linkInfo(first, second), **link.options(rtt_s)}
            self.setlinkInfo(first, second, info)


def _takes_parameters(build: Callable[..., Any]) -> bool:
    """Whether a `build` needs an argument, or has one that is called `parameters`."""
    return any(
        each.name == "parameters"
        or each.kind is each.VAR_POSITIONAL
        or (each.kind is not each.VAR_KEYWORD and each.default is each.empty)
        for each in inspect.signature(build).parameters.values()
    )
