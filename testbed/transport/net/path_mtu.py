"""Checks that a chunk fits one packet of the path to a peer: fragments would multiply loss.

A smaller MTU that an ICMP message claims may be forged; only the local interface's limit counts.
"""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.transport.net.addresses import IP_HEADER_BYTES, Host
from testbed.transport.net.udp_socket import refuse_fragments
from testbed.transport.wire import HEADER_BYTES

# From <linux/in.h>, <linux/in6.h> and <linux/udp.h>; Python's socket module lacks them.
_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
_UDP_CORK = 1
_UDP_BYTES = 8
_DISCARD_PORT = 9


@contextmanager
def _probe(local: Host, peer: Host) -> Iterator[socket.socket]:
    """A socket that sends nothing: the kernel holds what it is given until it is closed."""
    with socket.socket(local.family, socket.SOCK_DGRAM) as probe:
        refuse_fragments(probe)
        probe.setsockopt(socket.IPPROTO_UDP, _UDP_CORK, 1)
        probe.bind(local.at(0))
        probe.connect(peer.at(_DISCARD_PORT))
        yield probe


def path_mtu_bytes(local: Host, peer: Host) -> int | None:
    """The MTU that the kernel assumes for the path between two addresses; None: no route."""
    try:
        with _probe(local, peer) as probe:
            return probe.getsockopt(*_MTU[local.family])
    except OSError:
        return None


def largest_chunk_bytes(
    mtu_bytes: int, family: socket.AddressFamily = socket.AF_INET, trailer_bytes: int = 0
) -> int:
    """The largest chunk whose datagram is one packet of at most `mtu_bytes`."""
    overhead_bytes = IP_HEADER_BYTES[family] + _UDP_BYTES + HEADER_BYTES + trailer_bytes
    return (mtu_bytes - overhead_bytes) // 4 * 4


def too_large(chunk_bytes: int, *, local: Host, peer: Host, trailer_bytes: int = 0) -> str:
    """Says that a chunk does not fit the path, and what would."""
    problem = f"chunk_bytes is {chunk_bytes}, too large for the path to {peer}"
    mtu_bytes = path_mtu_bytes(local, peer)
    if mtu_bytes is None:
        return f"{problem}; set a smaller one"
    largest = largest_chunk_bytes(mtu_bytes, local.family, trailer_bytes)
    return f"{problem} with an MTU of {mtu_bytes} bytes; valid: up to {largest}"


def check_chunk_fits(chunk_bytes: int, *, local: Host, peer: Host, trailer_bytes: int = 0) -> None:
    """Raises ValueError for a chunk whose packet the interface towards the peer cannot send."""
    try:
        with _probe(local, peer) as probe:
            probe.send(bytes(HEADER_BYTES + chunk_bytes + trailer_bytes))
    except OSError as error:
        if error.errno == errno.EMSGSIZE:
            problem = too_large(chunk_bytes, local=local, peer=peer, trailer_bytes=trailer_bytes)
            raise ValueError(problem) from None
