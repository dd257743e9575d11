"""`dumbbell`: the workers behind one switch, the server behind another, one link between them."""

from __future__ import annotations

from topologies.base import LabTopo
from topologies.settings import TopologyParameters


class Parameters(TopologyParameters):
    """`core` is the link that all transfers share."""


class Topology(LabTopo):
    """Switches `left` (workers) and `right` (server); traffic hosts on both sides in turn."""

    def build(self, parameters: Parameters) -> None:
        """Traffic between two neighbouring traffic hosts crosses the link in the middle."""
        left, right = self.addSwitch("left"), self.addSwitch("right")
        self.addLink(left, right)
        self.spread(["server"], [right])
        self.spread(parameters.worker_names(), [left])
        self.spread(parameters.traffic_names(), [left, right])
