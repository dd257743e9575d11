"""Mininet's classes, adapted: faster for 64 hosts, links that can delay, no limits of a shell.

Every node is a shell that Mininet starts by `mnexec`. Mininet itself waits for it without end.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from typing import Any

from mininet.link import Link
from mininet.net import Mininet
from mininet.node import Host, OVSSwitch, RemoteController

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.rtnetlink import Rtnetlink, bring_up_silent
from testbed.lab.kernel.shaping import MissingCapabilityError, inside

_link_numbers = itertools.count()
_PROMPT = chr(127)  # Mininet's choice

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


class _ShellInTime:
    """A node that gives up when its shell ends, does not come up, or does not answer in time."""

    shell_timeout_s = 20.0
    _has_prompt = False

    def read(self, size: int = 1024) -> str:
        """What the shell printed; the first time, all of it up to its first prompt.

        Raises:
            MissingCapabilityError: the shell ended before its prompt.
            CommandError: nothing came in time, or the shell ended later.
        """
        deadline_s = time.monotonic() + self.shell_timeout_s
        if self._has_prompt:
            return self._read_by(deadline_s, size)
        printed = ""
        while not printed.endswith(_PROMPT):
            try:
                printed += self._read_by(deadline_s, size)
            except (_EndedError, _SilentError) as error:
                words = f"{': ' if printed.strip() else ''}{' '.join(printed.split())}"
                name = self.name  # type: ignore[attr-defined]
                if isinstance(error, _EndedError):
                    raise MissingCapabilityError(
                        f"mnexec cannot start the shell of {name}{words}"
                    ) from None
                waited = f"within {self.shell_timeout_s:g} s of mnexec"
                raise CommandError(f"the shell of {name} gave no prompt {waited}{words}") from None
        self._has_prompt = True
        return printed

    def _read_by(self, deadline_s: float, size: int) -> str:
        """What comes next; `_EndedError` if nothing will, `_SilentError` if it takes too long."""
        node: Any = self
        output = select.poll()  # Mininet's own is always ready, because it also asks for writing
        output.register(node.stdout, select.POLLIN)
        while time.monotonic() < deadline_s:
            # This process holds the terminal too, so the shell's end alone wakes nobody.
            status = node.shell.poll()
            if output.poll(0 if status is not None else 100):
                return str(super().read(size))  # type: ignore[misc]
            if status is not None:
                raise _EndedError(f"the shell of {node.name} ended with status {status}")
        waited = f"{self.shell_timeout_s:g} s, since {node.lastCmd!r}"
        raise _SilentError(f"the shell of {node.name} says nothing for {waited}")


class _EndedError(CommandError):
    """A shell has ended."""


class _SilentError(CommandError):
    """A shell prints nothing."""


class LabHost(_ShellInTime, Host):
    """A host in namespaces of its own."""


class LabController(_ShellInTime, RemoteController):
    """The supervisor's controller: no probe of its port, since an event says it is ready."""

    def checkListening(self) -> None:  # noqa: N802 (Mininet's name)
        """Do nothing."""


class LabSwitch(_ShellInTime, OVSSwitch):
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
