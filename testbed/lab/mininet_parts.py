"""Mininet's classes, adapted: made by netlink, with shells on demand and links that can delay.

A host is a pair of namespaces that a thread holds, and all switches are set up by one command. A
node gets its shell when somebody first asks it to run a command (`node.cmd`, Mininet's prompt).
"""

from __future__ import annotations

import functools
import itertools
import os
import select
from collections.abc import Sequence
from typing import Any

from mininet.link import Intf, Link
from mininet.net import Mininet
from mininet.node import Host, OVSSwitch, RemoteController

from testbed.lab import openvswitch
from testbed.lab.datapath import Datapath
from testbed.lab.kernel import namespaces, rtnetlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent
from testbed.lab.kernel.shaping import MissingCapabilityError

_link_numbers = itertools.count()
_MNEXEC_NEW, _MNEXEC_JOIN = "-cdn", "-cda"

# Mininet would raise system-wide limits on first use; a lab leaves the host as it is.
Mininet.inited = True


class LabMininet(Mininet):
    """Mininet whose interfaces come up together; no packet of a lab waits for ARP or is ARP's."""

    def configHosts(self) -> None:  # noqa: N802 (Mininet's name)
        super().configHosts()
        with Rtnetlink() as kernel:
            ports = [port.name for switch in self.switches for port in switch.intfList()]
            kernel.send([rtnetlink.up(kernel.interface(name)) for name in ports])

    def staticArp(self) -> None:  # noqa: N802
        """Give every host the hardware addresses of all; its own entry is never looked up."""
        addresses = [(host.IP(), host.MAC()) for host in self.hosts]
        for host in self.hosts:
            with Rtnetlink(host.pid) as kernel:
                interface = kernel.interface(host.defaultIntf().name)
                kernel.send([rtnetlink.neighbour(interface, *address) for address in addresses])


