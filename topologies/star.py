"""`star`: n workers and one server, each on its own link to one switch."""

from __future__ import annotations

from topologies.base import LabTopo
from topologies.settings import TopologyParameters


class Parameters(TopologyParameters):
    """Every link has the same rate and queue, in both directions."""


class Topology(LabTopo):
    """One switch, `s1`."""

    def build(self, parameters: Parameters) -> None:
        """Link every host to the switch."""
        self.spread(parameters.all_host_names(), [self.addSwitch("s1")])
