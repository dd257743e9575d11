"""Builds the emulated network on a private switch, shapes its links, and describes it as data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from testbed.lab import datapath, sandbox
from testbed.lab.datapath import Datapath
from testbed.lab.delay import Middle, Relay, netem
from testbed.lab.kernel import shaping, socket_defaults
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.shaping import LinkShape, MissingCapabilityError, inside


@dataclass(frozen=True, kw_only=True)
class Port:
    """One end of a link. `pid` names the namespace of the interface; None is the switches'."""

    node: str
    interface: str
    number: int
    pid: int | None


@dataclass(frozen=True, kw_only=True)
class LinkEnds:
    """A link: its two ends, and the properties of each direction."""

    # `middle` has the interfaces in the middle of a link that delays or loses, next to the first
    # and to the second end; `most_delay_s` is how long an impairment lets frames wait there.

    name: str
    first: Port
    second: Port
    rate_bps: int
    queue_bytes: int
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    ecn_threshold_bytes: int | None = None
    priority_queue_bytes: int | None = None
    most_delay_s: float | None = None
    middle: tuple[str, str] | None = None

    @property
    def shape(self) -> LinkShape:
        return LinkShape.of_link(vars(self))


_LINK_OPTIONS = {field.name for field in fields(LinkEnds)} - {"name", "first", "second", "middle"}


@dataclass(frozen=True, kw_only=True)
class HostInfo:
    """An emulated host with one interface."""

    name: str
    address: str
    mac: str
    pid: int
    interface: str


@dataclass(frozen=True, kw_only=True)
class LabInfo:
    """The network as plain data, for the controller and the training.

    `delayed_by` is "netem", or "relay" with its socket; None if no link has a middle. `in_order` is
    false if frames may overtake each other. `data_ports` are the workload's first and last.
    """

    hosts: dict[str, HostInfo]
    switches: dict[str, int]  # name -> datapath id
    links: list[LinkEnds]
    delayed_by: str | None = None
    in_order: bool = True
    relay_socket: str | None = None
    data_ports: tuple[int, int] | None = None
    datapath: Datapath = "userspace"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(kw_only=True)
class Network:
    """A network of a Mininet `Topo`. Nothing here stops it: the sandbox's end removes all of it."""

    topology: Any
    private: Path
    logs: Path
    delayed_by: str = "auto"
    datapath: Datapath = "userspace"
    data_ports: tuple[int, int] | None = None
    tcp_rto_min_s: float | None = None
    seed: int | None = None
    adjustable: bool = False
    relay: Relay | None = field(default=None, init=False)
    mininet: Any = field(init=False)
    info: LabInfo = field(init=False)

    def build(self) -> None:
        """Build hosts, switches, links, and a relay; MissingCapabilityError: it cannot be here."""
        from testbed.lab import mininet_parts

        self.mininet = mininet_parts.build(
            self.topology, self.datapath, sandbox.CONTROLLER_ADDRESS, adjustable=self.adjustable
        )
        info = _describe(self.mininet)
        self.info = replace(info, data_ports=self.data_ports, datapath=self.datapath)
        if self.data_ports is not None:
            for host in self.info.hosts.values():
                socket_defaults.reserve_ports(host.pid, *self.data_ports)
        if self.tcp_rto_min_s is not None:
            for host in self.info.hosts.values():
                socket_defaults.set_least_timeout(host.pid, self.tcp_rto_min_s)
        if self.datapath == "kernel":
            self._steer()
        delayed = [link for link in self.info.links if link.middle is not None]
        middles = [Middle.of_link(asdict(link)) for link in delayed]
        if not middles:
            return
        missing = "" if self.delayed_by == "relay" else netem.missing(*middles[0].interfaces)
        if missing and self.delayed_by == "netem":
            raise MissingCapabilityError(f"netem: {missing}")
        if self.delayed_by != "relay" and not missing:
            netem.setup(middles)
            self._steer()
            self.info = replace(self.info, delayed_by="netem")
        else:
            try:
                for middle in middles:
                    middle.require_room(middle.longest_s)
            except ValueError as error:
                raise MissingCapabilityError(str(error)) from None
            netem.join([middle for middle in middles if middle.idle])
            path, log = self.private / "delay.sock", self.logs / "delay-relay.log"
            self.relay = Relay(middles, path, log=log, seed=self.seed).start()
            self.info = replace(self.info, delayed_by="relay", relay_socket=str(path))

    def start(self) -> None:
        """Start the switches and shape every link; MissingCapabilityError: it cannot be here."""
        self.mininet.start()
        if (used := datapath.in_use(self.info.switches)) != self.info.datapath:
            raise CommandError(f"Open vSwitch uses the {used} datapath, not {self.info.datapath}")
        if used == "kernel":
            datapath.free_senders(
                end.interface
                for link in self.info.links
                for end in (link.first, link.second)
                if end.pid is None
            )
        shaping.shape_all(
            (end.interface, end.pid, link.shape)
            for link in self.info.links
            for end in (link.first, link.second)
        )
        if self.relay is not None:
            self.relay.wait_until_ready()

    def _steer(self) -> None:
        in_order = set_rps(_interfaces(self.info.links))
        self.info = replace(self.info, in_order=in_order)


