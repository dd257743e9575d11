"""IPv4 addresses, resolved once when an endpoint opens, and the MTU between two."""

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.transport.wire import HEADER_BYTES

SocketAddress = tuple[str, int]  # address and port, as Python's sockets take them

PACKED_BYTES = 32  # ADDRESS_BYTES of the C code
_IP_UDP_BYTES = 20 + 8
_DISCARD_PORT = 9
# Python's socket module lacks the numbers of <linux/in.h> and <linux/udp.h>.
_UDP_CORK = 1
_MTU = (socket.IPPROTO_IP, 14)
# PROBE sets the flag against fragments, which would multiply loss, and ignores what ICMP messages
# say of the path, because anyone may have sent them: only the local interface's limit counts.
MTU_DISCOVER = (socket.IPPROTO_IP, 10, 3)


def resolve(host: str, *, what: str) -> str:
    """Resolves a name, or an address as text; OSError, which names `what` it is."""
    try:
        answer, *_ = socket.getaddrinfo(host, 0, socket.AF_INET, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(
            f"{what} is {host!r}, which cannot be resolved: {reason}; "
            "valid: an IPv4 address, or the name of a host that has one"
        ) from None
    return str(answer[4][0])


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def in_words(address: SocketAddress) -> str:
    ip, port = address
    return f"{ip}:{port}"


def packed(address: SocketAddress) -> bytes:
    """Packs a sockaddr_in, padded with zeros."""
    ip, port = address
    raw = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(ip)
    return raw.ljust(PACKED_BYTES, b"\0")


@contextmanager
def _probe(local: str, peer: str) -> Iterator[socket.socket]:
    """Opens a socket that sends nothing: the kernel holds its data until it is closed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(*MTU_DISCOVER)
        probe.setsockopt(socket.IPPROTO_UDP, _UDP_CORK, 1)
        probe.bind((local, 0))
        probe.connect((peer, _DISCARD_PORT))
        yield probe


def path_mtu_bytes(local: str, peer: str) -> int | None:
    """Asks the kernel for the MTU of the path between two addresses; None: no route."""
    try:
        with _probe(local, peer) as probe:
            return probe.getsockopt(*_MTU)
    except OSError:
        return None


def largest_chunk_bytes(mtu_bytes: int, trailer_bytes: int = 0) -> int:
    """Returns the largest chunk whose datagram is one packet of at most `mtu_bytes`."""
    return (mtu_bytes - _IP_UDP_BYTES - HEADER_BYTES - trailer_bytes) // 4 * 4


def too_large(chunk_bytes: int, *, local: str, peer: str, trailer_bytes: int = 0) -> str:
    """Says that a chunk does not fit the path, and what would."""
    problem = f"chunk_bytes is {chunk_bytes}, too large for the path to {peer}"
    mtu_bytes = path_mtu_bytes(local, peer)
    if mtu_bytes is None:
        return f"{problem}; set a smaller one"
    largest = largest_chunk_bytes(mtu_bytes, trailer_bytes)
    return f"{problem} with an MTU of {mtu_bytes} bytes; valid: up to {largest}"


def check_chunk_fits(chunk_bytes: int, *, local: str, peer: str, trailer_bytes: int = 0) -> None:
    """Raises ValueError for a chunk whose packet the interface towards the peer cannot send."""
    try:
        with _probe(local, peer) as probe:
            probe.send(bytes(HEADER_BYTES + chunk_bytes + trailer_bytes))
    except OSError as error:
        if error.errno == errno.EMSGSIZE:
            problem = too_large(chunk_bytes, local=local, peer=peer, trailer_bytes=trailer_bytes)
            raise ValueError(problem) from None
