"""Chooses Open vSwitch's datapath for a lab, and sets the rules that its ports need.

The kernel's asks the daemon about the first packet of each flow alone (an *upcall*); what the
daemon is too late for is lost. The userspace one moves every packet through packet sockets.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Iterable, Sequence
from typing import Literal

from testbed.lab.kernel.commands import CommandError, run
from testbed.lab.kernel.packet_filter import Nftables, egress_chains
from testbed.lab.kernel.shaping import OWN_ETHERTYPE, MissingCapabilityError

Datapath = Literal["kernel", "userspace"]
Choice = Literal["auto", "kernel", "userspace"]

_OF_TYPE: dict[str, Datapath] = {"system": "kernel", "netdev": "userspace"}
_TRIAL = "system@lab-trial"


def missing() -> str | None:
    """Say why the kernel's datapath cannot be used, or None; tries it."""
    try:
        run(["ovs-appctl", "dpctl/add-dp", _TRIAL])
    except CommandError as error:
        return f"the kernel has no openvswitch module that this user can use ({error})"
    run(["ovs-appctl", "dpctl/del-dp", _TRIAL])
    table = f"netdev lab{secrets.token_hex(8)}"
    try:
        free_senders(["lo"], table)
    except CommandError as error:
        return str(error)
    Nftables(None).run(f"delete table {table}")
    return None


def choose(choice: Choice) -> Datapath:
    """Choose the datapath for a lab whose Open vSwitch runs; `auto`: the kernel's if it works."""
    if choice == "userspace":
        return "userspace"
    reason = missing()
    if reason and choice == "kernel":
        raise MissingCapabilityError(f"datapath kernel: {reason}")
    return "userspace" if reason else "kernel"


def in_use(switches: Iterable[str]) -> Datapath:
    """Ask the daemon which datapath forwards these switches' packets."""
    of_switch: dict[str, str] = {}
    kind = ""
    for line in run(["ovs-appctl", "dpif/show"]).splitlines():
        if not line.startswith(" "):
            kind = line.partition("@")[0]
        elif name := re.fullmatch(r"  (\S+):", line):
            of_switch[name.group(1)] = kind
    kinds = {of_switch.get(switch) for switch in switches}
    if len(kinds) == 1 and (common := _OF_TYPE.get(kinds.pop() or "")):
        return common
    raise CommandError(f"the switches have no datapath in common: {of_switch}")


def lost_upcalls() -> int:
    """Count the packets that the kernel could not hand to the daemon, and so lost."""
    text = run(["ovs-appctl", "dpctl/show"])
    return sum(map(int, re.findall(r"^\s+lookups: .*\blost:(\d+)", text, re.MULTILINE)))


# Rules of nftables at switch ports, before their queues.
#
# Whole batches: the daemon hands up to 32 packets at a time to its socket. If a queue refuses one,
# the kernel reports ENOBUFS, and it gives up the rest, which no counter shows.
#
# Freed senders: in the kernel's datapath, a veth pair and Open vSwitch's module keep a packet
# charged to the socket that sent it. TCP would stop for a queue that is a link away (TCP Small
# Queues), and the queue would never overflow.
_WHOLE_MARK = 0x10AD
_FREED_MARK = 0x10AE


def keep_whole(senders: Sequence[socket.socket], interfaces: Iterable[str]) -> bool:
    """Make what these sockets send by these interfaces independent of refusals."""
    # The rule takes each packet off the socket's hands and offers it to the queue of the same
    # port; its sender hears of no refusal.
    onward = f'meta mark {_WHOLE_MARK} meta mark set 0 fwd to "{{interface}}"'
    try:
        Nftables(None).run(*egress_chains("netdev whole_batches", interfaces, onward))
    except CommandError:
        return False
    for sender in senders:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, _WHOLE_MARK)
    return True


def free_senders(interfaces: Iterable[str], table: str = "netdev freed_senders") -> None:
    """Free the senders of all packets that leave by these interfaces of this namespace."""
    # A copy that belongs to nobody goes on, and the original is dropped (Linux 5.16). The lab's own
    # frames are left alone: their sender has to hear of a refusal.
    own = f"ether type {OWN_ETHERTYPE:#06x} accept"
    copied = f"meta mark {_FREED_MARK} meta mark set 0 accept"
    original = f'meta mark set {_FREED_MARK} dup to "{{interface}}" drop'
    Nftables(None).run(*egress_chains(table, interfaces, own, copied, original))
