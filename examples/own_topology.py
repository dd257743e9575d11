"""A topology: switches in a line, the server at one end. `topology: {name: ./own_topology.py}`"""

from itertools import pairwise

from pydantic import Field

from topologies import TopologyParameters
from topologies.base import LabTopo


class Parameters(TopologyParameters):
    """It adds keys to `workers`, `rate_bps` and the other keys of every topology."""

    hops: int = Field(default=3, ge=1, le=8, description="switches in the line")


class Topology(LabTopo):
    """The workers spread over all switches but the first."""

    def build(self, parameters: Parameters) -> None:
        switches = [self.addSwitch(f"s{number + 1}") for number in range(parameters.hops)]
        for near, far in pairwise(switches):
            self.addLink(near, far)
        self.addLink(self.addHost("server"), switches[0])
        others = [*parameters.worker_names(), *parameters.traffic_names()]
        self.spread(others, switches[1:] or switches)
