"""Frees a sender of its packets when a switch of the kernel's datapath has forwarded them.

A veth pair and Open vSwitch's module keep a packet charged to the socket that sent it: TCP would
stop for a queue that is a link away (TCP Small Queues), and the queue would never overflow.
"""

# A rule at each switch port, before its queue, sends on a copy that belongs to nobody, and drops
# the original; it knows the copy by a mark (Linux 5.16). The lab's own frames, which go straight
# into the queue, are left alone: their sender has to hear of a refusal.

from __future__ import annotations

import secrets
from collections.abc import Iterable

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.packet_filter import Nftables, egress_chains
from testbed.lab.kernel.shaping import OWN_ETHERTYPE

_MARK = 0x10AE


def free(interfaces: Iterable[str]) -> None:
    """Free the senders of all packets that leave by these interfaces of this namespace."""
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
