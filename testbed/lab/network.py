"""The emulated network: a Mininet topology on the private switch, shaped, and described as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from testbed.lab import shaping
from testbed.lab.shaping import LinkShape

CONTROLLER_ADDRESS = ("127.0.0.1", 6653)  # loopback of the lab's own network namespace


@dataclass(frozen=True, kw_only=True)
class Port:
    """One end of a link. `pid` names the namespace of the interface; None is the switches'."""

    node: str
    interface: str
    number: int
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class LinkEnds:
    """A link, its two ends, and the shape of each direction's output."""

    first: Port
    second: Port
    rate_bps: int
    queue_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostInfo:
    """An emulated host with one interface; `switch_interface` is the other end of its link."""

    name: str
    address: str
    mac: str
    pid: int
    interface: str
    switch: str
    switch_port: int
    switch_interface: str
    rate_bps: int
    queue_bytes: int


@dataclass(frozen=True, kw_only=True)
class LabInfo:
    """What controller and training need to know about the network, as plain data."""

    hosts: dict[str, HostInfo]
    switches: dict[str, int]  # name -> datapath id
    links: list[LinkEnds]

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, for the file that the controller and the launcher read."""
        return asdict(self)


def hosts_from_json(document: dict[str, Any]) -> dict[str, HostInfo]:
    """The hosts of a description that `as_json` made."""
    return {name: HostInfo(**fields) for name, fields in document["hosts"].items()}


class Network:
    """A started Mininet network. Nothing here stops it: the sandbox's end removes all of it."""

    def __init__(self, topology: Any) -> None:
        self.mininet = _build(topology)
        self.info = _describe(self.mininet)

    def start(self) -> None:
        """Start the switches (they connect to the controller) and shape every link."""
        self.mininet.start()
        for link in self.info.links:
            wanted = LinkShape(rate_bps=link.rate_bps, queue_bytes=link.queue_bytes)
            for end in (link.first, link.second):
                shaping.disable_offloads(end.interface, pid=end.pid)
                shaping.shape(end.interface, wanted, pid=end.pid)


def _build(topology: Any) -> Any:
    import functools

    from mininet.net import Mininet
    from mininet.node import OVSSwitch

    # Mininet would raise system-wide limits on first use; a lab leaves the host as it is.
    Mininet.inited = True
    switch = functools.partial(
        OVSSwitch, datapath="user", failMode="secure", protocols="OpenFlow13"
    )
    net = Mininet(
        topo=topology,
        switch=switch,
        controller=None,
        autoSetMacs=True,
        autoStaticArp=True,
    )
    net.addController(_remote_controller())
    return net


def _remote_controller() -> Any:
    """The address of the Ryu application, which the supervisor has started itself."""
    from mininet.node import RemoteController

    class RyuController(RemoteController):
        """Does not probe the port with telnet: readiness is an event, not a guess."""

        def checkListening(self) -> None:  # noqa: N802 (Mininet's name)
            return None

    address, port = CONTROLLER_ADDRESS
    return RyuController("ryu", ip=address, port=port)


def _describe(net: Any) -> LabInfo:
    hosts: dict[str, HostInfo] = {}
    links = []
    for link in net.links:
        options = link.intf1.params
        ends = [_port(link.intf1), _port(link.intf2)]
        rate_bps, queue_bytes = options["rate_bps"], options["queue_bytes"]
        links.append(
            LinkEnds(first=ends[0], second=ends[1], rate_bps=rate_bps, queue_bytes=queue_bytes)
        )
        for own, other in ((link.intf1, link.intf2), (link.intf2, link.intf1)):
            if own.node not in net.hosts:
                continue
            hosts[own.node.name] = HostInfo(
                name=own.node.name,
                address=own.ip,
                mac=own.mac,
                pid=own.node.pid,
                interface=own.name,
                switch=other.node.name,
                switch_port=other.node.ports[other],
                switch_interface=other.name,
                rate_bps=rate_bps,
                queue_bytes=queue_bytes,
            )
    switches = {switch.name: int(switch.dpid, 16) for switch in net.switches}
    return LabInfo(hosts=hosts, switches=switches, links=links)


def _port(interface: Any) -> Port:
    node = interface.node
    return Port(
        node=node.name,
        interface=interface.name,
        number=node.ports[interface],
        pid=node.pid if node.inNamespace else None,
    )
