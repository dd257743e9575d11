"""Mininet's own classes, where a lab of 64 hosts needs them faster or without a shell's limits."""

from __future__ import annotations

from typing import Any

from mininet.net import Mininet
from mininet.node import OVSSwitch

from testbed.lab.kernel.commands import run

# Mininet would raise system-wide limits on first use; a lab leaves the host as it is.
Mininet.inited = True


class LabMininet(Mininet):
    """Mininet that writes static ARP entries with one program per host.

    Its own way is one `arp` per pair through the host's shell: 4.7 s for 64 hosts, here 0.3 s.
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
            enter = ["nsenter", f"--net=/proc/{host.pid}/ns/net"]
            run([*enter, "ip", "-batch", "-"], input_text=batch)


class LabSwitch(OVSSwitch):
    """Open vSwitch, told in an argument list.

    Mininet types its command into an interactive shell, whose terminal cuts a line off after 4095
    characters: a switch of 64 ports has more, and would silently stay without any.
    """

    def vsctl(self, *arguments: Any, **_options: Any) -> str:
        """Run ovs-vsctl and return what it printed.

        Raises:
            CommandError: it failed.
        """
        words = " ".join(str(each).strip() for each in arguments).replace('\\"', '"').split()
        return run(["ovs-vsctl", *words])
