"""Addresses of IPv4 and IPv6. Names are resolved once, when an endpoint opens."""

import ipaddress
import socket
import struct
from dataclasses import dataclass

# What Python's sockets take: address and port, in IPv6 also the flow label and the interface.
SocketAddress = tuple[str, int] | tuple[str, int, int, int]

PACKED_BYTES = 32  # a sockaddr_in6 has 28
IP_HEADER_BYTES = {socket.AF_INET: 20, socket.AF_INET6: 40}


@dataclass(frozen=True)
class Host:
    """A host's address, without a port."""

    family: socket.AddressFamily
    _socket_address: SocketAddress

    def at(self, port: int) -> SocketAddress:
        """The address of one of its ports."""
        address, _, *rest = self._socket_address
        return (address, port, *rest)  # type: ignore[return-value]

    def sent(self, source: SocketAddress) -> bool:
        """Whether a connection or datagram from `source` comes from this host."""
        # The kernel writes an interface behind an address of a single link, a resolver may not.
        bare = tuple(address[0].partition("%")[0] for address in (source, self._socket_address))
        return bare[0] == bare[1] and source[3:] == self._socket_address[3:]

    @property
    def is_loopback(self) -> bool:
        """Whether no packet to it leaves this system."""
        return ipaddress.ip_address(self._socket_address[0].partition("%")[0]).is_loopback

    @property
    def ip_header_bytes(self) -> int:
        return IP_HEADER_BYTES[self.family]

    def __str__(self) -> str:
        return self._socket_address[0]


def resolve(
    host: str, family: socket.AddressFamily = socket.AddressFamily.AF_UNSPEC, *, what: str
) -> Host:
    """The first address of a name, or of an address as text; OSError, which names `what` it is."""
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
    """ADDRESS:PORT, or [ADDRESS]:PORT in IPv6."""
    ip, port, *rest = address
    return f"[{ip}]:{port}" if rest else f"{ip}:{port}"


def packed(address: SocketAddress) -> bytes:
    """The sockaddr_in or sockaddr_in6, padded with zeros as the kernel does."""
    ip, port, *rest = address
    if rest:
        body = struct.pack("!HI", port, 0) + socket.inet_pton(socket.AF_INET6, ip.partition("%")[0])
        raw = struct.pack("=H", socket.AF_INET6) + body + struct.pack("=I", rest[1])
    else:
        raw = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(ip)
    return raw.ljust(PACKED_BYTES, b"\0")
