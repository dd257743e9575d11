"""The named networks: star, dumbbell, leaf-spine, clos and fat-tree.

M. Alizadeh, T. Edsall, "On the data path performance of leaf-spine datacenter fabrics", HOTI 2013.
C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 32, 1953.
M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture",
SIGCOMM 2008.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from topologies.base import LabTopo
from topologies.settings import TopologyParameters


class StarParameters(TopologyParameters):
    """Every link has the same rate and queue, in both directions."""


class Star(LabTopo):
    """Every host on its own link to one switch, `s1`."""

    Parameters = StarParameters

    def build(self, parameters: StarParameters) -> None:
        self.spread(parameters.all_host_names(), [self.addSwitch("s1")])


class DumbbellParameters(TopologyParameters):
    """`core` is the link that all transfers share."""


class Dumbbell(LabTopo):
    """The workers at switch `left`, the server at `right`, traffic hosts at both in turn."""

    Parameters = DumbbellParameters

    def build(self, parameters: DumbbellParameters) -> None:
        left, right = self.addSwitch("left"), self.addSwitch("right")
        self.addLink(left, right)
        self.spread(["server"], [right])
        self.spread(parameters.worker_names(), [left])
        self.spread(parameters.traffic_names(), [left, right])


class LeafSpineParameters(TopologyParameters):
    """`core` are the links between leaves and spines."""

    leaves: int = Field(default=4, ge=2, le=32, description="switches that hosts are linked to")
    spines: int = Field(default=2, ge=1, le=16, description="switches that link all leaves")


class LeafSpine(LabTopo):
    """Switches `leaf-N`, `spine-N`; the server on leaf 1, the workers from leaf 2 on in turn."""

    Parameters = LeafSpineParameters

    def build(self, parameters: LeafSpineParameters) -> None:
        leaves = self.add_fabric(parameters.leaves, parameters.spines)
        self.spread(["server"], leaves[:1])
        others_first = [*leaves[1:], leaves[0]]
        self.spread(parameters.worker_names(), others_first)
        self.spread(parameters.traffic_names(), others_first)


class ClosParameters(TopologyParameters):
    """Each leaf's links to the spines have together 1 / `oversubscription` of its hosts' rate."""

    hosts_per_leaf: int = Field(
        default=8, ge=1, le=1024, description="hosts that are linked to each leaf"
    )
    spines: int = Field(default=2, ge=1, le=64, description="switches that link all leaves")
    oversubscription: float = Field(
        default=1.0,
        ge=0.1,
        le=64,
        allow_inf_nan=False,
        description="what the hosts of a full leaf can send, over what its links to spines carry",
    )

    @model_validator(mode="after")
    def _core_has_one_rate(self) -> Self:
        if self.core.rate_bps is not None:
            raise ValueError(
                "core.rate_bps: follows from oversubscription; valid: leave it out, or the "
                "topology leaf-spine"
            )
        return self


class Clos(LabTopo):
    """As many leaves as the hosts need; each is filled before the next: first the server's."""

    Parameters = ClosParameters

    def build(self, parameters: ClosParameters) -> None:
        names, hosts_per_leaf = parameters.all_host_names(), parameters.hosts_per_leaf
        leaf_bps = hosts_per_leaf * parameters.rate_bps / parameters.oversubscription
        leaves = self.add_fabric(
            -(-len(names) // hosts_per_leaf),
            parameters.spines,
            rate_bps=round(leaf_bps / parameters.spines),
        )
        for number, leaf in enumerate(leaves):
            self.spread(names[number * hosts_per_leaf : (number + 1) * hosts_per_leaf], [leaf])


class FatTreeParameters(TopologyParameters):
    """`k` ports per switch, even; there is room for k^3/4 hosts. `core`: links between switches."""

    k: int = Field(
        default=4, ge=2, le=8, multiple_of=2, description="ports of each switch, and pods"
    )

    @model_validator(mode="after")
    def _room_for_all(self) -> Self:
        room, hosts = self.k**3 // 4, len(self.all_host_names())
        if hosts > room:
            raise ValueError(
                f"a fat tree of k = {self.k} has room for {room} hosts, not for {hosts} "
                "(server, workers, extra_hosts)"
            )
        return self


class FatTree(LabTopo):
    """k pods of k/2 edge and k/2 aggregation switches, under (k/2)^2 core switches.

    Their names are `core-N`, `agg-POD-N`, `edge-POD-N`. Hosts go to pods in turn, then to edges: so
    the first workers are in other pods than the server.
    """

    Parameters = FatTreeParameters

    def build(self, parameters: FatTreeParameters) -> None:
        half = parameters.k // 2
        pods, places = range(1, parameters.k + 1), range(1, half + 1)
        cores = [self.addSwitch(f"core-{number}") for number in range(1, half * half + 1)]
        for pod in pods:
            aggregations = [self.addSwitch(f"agg-{pod}-{place}") for place in places]
            edges = [self.addSwitch(f"edge-{pod}-{place}") for place in places]
            for edge in edges:
                for aggregation in aggregations:
                    self.addLink(edge, aggregation)
            for group, aggregation in enumerate(aggregations):
                for core in cores[group * half : (group + 1) * half]:
                    self.addLink(aggregation, core)
        self.spread(
            parameters.all_host_names(),
            [f"edge-{pod}-{place}" for place in places for pod in pods],
        )
