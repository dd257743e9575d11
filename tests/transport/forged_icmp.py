"""Run in an empty network namespace: forges an ICMP message at a socket, then sends.

`forged_icmp.py 4` forges IPv4's "fragmentation needed", `forged_icmp.py 6` IPv6's "packet too big".
"""

import errno
import socket
import struct
import subprocess
import sys
import warnings

import numpy as np

from testbed.transport.net.addresses import SocketAddress, resolve
from testbed.transport.net.path_mtu import check_chunk_fits, largest_chunk_bytes, path_mtu_bytes
from testbed.transport.net.udp_socket import SOL_UDP, UDP_SEGMENT, UdpSocket

ADDRESSES = {"4": ("127.0.0.2", "127.0.0.3"), "6": ("fd00::2", "fd00::3")}
CLAIMED_MTU_BYTES = {"4": 600, "6": 1280}  # 1280: the least that IPv6 allows


def checksum(raw: bytes) -> int:
    total = sum(struct.unpack(f"!{len(raw) // 2}H", raw))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def fragmentation_needed(ends: tuple[bytes, bytes], udp_header: bytes) -> bytes:
    cause = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1500, 1, 0x4000, 64, 17, 0, *ends) + udp_header
    head = struct.pack("!BBHHH", 3, 4, 0, 0, CLAIMED_MTU_BYTES["4"])
    return head[:2] + struct.pack("!H", checksum(head + cause)) + head[4:] + cause


def packet_too_big(ends: tuple[bytes, bytes], udp_header: bytes) -> bytes:
    cause = struct.pack("!IHBB16s16s", 6 << 28, 1460, 17, 64, *ends) + udp_header
    return struct.pack("!BBHI", 2, 0, 0, CLAIMED_MTU_BYTES["6"]) + cause  # the kernel adds the sum


FORGED = {
    "4": (socket.IPPROTO_ICMP, fragmentation_needed),
    "6": (socket.IPPROTO_ICMPV6, packet_too_big),
}


def forge(version: str, source: SocketAddress, destination: SocketAddress) -> None:
    """Sends `source` the message that a router between it and `destination` would send."""
    protocol, message = FORGED[version]
    family = resolve(source[0], what="source").family
    ends = socket.inet_pton(family, source[0]), socket.inet_pton(family, destination[0])
    with socket.socket(family, socket.SOCK_RAW, protocol) as raw:
        raw.bind((destination[0], 0))
        udp_header = struct.pack("!HHHH", source[1], destination[1], 1460, 0)
        raw.sendto(message(ends, udp_header), (source[0], 0))


def main(version: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if version == "6":
        for address in ADDRESSES[version]:
            subprocess.run(["ip", "addr", "add", address, "dev", "lo", "nodad"], check=True)
    sender, receiver = (resolve(address, what="host") for address in ADDRESSES[version])
    chunk_bytes = largest_chunk_bytes(1500, sender.family)
    size = chunk_bytes + 16
    ours, peer = (UdpSocket(local=each.at(0), datagram_bytes=size) for each in (sender, receiver))
    ours.set_peer(receiver.at(peer.port))
    peer.set_peer(sender.at(ours.port))
    with socket.socket(sender.family, socket.SOCK_DGRAM) as other:
        other.bind(sender.at(0))
        for port in (ours.port, other.getsockname()[1]):
            forge(version, sender.at(port), receiver.at(peer.port))
        pieces = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))]
        try:
            other.sendmsg([bytes(3 * size)], pieces, 0, receiver.at(peer.port))
            print("like most programs: sent")
        except OSError as error:
            print("like most programs:", errno.errorcode[error.errno or 0])
    sent = ours.send(np.zeros((100, size), dtype=np.uint8))
    rows, _ = peer.receive()
    print(
        f"ours: {sent} sent, {len(rows)} arrived, segmentation {ours.segmentation}, "
        f"{dict(ours.counters)}"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_chunk_fits(chunk_bytes, local=sender, peer=receiver)
    outcome = "a warning" if len(caught) == 1 else f"{len(caught)} warnings"
    known = path_mtu_bytes(sender, receiver)
    print(f"the kernel believes in {known}; a chunk of {chunk_bytes} bytes: {outcome}")
    try:
        check_chunk_fits(65536, local=sender, peer=receiver)
        print("a chunk of 65536 bytes: allowed")
    except ValueError:
        print("a chunk of 65536 bytes: refused")


main(sys.argv[1])
