"""Frees a sender of its packets when a switch of the kernel's datapath has forwarded them.

The kernel charges a packet to the socket that sent it, until the packet is gone. A veth pair keeps
that charge, so that TCP does not fill the queues of its own host (Linux 4.19, "preserve sock
reference when scrubbing the skb"), and Open vSwitch's module keeps it too. So a packet that waits
in a switch's queue would still count in the buffer of a host that is a link away: the host's
program would have to wait, TCP would send no more (TCP Small Queues), and the queue would not
overflow. No real host feels a switch's queue.

Here a rule at each switch port, before its queue, sends on a copy that belongs to nobody, and drops
the original. It knows the copy by a mark. The copy shares the packet's memory; it takes Linux 5.16.
The lab's own frames, which go straight into the queue, are left alone: their sender has to hear of
a refusal. The userspace datapath needs nothing of this: it sends packets of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.packet_filter import Nftables, egress_chains
from testbed.lab.kernel.shaping import OWN_ETHERTYPE

_MARK = 0x10AE


def free(interfaces: Iterable[str]) -> None:
    """Free the senders of all packets that leave by these interfaces of this namespace.

    Raises:
        CommandError: this kernel cannot.
    """
    _install("netdev freed_senders", interfaces)


def missing() -> str | None:
    """Why this kernel cannot, or None if it can: tries it at the loopback interface."""
    table = f"netdev lab{secrets.token_hex(8)}"
    try:
        _install(table, ["lo"])
    except CommandError as error:
        return str(error)
    Nftables(None).run(f"delete table {table}")
    return None


def _install(table: str, interfaces: Iterable[str]) -> None:
    own = f"ether type {OWN_ETHERTYPE:#06x} accept"
    copied = f"meta mark {_MARK} meta mark set 0 accept"
    original = f'meta mark set {_MARK} dup to "{{interface}}" drop'
    Nftables(None).run(*egress_chains(table, interfaces, own, copied, original))
