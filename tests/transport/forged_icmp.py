"""Run in an empty network namespace: forges "fragmentation needed" at a socket, then sends."""

import errno
import socket
import struct
import subprocess
import warnings

import numpy as np

from testbed.transport.net.addresses import resolve
from testbed.transport.net.batched_io import SOL_UDP, UDP_SEGMENT
from testbed.transport.net.path_mtu import check_chunk_fits, path_mtu_bytes
from testbed.transport.net.udp_socket import UdpSocket

SENDER, RECEIVER = "127.0.0.2", "127.0.0.3"
CLAIMED_MTU_BYTES = 600
SIZE = 1472


def checksum(raw: bytes) -> int:
    total = sum(struct.unpack(f"!{len(raw) // 2}H", raw))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def forge(source: tuple[str, int], destination: tuple[str, int]) -> None:
    """Sends `source` the message that a router between it and `destination` would send."""
    ends = (socket.inet_aton(source[0]), socket.inet_aton(destination[0]))
    cause = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1500, 1, 0x4000, 64, 17, 0, *ends)
    cause += struct.pack("!HHHH", source[1], destination[1], 1480, 0)
    head = struct.pack("!BBHHH", 3, 4, 0, 0, CLAIMED_MTU_BYTES)
    total = struct.pack("!H", checksum(head + cause))
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.bind((destination[0], 0))
        raw.sendto(head[:2] + total + head[4:] + cause, (source[0], 0))


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    ours, peer = (UdpSocket(local=(ip, 0), datagram_bytes=SIZE) for ip in (SENDER, RECEIVER))
    ours.set_peer((RECEIVER, peer.port))
    peer.set_peer((SENDER, ours.port))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((SENDER, 0))
        for port in (ours.port, other.getsockname()[1]):
            forge((SENDER, port), (RECEIVER, peer.port))
        pieces = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", SIZE))]
        try:
            other.sendmsg([bytes(3 * SIZE)], pieces, 0, ("127.0.0.3", peer.port))
            print("like most programs: sent")
        except OSError as error:
            print("like most programs:", errno.errorcode[error.errno or 0])
    sent = ours.send(np.zeros((100, SIZE), dtype=np.uint8))
    rows, _ = peer.receive()
    print(
        f"ours: {sent} sent, {len(rows)} arrived, segmentation {ours.segmentation}, "
        f"{dict(ours.counters)}"
    )
    local, other_host = (resolve(address, what="host") for address in (SENDER, RECEIVER))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_chunk_fits(1456, local=local, peer=other_host)
    outcome = "a warning" if len(caught) == 1 else f"{len(caught)} warnings"
    known = path_mtu_bytes(local, other_host)
    print(f"the kernel believes in {known}; a chunk of 1456 bytes: {outcome}")
    try:
        check_chunk_fits(65536, local=local, peer=other_host)
        print("a chunk of 65536 bytes: allowed")
    except ValueError:
        print("a chunk of 65536 bytes: refused")


main()