class _ShellOnDemand:
    """A node whose shell starts with its first command."""

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: N802 (Mininet's name)
        """Make the node's namespaces, which its constructor wants, and no shell yet."""
        node: Any = self
        try:
            node.pid = namespaces.hold(node.name) if node.inNamespace else os.getpid()
        except OSError as error:
            raise MissingCapabilityError(
                f"the namespaces of {node.name} cannot be made: {error.strerror}"
            ) from None

    def cmd(self, *words: Any, **options: Any) -> Any:
        self._need_shell()
        return super().cmd(*words, **options)  # type: ignore[misc]

    def sendCmd(self, *words: Any, **options: Any) -> None:  # noqa: N802
        self._need_shell()
        super().sendCmd(*words, **options)  # type: ignore[misc]

    def _need_shell(self) -> None:
        node: Any = self
        if node.lastCmd is None and node.shell is None:
            pid = node.pid
            try:
                super().startShell()  # type: ignore[misc]
            finally:
                node.pid = pid

    def _popen(self, cmd: list[str], **options: Any) -> Any:
        """Start a program; Mininet's shell joins the namespaces that are there."""
        if cmd[:2] == ["mnexec", _MNEXEC_NEW]:
            cmd = ["mnexec", _MNEXEC_JOIN, str(self.pid), *cmd[2:]]  # type: ignore[attr-defined]
        return super()._popen(cmd, **options)  # type: ignore[misc]

    def read(self, size: int = 1024) -> str:
        """Return what the shell prints next; CommandError: it has ended, for which none waits."""
        node: Any = self
        output = select.poll()  # Mininet's own is always ready, because it also asks for writing
        output.register(node.stdout, select.POLLIN)
        while True:
            # This process holds the terminal too, so the shell's end alone wakes nobody.
            status = node.shell.poll()
            if output.poll(0 if status is not None else 100):
                return str(super().read(size))  # type: ignore[misc]
            if status is not None:
                node.waiting = False
                raise CommandError(f"the shell of {node.name} ended with status {status}")


class LabInterface(Intf):
    """An interface that its node or the network brings up, with all others."""

    def config(self, **_options: Any) -> dict[str, Any]:
        return {}


class LabHost(_ShellOnDemand, Host):
    def config(
        self, mac: str | None = None, ip: str | None = None, **_options: Any
    ) -> dict[str, Any]:
        interface = self.defaultIntf()
        with Rtnetlink(self.pid) as kernel:
            messages = [rtnetlink.up(kernel.interface("lo"))]
            if interface is not None and ip is not None:
                own = kernel.interface(interface.name)
                if mac is not None:
                    interface.mac = mac
                    messages.append(rtnetlink.hardware_address(own, mac))
                interface.ip, interface.prefixLen = ip.split("/")
                messages += [rtnetlink.address(own, ip), rtnetlink.up(own)]
            kernel.send(messages)
        return {}


class LabController(_ShellOnDemand, RemoteController):
    """The supervisor's controller: no probe of its port, since an event says it is ready."""

    def checkListening(self) -> None:  # noqa: N802 (Mininet's name)
        pass


class LabSwitch(_ShellOnDemand, OVSSwitch):
    """Open vSwitch, configured by commands with argument lists, and all switches by one command."""

    # Mininet types its command into a shell, whose terminal cuts a line off after 4095 characters.

    def __init__(self, name: str, *, batch: bool = True, **options: Any) -> None:
        super().__init__(name, batch=batch, **options)

    def cmd(self, *words: Any, **options: Any) -> Any:
        if words == ("ifconfig", "lo", "up"):  # Mininet's constructor; the sandbox has done it
            return ""
        return super().cmd(*words, **options)

    def vsctl(self, *arguments: Any, **_options: Any) -> str:
        """Run ovs-vsctl, return what it printed; before the start, keep it for `batchStartup`."""
        words = " ".join(map(str, arguments)).replace('\\"', '"').split()
        if self.batch:
            self.commands += words
            return ""
        return openvswitch.vsctl(words)

    @classmethod
    def batchStartup(cls, switches: Sequence[LabSwitch], run: Any = None) -> Sequence[LabSwitch]:  # noqa: N802
        openvswitch.vsctl([word for switch in switches for word in switch.commands], timeout_s=60.0)
        for switch in switches:
            switch.commands, switch.batch = [], False
        return switches


class LabLink(Link):
    """A veth pair, or two if it delays or loses, now or later; a delay joins their inner ends."""

    # `middle` has the inner ends next to the first and to the second node, in the switches'
    # namespace.

    def __init__(self, node1: Any, node2: Any, *, adjustable: bool = False, **options: Any) -> None:
        delayed = adjustable or any(options.get(key) for key in ("delay_s", "jitter_s", "loss"))
        delayed = delayed or options.get("most_delay_s") is not None
        number = next(_link_numbers)
        self.middle = (f"mid{number}a", f"mid{number}b") if delayed else None
        super().__init__(node1, node2, **options)

    def makeIntfPair(  # noqa: N802 (Mininet's name)
        self,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Any = None,
        node2: Any = None,
        deleteIntfs: bool = True,  # noqa: N803
    ) -> None:
        ends = ((intfname1, addr1, _pid(node1)), (intfname2, addr2, _pid(node2)))
        with Rtnetlink() as kernel:
            if self.middle is not None:
                for inner, (name, mac, pid) in zip(self.middle, ends, strict=True):
                    kernel.send([rtnetlink.veth(inner, name, peer_mac=mac, peer_pid=pid)])
                    bring_up_silent(inner)
                return
        (name, mac, pid), (other, other_mac, other_pid) = ends
        with Rtnetlink(pid) as kernel:
            # A message from a host's namespace has to name the switches' namespace.
            peer_pid = os.getpid() if other_pid is None else other_pid
            pair = rtnetlink.veth(name, other, mac=mac, peer_mac=other_mac, peer_pid=peer_pid)
            kernel.send([pair])


def _pid(node: Any) -> int | None:
    return node.pid if node.inNamespace else None


def build(
    topology: Any, datapath: Datapath, controller: tuple[str, int], *, adjustable: bool
) -> LabMininet:
    """Make the nodes and links of a `Topo`, whose switches obey a controller at an address."""
    switch = functools.partial(
        LabSwitch,
        datapath="user" if datapath == "userspace" else "kernel",  # Mininet's words
        failMode="secure",
        protocols="OpenFlow13",
    )
    net = LabMininet(
        topo=topology,
        host=LabHost,
        switch=switch,
        link=functools.partial(LabLink, adjustable=adjustable),
        intf=LabInterface,
        controller=None,
        autoSetMacs=True,
        autoStaticArp=True,
    )
    address, port = controller
    net.addController(LabController("ryu", ip=address, port=port))
    return net
