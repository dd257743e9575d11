"""Checks that a chunk fits the MTU of the path to a peer.

A larger datagram would be cut into fragments, and losing one fragment loses the datagram. With six
fragments per chunk, 10 % packet loss becomes 47 % chunk loss.

The interface's MTU is certain. A smaller one that the kernel has learned from an ICMP message may
be forged, so it is worth a warning and no more.
"""

import errno
import socket
import warnings

from testbed.transport.core.wire import HEADER_BYTES
from testbed.transport.net.addresses import IP_HEADER_BYTES, Host
from testbed.transport.net.udp_socket import refuse_fragments

# From <linux/in.h>, <linux/in6.h> and <linux/udp.h>; Python's socket module lacks them.
_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
_UDP_CORK = 1
_UDP_BYTES = 8
_DISCARD = 9


def _probe(local: Host, peer: Host) -> socket.socket:
    """A socket that sends nothing: the kernel holds what it is given until it is closed."""
    probe = socket.socket(local.family, socket.SOCK_DGRAM)
    try:
        refuse_fragments(probe)
        probe.setsockopt(socket.IPPROTO_UDP, _UDP_CORK, 1)
        probe.bind(local.at(0))
        probe.connect(peer.at(_DISCARD))
    except OSError:
        probe.close()
        raise
    return probe


def path_mtu_bytes(local: Host, peer: Host) -> int | None:
    """The MTU that the kernel assumes for the path between two addresses; None: no route."""
    try:
        with _probe(local, peer) as probe:
            return probe.getsockopt(*_MTU[local.family])
    except OSError:
        return None


def _fits_interface(datagram_bytes: int, local: Host, peer: Host) -> bool:
    try:
        with _probe(local, peer) as probe:
            probe.send(bytes(datagram_bytes))
    except OSError as error:
        return error.errno != errno.EMSGSIZE
    return True


def largest_chunk_bytes(
    mtu_bytes: int, family: socket.AddressFamily = socket.AF_INET, trailer_bytes: int = 0
) -> int:
    """The largest chunk whose datagram is one packet of at most `mtu_bytes`."""
    overhead_bytes = IP_HEADER_BYTES[family] + _UDP_BYTES + HEADER_BYTES + trailer_bytes
    return (mtu_bytes - overhead_bytes) // 4 * 4


def check_chunk_fits(chunk_bytes: int, *, local: Host, peer: Host, trailer_bytes: int = 0) -> None:
    """Raises ValueError for a chunk whose packet the interface towards the peer cannot send.

    Warns where the kernel has heard of a smaller MTU on the path.
    """
    mtu_bytes = path_mtu_bytes(local, peer)
    if mtu_bytes is None:
        return
    largest = largest_chunk_bytes(mtu_bytes, local.family, trailer_bytes)
    if chunk_bytes <= largest:
        return
    problem = (
        f"chunk_bytes is {chunk_bytes}, too large for the path to {peer} with an MTU of "
        f"{mtu_bytes} bytes; valid: up to {largest}"
    )
    if not _fits_interface(HEADER_BYTES + chunk_bytes + trailer_bytes, local, peer):
        raise ValueError(problem)
    warnings.warn(
        f"{problem}, if the ICMP message that said so was no forgery", RuntimeWarning, stacklevel=2
    )
