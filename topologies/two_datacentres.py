"""`two-datacentres`: two switches with a long thin link between them."""

from __future__ import annotations

from pydantic import Field

from topologies.base import LabTopo
from topologies.settings import LinkParameters, TopologyParameters


class Parameters(TopologyParameters):
    """`core`, the long link: 20 Mbit/s, 10 ms each way, a queue of one bandwidth-delay product."""

    core: LinkParameters = Field(
        default=LinkParameters(rate_bps=20_000_000, delay_s=0.01, queue_bdp=1),
        description="the long link",
    )


class Topology(LabTopo):
    """Switches `dc-1` and `dc-2`; the server and the odd workers in the first."""

    def build(self, parameters: Parameters) -> None:
        """Two workers that follow each other are in different datacentres."""
        first, second = centres = [self.addSwitch("dc-1"), self.addSwitch("dc-2")]
        self.addLink(first, second)
        self.spread(["server"], [first])
        self.spread(parameters.worker_names(), centres)
        self.spread(parameters.traffic_names(), centres)
