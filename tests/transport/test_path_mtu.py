"""A chunk has to fit the path, or the network would cut it into fragments."""

import errno
import socket
import struct

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6
from scapy.packet import Packet

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.namespaces import entered, hold
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import inside
from testbed.transport import PeerLost, open_endpoint
from testbed.transport.net import addresses
from testbed.transport.net.addresses import (
    check_chunk_fits,
    largest_chunk_bytes,
    path_mtu_bytes,
    resolve,
)
from testbed.transport.net.udp import SOL_UDP, UDP_SEGMENT, UdpSocket
from testbed.transport.wire import DEFAULT_CHUNK_BYTES, HEADER_BYTES
from tests.own_network import alone
from tests.transport.loopback import in_thread, site
from tests.transport.virtual import random_payload

LOCAL, OTHER, NOBODY = (
    resolve(address, what="host") for address in ("127.0.0.1", "127.0.0.2", "192.0.2.1")
)


def test_the_default_chunk_fills_an_ethernet_frame():
    assert largest_chunk_bytes(1500) == DEFAULT_CHUNK_BYTES
    assert largest_chunk_bytes(1500, socket.AF_INET6) == DEFAULT_CHUNK_BYTES - 20
    assert largest_chunk_bytes(1500, trailer_bytes=16) == DEFAULT_CHUNK_BYTES - 16


def test_the_kernel_knows_the_path():
    mtu_bytes = path_mtu_bytes(LOCAL, OTHER)
    assert mtu_bytes is not None and mtu_bytes >= 65535
    assert path_mtu_bytes(NOBODY, LOCAL) is None  # an address that nobody has


def test_a_chunk_that_would_be_fragmented_is_refused(monkeypatch):
    check_chunk_fits(1456, local=LOCAL, peer=OTHER)
    check_chunk_fits(1456, local=NOBODY, peer=OTHER)  # to bind its socket will fail
    monkeypatch.setattr(addresses, "path_mtu_bytes", lambda local, peer: 1500)
    with pytest.raises(ValueError, match=r"65536, too large for the path to 127.0.0.2 .* to 1456"):
        check_chunk_fits(65536, local=LOCAL, peer=OTHER)


def forge(source, destination, claimed_bytes):
    """Sends `source` what a router would that has a smaller MTU on the way to `destination`."""
    ends = {"src": source[0], "dst": destination[0]}
    datagram = UDP(sport=source[1], dport=destination[1], len=1460, chksum=0)
    message: Packet
    if len(source) == 4:  # the kernel adds the sum
        family, protocol = socket.AF_INET6, socket.IPPROTO_ICMPV6
        message = ICMPv6PacketTooBig(mtu=claimed_bytes, cksum=0) / IPv6(**ends, plen=1460, nh=17)
    else:
        family, protocol = socket.AF_INET, socket.IPPROTO_ICMP
        needed = ICMP(type="dest-unreach", code="fragmentation-needed", nexthopmtu=claimed_bytes)
        message = needed / IP(**ends, len=1500, flags="DF")
    with socket.socket(family, socket.SOCK_RAW, protocol) as raw:
        raw.bind((destination[0], 0))
        raw.sendto(bytes(message / datagram), (source[0], 0))


def after_a_forged_message(near, far, claimed_bytes):
    """Checks what other sockets and ours do then, and what becomes of chunks."""
    if ":" in near:
        for address in (near, far):
            run(["ip", "address", "add", address, "dev", "lo", "nodad"])
    near, far = (resolve(address, what="host") for address in (near, far))
    chunk_bytes = largest_chunk_bytes(1500, near.family)
    size = chunk_bytes + HEADER_BYTES
    ours, peer = (UdpSocket(local=end.at(0), datagram_bytes=size) for end in (near, far))
    ours.set_peer(far.at(peer.port))
    peer.set_peer(near.at(ours.port))
    with socket.socket(near.family, socket.SOCK_DGRAM) as other:
        other.bind(near.at(0))
        for port in (ours.port, other.getsockname()[1]):
            forge(near.at(port), far.at(peer.port), claimed_bytes)
        pieces = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))]
        with pytest.raises(OSError) as most:
            other.sendmsg([bytes(3 * size)], pieces, 0, far.at(peer.port))
    assert most.value.errno == errno.EMSGSIZE
    assert ours.send(np.zeros((100, size), dtype=np.uint8)) == 100
    assert len(peer.receive()[0]) == 100
    assert ours.segmentation and not ours.counters
    assert path_mtu_bytes(near, far) == claimed_bytes
    check_chunk_fits(chunk_bytes, local=near, peer=far)
    with pytest.raises(ValueError, match="too large for the path"):
        check_chunk_fits(65536, local=near, peer=far)


@pytest.mark.parametrize(
    "case", [("127.0.0.2", "127.0.0.3", 600), ("fd00::2", "fd00::3", 1280)], ids=["IPv4", "IPv6"]
)
def test_an_icmp_message_that_anyone_can_forge_ends_nothing(case):
    alone(after_a_forged_message, *case)


def over_an_interface_whose_mtu_shrinks():
    """Both sides' reasons to end, after a first transfer of full chunks."""
    ends = "10.9.0.1", "10.9.0.2"
    far = hold("far")
    with Rtnetlink() as kernel:
        kernel.send([rtnetlink.veth("near", "far", peer_pid=far)])
    for pid, name, address in ((None, "near", ends[0]), (far, "far", ends[1])):
        with Rtnetlink(pid) as kernel:
            interface = kernel.interface(name)
            kernel.send([rtnetlink.up(interface), rtnetlink.address(interface, f"{address}/24")])
    place = site(rate_bps=200e6, peer_timeout_s=8.0, insecure=True)
    payload = random_payload(place.layout)

    def worker():
        config = place.worker(bind_address=ends[1], peers={"server": ends[0]})
        with entered(far), open_endpoint(config) as endpoint:
            endpoint.send(0, {"server": payload})
            run([*inside(far), "ip", "link", "set", "far", "mtu", "1300"])
            with pytest.raises(PeerLost) as lost:
                endpoint.send(2, {"server": payload})
            return str(lost.value)

    working = in_thread(worker)
    config = place.server(bind_address=ends[0], peers={"worker-1": ends[1]})
    with open_endpoint(config) as server:
        into = place.layout.new_buffer()
        server.receive(0, 0, {"worker-1": into})
        with pytest.raises(PeerLost) as lost:
            server.receive(2, 0, {"worker-1": into})
        return [working.result(timeout=30), str(lost.value)]


def test_an_interface_whose_mtu_shrinks_ends_both_sides_with_the_size_to_set():
    words = (
        "chunk_bytes is 1456, too large for the path to 10.9.0.1 with an MTU of 1300 bytes; "
        "valid: up to 1256"
    )
    for reason in alone(over_an_interface_whose_mtu_shrinks):
        assert words in reason
