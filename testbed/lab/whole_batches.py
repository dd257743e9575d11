"""Lets a full queue refuse single packets of Open vSwitch, and not the rest of their batch.

Open vSwitch hands up to 32 packets at a time to its socket. If a queue refuses one, the kernel
reports ENOBUFS, and it gives up the rest, which no counter shows.
"""

# A rule takes each packet off the socket's hands at the port (nftables' egress hook, `fwd`) and
# offers it to the queue of the same port; its sender hears of no refusal. It knows the packets by a
# mark.

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.packet_filter import Nftables, egress_chains

_MARK = 0x10AD
_TABLE = "netdev whole_batches"


def keep_whole(senders: Sequence[socket.socket], interfaces: Iterable[str]) -> bool:
    """Make what these sockets send by these interfaces independent of refusals."""
    onward = f'meta mark {_MARK} meta mark set 0 fwd to "{{interface}}"'
    try:
        Nftables(None).run(*egress_chains(_TABLE, interfaces, onward))
    except CommandError:
        return False
    for each in senders:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, _MARK)
    return True


def are_whole(sender: socket.socket) -> bool:
    """Whether `keep_whole` was called for this socket."""
    return sender.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) == _MARK
