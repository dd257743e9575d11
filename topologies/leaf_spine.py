"""`leaf-spine`: hosts on leaves, every leaf linked to every spine, equal-cost paths between leaves.

M. Alizadeh, T. Edsall, "On the data path performance of leaf-spine datacenter fabrics", HOTI 2013.
"""

from __future__ import annotations

from pydantic import Field

from topologies.base import LabTopo
from topologies.settings import TopologyParameters


class Parameters(TopologyParameters):
    """`core` are the links between leaves and spines."""

    leaves: int = Field(default=4, ge=2, le=32, description="switches that hosts are linked to")
    spines: int = Field(default=2, ge=1, le=16, description="switches that link all leaves")


class Topology(LabTopo):
    """Switches `leaf-N`, `spine-N`; the server on leaf 1, the workers from leaf 2 on in turn."""

    def build(self, parameters: Parameters) -> None:
        """The server's leaf gets its share of workers too, last in each turn."""
        leaves = [self.addSwitch(f"leaf-{each}") for each in range(1, parameters.leaves + 1)]
        spines = [self.addSwitch(f"spine-{each}") for each in range(1, parameters.spines + 1)]
        for leaf in leaves:
            for spine in spines:
                self.addLink(leaf, spine)
        self.spread(["server"], leaves[:1])
        others_first = [*leaves[1:], leaves[0]]
        self.spread(parameters.worker_names(), others_first)
        self.spread(parameters.traffic_names(), others_first)