def _interfaces(links: list[LinkEnds]) -> Iterator[tuple[int | None, str]]:
    """Yield all interfaces of links: a process in the namespace of each, and its name."""
    for link in links:
        yield from ((end.pid, end.interface) for end in (link.first, link.second))
        yield from ((None, inner) for inner in link.middle or ())


# Receive packet steering: one processor receives all frames of an interface, in order. A veth pair
# queues each frame at the processor that sent it, and a shaped link sends from whichever its timer
# fires on: when one processor is held up, a frame that waits at another overtakes. It costs
# processor time (at 180 Mbit/s two processors idled for 4 % instead of 12 %), so labs without netem
# do without: no packet was seen to overtake there. Only root of the initial user namespace may set
# it. /sys shows the interfaces of the namespace that it was mounted in.
_WRITE_RPS = """mount -t sysfs sysfs /sys && while [ $# -gt 0 ]; do
  echo "$1" > "/sys/class/net/$2/queues/rx-0/rps_cpus" || exit 1; shift 2
done"""


def set_rps(interfaces: Iterable[tuple[int | None, str]]) -> bool:
    """Give each interface (a process in its namespace, its name) one receiving processor."""
    # False where this user may not, or the kernel was built without RPS.
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) == 1:
        return True
    by_namespace: dict[int | None, list[str]] = {}
    for number, (pid, name) in enumerate(interfaces):
        place = processors[number % len(processors)]
        # A set of one processor as sysfs reads it: words of 32 bits in hexadecimal.
        mask = f"{1 << place % 32:08x}" + ",00000000" * (place // 32)
        by_namespace.setdefault(pid, []).extend((mask, name))
    try:
        for pid, words in by_namespace.items():
            run([*inside(pid), "unshare", "--mount", "sh", "-c", _WRITE_RPS, "-", *words])
    except CommandError:
        return False
    return True


def _describe(net: Any) -> LabInfo:
    hosts: dict[str, HostInfo] = {}
    links = []
    for link in net.links:
        options = {key: param for key, param in link.intf1.params.items() if key in _LINK_OPTIONS}
        first, second = _port(link.intf1), _port(link.intf2)
        name = f"{first.node}--{second.node}"
        ends = LinkEnds(name=name, first=first, second=second, middle=link.middle, **options)
        links.append(ends)
        for own in (link.intf1, link.intf2):
            if own.node in net.hosts:
                hosts[own.node.name] = HostInfo(
                    name=own.node.name,
                    address=own.ip,
                    mac=own.mac,
                    pid=own.node.pid,
                    interface=own.name,
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
