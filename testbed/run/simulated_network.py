"""The network of a run in virtual time: the topology's links, with their rates and queues."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import topologies
from testbed.lab import paths
from testbed.lab.network import HostInfo, LabInfo, LinkEnds, Port
from testbed.simulate.arrivals import Arrivals
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.party import Way


def describe(parameters: topologies.TopologyParameters) -> LabInfo:
    """The network as the lab describes it; hosts have no process and switches no interface.

    Raises:
        ValueError: the topology cannot be built.
    """
    topology = topologies.build(parameters)
    hosts, links = {}, []
    options = topology.link_options()
    for name in topology.link_names():
        ends = [_port(topology, node, other) for node, other in _both(name.split("--"))]
        kept = {key: each for key, each in options[name].items() if each is not None}
        links.append(LinkEnds(name=name, first=ends[0], second=ends[1], **kept))
        for own, other in _both(ends):
            if not topology.isSwitch(own.node):
                hosts[own.node] = _host(own, other, links[-1], topology.hosts())
    switches = {name: int(topology.nodeInfo(name)["dpid"], 16) for name in topology.switches()}
    return LabInfo(hosts=hosts, switches=switches, links=links)


def _both(ends: Sequence[Any]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    first, second = ends
    return (first, second), (second, first)


def _port(topology: Any, node: str, other: str) -> Port:
    number = topology.port(node, other)[0]
    return Port(
        node=node,
        interface=f"{node}-eth{number}",
        number=number,
        pid=None if topology.isSwitch(node) else 0,
    )


def _host(own: Port, other: Port, link: LinkEnds, names: Sequence[str]) -> HostInfo:
    number = list(names).index(own.node) + 1
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


class SimulatedNetwork:
    """The links of a described network, and who is joined by which of them.

    Attributes:
        info: its description, as `LabInfo.as_json`.
        links: by sender and receiver, each direction on its own.
        arrivals: by host, its interface.
    """

    def __init__(self, simulation: Simulation, info: LabInfo, *, seed: int) -> None:
        """`seed` is that of random loss and jitter."""
        self.info = info.as_json()
        self.links: dict[tuple[str, str], Link] = {}
        draws = iter(np.random.SeedSequence([seed, 7]).generate_state(2 * len(info.links)).tolist())
        for link in info.links:
            for sender, receiver in _both([link.first.node, link.second.node]):
                self.links[sender, receiver] = Link(
                    simulation,
                    rate_bps=link.rate_bps,
                    delay_s=link.delay_s,
                    queue_bytes=link.queue_bytes,
                    mark_bytes=math.inf,
                    loss=link.loss,
                    jitter_s=link.jitter_s,
                    seed=next(draws),
                )
        self.arrivals = {name: Arrivals(simulation) for name in info.hosts}

    def ways(self, workers: Sequence[str]) -> dict[str, tuple[Way, Way]]:
        """By worker: its way to the server, and back."""
        return {name: (self._way(name, "server"), self._way("server", name)) for name in workers}

    def _way(self, first: str, second: str) -> Way:
        hops = paths.path(self.info, first, second)
        return Way([self.links[hop.sender, hop.receiver] for hop in hops])
