"""Rules of nftables at switch ports, before their queues: whole batches, and freed senders.

Open vSwitch hands up to 32 packets at a time to its socket. If a queue refuses one, the kernel
reports ENOBUFS, and it gives up the rest, which no counter shows. In the kernel's datapath, a veth
pair and Open vSwitch's module keep a packet charged to the socket that sent it: TCP would stop for
a queue that is a link away (TCP Small Queues), and the queue would never overflow.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Sequence

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.packet_filter import Nftables, egress_chains
from testbed.lab.kernel.shaping import OWN_ETHERTYPE

_WHOLE_MARK = 0x10AD
_WHOLE_TABLE = "netdev whole_batches"
_FREED_MARK = 0x10AE


def keep_whole(senders: Sequence[socket.socket], interfaces: Iterable[str]) -> bool:
    """Make what these sockets send by these interfaces independent of refusals."""
    # The rule takes each packet off the socket's hands and offers it to the queue of the same
    # port; its sender hears of no refusal.
    onward = f'meta mark {_WHOLE_MARK} meta mark set 0 fwd to "{{interface}}"'
    try:
        Nftables(None).run(*egress_chains(_WHOLE_TABLE, interfaces, onward))
    except CommandError:
        return False
    for each in senders:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, _WHOLE_MARK)
    return True


def are_whole(sender: socket.socket) -> bool:
    """Whether `keep_whole` was called for this socket."""
    return sender.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) == _WHOLE_MARK


def free_senders(interfaces: Iterable[str]) -> None:
    """Free the senders of all packets that leave by these interfaces of this namespace."""
    _install("netdev freed_senders", interfaces)


def why_no_freeing() -> str | None:
    """Why this kernel cannot, or None if it can: tries it at the loopback interface."""
    table = f"netdev lab{secrets.token_hex(8)}"
    try:
        _install(table, ["lo"])
    except CommandError as error:
        return str(error)
    Nftables(None).run(f"delete table {table}")
    return None


def _install(table: str, interfaces: Iterable[str]) -> None:
    # A copy that belongs to nobody goes on, and the original is dropped (Linux 5.16). The lab's own
    # frames are left alone: their sender has to hear of a refusal.
    own = f"ether type {OWN_ETHERTYPE:#06x} accept"
    copied = f"meta mark {_FREED_MARK} meta mark set 0 accept"
    original = f'meta mark set {_FREED_MARK} dup to "{{interface}}" drop'
    Nftables(None).run(*egress_chains(table, interfaces, own, copied, original))
