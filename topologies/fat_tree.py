"""`fat-tree`: k pods of k/2 edge and k/2 aggregation switches, under (k/2)^2 core switches.

M. Al-Fares, A. Loukissas, A. Vahdat, "A scalable, commodity data center network architecture",
SIGCOMM 2008: a host reaches one of another pod over (k/2)^2 equal-cost paths.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from topologies.base import LabTopo
from topologies.settings import TopologyParameters


class Parameters(TopologyParameters):
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


class Topology(LabTopo):
    """Switches `core-N`, `agg-POD-N`, `edge-POD-N`; hosts in turn over pods, then over edges."""

    def build(self, parameters: Parameters) -> None:
        """The server in pod 1; the first workers in other pods."""
        half = parameters.k // 2
        pods, places = range(1, parameters.k + 1), range(1, half + 1)
        cores = [self.addSwitch(f"core-{each}") for each in range(1, half * half + 1)]
        for pod in pods:
            aggregations = [self.addSwitch(f"agg-{pod}-{each}") for each in places]
            edges = [self.addSwitch(f"edge-{pod}-{each}") for each in places]
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
