"""`graph`: hosts, switches and links written out one by one, with names of your own."""

from __future__ import annotations

from typing import Any

from mininet.topo import Topo
from pydantic import Field, ValidationError

from testbed.shared import problems
from testbed.shared.input_error import InputError
from testbed.shared.problems import optional
from topologies import mininet_options
from topologies.base import LabTopo
from topologies.settings import LinkParameters, TopologyParameters


class Edge(LinkParameters):
    """A link between two nodes; what is not given is taken from the topology's top level."""

    between: tuple[str, str] = Field(description="the two nodes")
    ports: tuple[int, int] | None = optional("the port at each of them; none: the next free one")


class Parameters(TopologyParameters):
    """Hosts of any name. Training needs a `server` and workers `worker-1`, `worker-2` and so on."""

    workers: int = Field(default=1, exclude=True, description="has no meaning here")
    hosts: list[str] = Field(min_length=2, description="names of all hosts")
    switches: dict[str, str | None] = Field(
        min_length=1, description="names of all switches; of each its datapath id, or null"
    )
    edges: list[Edge] = Field(min_length=1, description="all links")

    def host_names(self) -> list[str]:
        return list(self.hosts)

    def worker_names(self) -> list[str]:
        return self.hosts[1:]


class Topology(LabTopo):
    """Hosts, switches and links in the order in which the parameters list them."""

    def build(self, parameters: Parameters) -> None:
        for name, dpid in parameters.switches.items():
            self.addSwitch(name, **({} if dpid is None else {"dpid": dpid}))
        for name in parameters.hosts:
            self.addHost(name)
        for edge in parameters.edges:
            ports = edge.ports or (None, None)
            options = edge.model_dump(include=set(LinkParameters.model_fields), exclude_none=True)
            self.addLink(*edge.between, *ports, **options)


def described(topo: Topo) -> dict[str, Any]:
    """Describe a built topology as an experiment's `topology` section does."""
    percent = not isinstance(topo, LabTopo)
    hosts, switches = topo.hosts(sort=False), topo.switches(sort=False)
    edges, place = [], ""
    try:
        for name in (*hosts, *switches):
            place = f"{'host' if name in hosts else 'switch'} {name}"
            info = topo.nodeInfo(name)
            options = {key: info[key] for key in info if key != "isSwitch"}
            mininet_options.check_node(options, is_switch=name in switches)
        for _, _, info in topo.links(sort=False, withInfo=True):
            ends = {key: info[key] for key in ("node1", "node2", "port1", "port2")}
            place = f"link {ends['node1']}--{ends['node2']}"
            options = {key: info[key] for key in info if key not in ends}
            keys = mininet_options.link_keys(options, loss_in_percent=percent)
            edge = Edge(
                between=(ends["node1"], ends["node2"]), ports=(ends["port1"], ends["port2"]), **keys
            )
            edges.append(edge.model_dump(mode="json", exclude_none=True))
    except ValidationError as error:
        raise problems.input_error(error, Edge, f"{place}: ") from None
    except ValueError as error:
        raise InputError(f"{place}: {error}") from None
    return {
        "name": "graph",
        "hosts": hosts,
        "switches": {name: topo.nodeInfo(name).get("dpid") for name in switches},
        "edges": edges,
    }
