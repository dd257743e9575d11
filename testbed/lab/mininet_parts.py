"""Mininet's classes, adapted: faster for 64 hosts, links that can delay, no limits of a shell."""

from __future__ import annotations

import itertools
import os
from typing import Any

from mininet.link import Link
from mininet.net import Mininet
from mininet.node import OVSSwitch, RemoteController

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent
from testbed.lab.kernel.shaping import inside

_link_numbers = itertools.count()

# Mininet would raise system-wide limits on first use; a lab leaves the host as it is.
Mininet.inited = True


class LabMininet(Mininet):
    """Mininet that writes static ARP entries with one program per host.

    Mininet itself runs `arp` once per pair of hosts: that takes 4.7 s for 64 hosts, this 0.3 s.
    """

    def staticArp(self) -> None:  # noqa: N802 (Mininet's name)
        """Give every host the hardware addresses of all others."""
        for host in self.hosts:
            interface = host.defaultIntf()
            batch = "".join(
                f"neigh replace {other.IP()} lladdr {other.MAC()} nud permanent dev {interface}\n"
                for other in self.hosts
                if other is not host
            )
            run([*inside(host.pid), "ip", "-batch", "-"], input_text=batch)


class LabController(RemoteController):
    """The supervisor's controller: no probe of its port, since an event says it is ready."""

    def checkListening(self) -> None:  # noqa: N802 (Mininet's name)
        """Do nothing."""


class LabSwitch(OVSSwitch):
    """Open vSwitch, configured by commands with argument lists.

    Mininet types its command into an interactive shell, whose terminal cuts a line off after 4095
    characters. The command for 64 ports is longer, and the switch would silently get no port.
    """

    def vsctl(self, *arguments: Any, **_options: Any) -> str:
        """Run ovs-vsctl and return what it printed.

        Raises:
            CommandError: it failed.
        """
        words = " ".join(str(each).strip() for each in arguments).replace('\\"', '"').split()
        return run(["ovs-vsctl", *words])


class LabLink(Link):
    """A veth pair, or two with `delay_s`, `jitter_s` or `loss`; a delay joins their inner ends.

    Names and ports of the outer ends are Mininet's own. The inner ends are in the switches'
    namespace, which is this process's. `middle` has the names of the inner ends next to the first
    and to the second node; it is None for a single pair.
    """

    def __init__(self, node1: Any, node2: Any, **options: Any) -> None:
        delayed = any(options.get(key) for key in ("delay_s", "jitter_s", "loss"))
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
        """Make the interfaces in the nodes' namespaces."""
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
