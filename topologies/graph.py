"""`graph`: hosts, switches and links written out one by one, with names of your own."""

from __future__ import annotations

from pydantic import Field

from topologies.base import LabTopo
from topologies.settings import LinkParameters, TopologyParameters


class Edge(LinkParameters):
    """A link between two nodes; what is not given is taken from the topology's top level."""

    between: tuple[str, str] = Field(description="the two nodes")


class Parameters(TopologyParameters):
    """Hosts of any name. Training needs a `server` and workers `worker-1`, `worker-2` and so on."""

    workers: int = Field(default=1, exclude=True, description="has no meaning here")
    hosts: list[str] = Field(min_length=2, description="names of all hosts")
    switches: list[str] = Field(min_length=1, description="names of all switches")
    edges: list[Edge] = Field(min_length=1, description="all links")

    def host_names(self) -> list[str]:
        return list(self.hosts)

    def worker_names(self) -> list[str]:
        return self.hosts[1:]


class Topology(LabTopo):
    """Hosts, switches and links in the order in which the parameters list them."""

    def build(self, parameters: Parameters) -> None:
        for name in parameters.switches:
            self.addSwitch(name)
        for name in parameters.hosts:
            self.addHost(name)
        for edge in parameters.edges:
            options = edge.model_dump(include=set(LinkParameters.model_fields), exclude_none=True)
            self.addLink(*edge.between, **options)
