"""Which of Open vSwitch's datapaths forwards a lab's packets: the kernel's module, or its daemon.

The kernel's asks the daemon about the first packet of each flow alone (an *upcall*); what the
daemon is too late for is lost. The userspace one moves every packet through packet sockets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from testbed.lab import port_rules
from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.shaping import MissingCapabilityError

Datapath = Literal["kernel", "userspace"]
Wanted = Literal["auto", "kernel", "userspace"]

_OF_TYPE: dict[str, Datapath] = {"system": "kernel", "netdev": "userspace"}
_TRIAL = "system@lab-trial"


def missing() -> str | None:
    """Why the kernel's datapath cannot be used, or None if it can: tries it."""
    try:
        run(["ovs-appctl", "dpctl/add-dp", _TRIAL])
    except CommandError as error:
        return f"the kernel has no openvswitch module that this user can use ({error})"
    run(["ovs-appctl", "dpctl/del-dp", _TRIAL])
    return port_rules.why_no_freeing()


def choose(wanted: Wanted) -> Datapath:
    """The datapath for a lab whose Open vSwitch runs; `auto` is the kernel's where it works."""
    if wanted == "userspace":
        return "userspace"
    reason = missing()
    if reason and wanted == "kernel":
        raise MissingCapabilityError(f"datapath kernel: {reason}")
    return "userspace" if reason else "kernel"


def in_use(switches: Iterable[str]) -> Datapath:
    """The datapath that forwards these switches' packets, as the daemon says."""
    of_switch = parse_datapaths(run(["ovs-appctl", "dpif/show"]))
    found = {of_switch.get(each) for each in switches}
    if len(found) == 1 and (kind := _OF_TYPE.get(found.pop() or "")):
        return kind
    raise CommandError(f"the switches have no datapath in common: {of_switch}")


def parse_datapaths(text: str) -> dict[str, str]:
    """Switch -> type of its datapath, from what `ovs-appctl dpif/show` printed."""
    found = {}
    kind = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            kind = line.partition("@")[0]
        elif name := re.fullmatch(r"  (\S+):", line):
            found[name.group(1)] = kind
    return found


def lost_upcalls() -> int:
    """Packets since the begin that the kernel could not hand to the daemon, and so lost."""
    return parse_lost(run(["ovs-appctl", "dpctl/show"]))


def parse_lost(text: str) -> int:
    """The lost packets of all datapaths that `ovs-appctl dpctl/show` printed."""
    return sum(int(each) for each in re.findall(r"^\s+lookups: .*\blost:(\d+)", text, re.MULTILINE))
