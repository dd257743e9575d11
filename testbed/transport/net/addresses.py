"""Addresses of IPv4 and IPv6, resolved once when an endpoint opens, and the MTU between two."""

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from testbed.transport.wire import HEADER_BYTES

# What Python's sockets take: address and port, in IPv6 also the flow label and the interface.
SocketAddress = tuple[str, int] | tuple[str, int, int, int]

PACKED_BYTES = 32  # a sockaddr_in6 has 28
IP_HEADER_BYTES = {socket.AF_INET: 20, socket.AF_INET6: 40}
_UDP_BYTES = 8
_DISCARD_PORT = 9
# Python's socket module lacks the numbers of <linux/in.h>, <linux/in6.h> and <linux/udp.h>.
_UDP_CORK = 1
_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
# PROBE sets IPv4's flag against fragments and ignores what ICMP messages say of the path, because
# anyone may have sent them.
MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10, 3),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 3),
}


@dataclass(frozen=True)
class Host:
    family: socket.AddressFamily
    _socket_address: SocketAddress

    def at(self, port: int) -> SocketAddress:
        address, _, *rest = self._socket_address
        return (address, port, *rest)  # type: ignore[return-value]

    def is_source(self, source: SocketAddress) -> bool:
        """Says whether a connection or datagram from `source` comes from this host."""
        # The kernel writes an interface behind an address of a single link, a resolver may not.
        bare = tuple(address[0].partition("%")[0] for address in (source, self._socket_address))
        return bare[0] == bare[1] and source[3:] == self._socket_address[3:]

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self._socket_address[0].partition("%")[0]).is_loopback

    def __str__(self) -> str:
        return self._socket_address[0]


def resolve(
    host: str, family: socket.AddressFamily = socket.AddressFamily.AF_UNSPEC, *, what: str
) -> Host:
    """Resolves a name, or an address as text; OSError, which names `what` it is."""
    try:
        answer, *_ = socket.getaddrinfo(host, 0, family, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        version = {socket.AF_INET: " as an IPv4 address", socket.AF_INET6: " as an IPv6 address"}
        reason = getattr(error, "strerror", None) or error
        raise OSError(
            f"{what} is {host!r}, which cannot be resolved{version.get(family, '')}: {reason}; "
            "valid: an address or a host's name, of one IP version on all sides"
        ) from None
    return Host(answer[0], answer[4])  # type: ignore[arg-type]


def in_words(address: SocketAddress) -> str:
    """Returns ADDRESS:PORT, or [ADDRESS]:PORT in IPv6."""
    ip, port, *rest = address
    return f"[{ip}]:{port}" if rest else f"{ip}:{port}"


def packed(address: SocketAddress) -> bytes:
    """Packs a sockaddr_in or sockaddr_in6, padded with zeros as the kernel does."""
    ip, port, *rest = address
    if rest:
        body = struct.pack("!HI", port, 0) + socket.inet_pton(socket.AF_INET6, ip.partition("%")[0])
        raw = struct.pack("=H", socket.AF_INET6) + body + struct.pack("=I", rest[1])
    else:
        raw = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(ip)
    return raw.ljust(PACKED_BYTES, b"\0")


# Fragments would multiply loss. An ICMP message that claims a smaller MTU may be forged, so only
# the local interface's limit counts.


@contextmanager
def _probe(local: Host, peer: Host) -> Iterator[socket.socket]:
    """Opens a socket that sends nothing: the kernel holds its data until it is closed."""
    with socket.socket(local.family, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(*MTU_DISCOVER[local.family])
        probe.setsockopt(socket.IPPROTO_UDP, _UDP_CORK, 1)
        probe.bind(local.at(0))
        probe.connect(peer.at(_DISCARD_PORT))
        yield probe


def path_mtu_bytes(local: Host, peer: Host) -> int | None:
    """Asks the kernel for the MTU of the path between two addresses; None: no route."""
    try:
        with _probe(local, peer) as probe:
            return probe.getsockopt(*_MTU[local.family])
    except OSError:
        return None


def largest_chunk_bytes(
    mtu_bytes: int, family: socket.AddressFamily = socket.AF_INET, trailer_bytes: int = 0
) -> int:
    """Returns the largest chunk whose datagram is one packet of at most `mtu_bytes`."""
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
