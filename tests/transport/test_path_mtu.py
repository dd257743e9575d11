"""A chunk has to fit the path, or the network would cut it into fragments."""

import errno
import math
import socket
import struct
import time
import warnings

import numpy as np
import pytest

from testbed.lab.kernel import rtnetlink
from testbed.lab.kernel.commands import run
from testbed.lab.kernel.namespaces import entered, hold
from testbed.lab.kernel.rtnetlink import Rtnetlink
from testbed.lab.kernel.shaping import inside
from testbed.transport import PayloadLayout, open_endpoint
from testbed.transport.core.wire import (
    CHUNK_BITS,
    DEFAULT_CHUNK_BYTES,
    HEADER_BYTES,
    fields,
    new_frames,
)
from testbed.transport.net import path_mtu
from testbed.transport.net.addresses import resolve
from testbed.transport.net.path_mtu import (
    Joiner,
    Sizes,
    check_chunk_fits,
    cut,
    largest_chunk_bytes,
    path_mtu_bytes,
    trial_of,
)
from testbed.transport.net.udp_socket import SOL_UDP, UDP_SEGMENT, UdpSocket
from tests.own_network import alone, drop
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
    monkeypatch.setattr(path_mtu, "path_mtu_bytes", lambda local, peer: 1500)
    monkeypatch.setattr(path_mtu, "_fits_interface", lambda *_: False)
    check_chunk_fits(1456, local=LOCAL, peer=OTHER)
    with pytest.raises(ValueError, match=r"1460, too large for the path to 127.0.0.2 .* to 1456"):
        check_chunk_fits(1460, local=LOCAL, peer=OTHER)
    place = site(layout=PayloadLayout([("w", 10_000)], 8192))
    with pytest.raises(ValueError, match="chunk_bytes is 8192, too large for the path"):
        open_endpoint(place.server())


def icmp_checksum(raw):
    total = sum(struct.unpack(f"!{len(raw) // 2}H", raw))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)


def forge(source, destination, claimed_bytes):
    """Sends `source` what a router would that has a smaller MTU on the way to `destination`."""
    six = len(source) == 4
    family = socket.AF_INET6 if six else socket.AF_INET
    ends = b"".join(socket.inet_pton(family, each[0]) for each in (source, destination))
    udp_header = struct.pack("!HHHH", source[1], destination[1], 1460, 0)
    if six:  # "packet too big"; the kernel adds the sum
        cause = struct.pack("!IHBB", 6 << 28, 1460, 17, 64) + ends + udp_header
        message = struct.pack("!BBHI", 2, 0, 0, claimed_bytes) + cause
    else:  # "fragmentation needed"
        cause = struct.pack("!BBHHHBBH", 0x45, 0, 1500, 1, 0x4000, 64, 17, 0) + ends + udp_header
        message = struct.pack("!BBHHH", 3, 4, 0, 0, claimed_bytes) + cause
        message = message[:2] + icmp_checksum(message) + message[4:]
    protocol = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    with socket.socket(family, socket.SOCK_RAW, protocol) as raw:
        raw.bind((destination[0], 0))
        raw.sendto(message, (source[0], 0))


def after_a_forged_message(near, far, claimed_bytes):
    """What most programs' sockets and ours do then, and what becomes of chunks."""
    if ":" in near:
        for address in (near, far):
            run(["ip", "address", "add", address, "dev", "lo", "nodad"])
    near, far = (resolve(address, what="host") for address in (near, far))
    chunk_bytes = largest_chunk_bytes(1500, near.family)
    size = chunk_bytes + HEADER_BYTES
    ours, peer = (UdpSocket(local=each.at(0), datagram_bytes=size) for each in (near, far))
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
    with pytest.warns(RuntimeWarning, match="was no forgery"):
        check_chunk_fits(chunk_bytes, local=near, peer=far)
    with pytest.raises(ValueError, match="too large for the path"):
        check_chunk_fits(65536, local=near, peer=far)


@pytest.mark.parametrize(
    "case", [("127.0.0.2", "127.0.0.3", 600), ("fd00::2", "fd00::3", 1280)], ids=["IPv4", "IPv6"]
)
def test_an_icmp_message_that_anyone_can_forge_ends_nothing(case):
    alone(after_a_forged_message, *case)


@pytest.mark.parametrize("pieces", [1, 2, 3, 64])
@pytest.mark.parametrize("chunk_bytes", [64, 100, 1456])
def test_pieces_of_several_transmissions_make_a_chunk_whatever_their_order(pieces, chunk_bytes):
    generator = np.random.default_rng(pieces * chunk_bytes)
    frames = new_frames(300, chunk_bytes)
    frames[:] = generator.integers(0, 256, frames.shape, dtype=np.uint8)
    records = fields(frames, chunk_bytes)
    records["session"], records["transfer"] = 7, np.arange(300) % 2
    upper = np.uint32(63 << CHUNK_BITS)
    records["sequence"] = np.arange(300) // 2 | upper
    rows = cut(frames, pieces)
    lost = generator.random(len(rows)) < 0.4
    lost[:pieces] = True
    sent = np.concatenate([generator.permutation(rows[~lost]), generator.permutation(rows[lost])])
    strangers = rows.copy()
    strangers[:, :4] ^= 1  # of another session
    joiner = Joiner(7, pieces, chunk_bytes)
    got = [joiner.join(np.concatenate([part, strangers[:5]])) for part in np.array_split(sent, 9)]
    joined = np.concatenate(got)
    assert joiner.wrong_session == 5
    assert sorted(frame.tobytes() for frame in joined) == sorted(
        frame.tobytes() for frame in frames
    )
    assert not len(joiner.join(sent[:0]))


def test_memory_for_pieces_is_bounded_whatever_they_name():
    rows = cut(new_frames(2**14, 1456), 2)[::2]
    fields(rows, 728)["sequence"] = np.arange(2**14) * 2
    joiner = Joiner(0, 2, 1456)
    assert not len(joiner.join(np.ascontiguousarray(rows)))
    assert joiner._rows.nbytes <= 8 << 20


def test_sizes_are_those_of_packets_that_common_paths_take():
    sizes = Sizes(1, PayloadLayout([("w", 10**6)]), local=LOCAL, peer=OTHER, trailer_bytes=16)
    assert sizes.packet_bytes(1) == 1500 + 16
    for pieces, most in zip(sizes.likely, (1500,), strict=True):
        assert sizes.packet_bytes(pieces) <= most < sizes.packet_bytes(pieces - 1)
    jumbo = Sizes(1, PayloadLayout([("w", 10**6)], 8192), local=LOCAL, peer=OTHER, trailer_bytes=0)
    assert jumbo.packet_bytes(next(pieces for pieces in jumbo.likely if pieces > 2)) <= 1500
    assert sizes.wire_bytes[2] == 2 * (14 + sizes.packet_bytes(2))
    head = sizes.trial(99, 2)
    assert len(head) == sizes.datagram_bytes(2) and trial_of(head, 1) == 99
    assert trial_of(head, 2) is None


def over_a_path_that_changes(kind):
    """Four rounds over a path that changes after the second one.

    `interface`: the worker's has a smaller MTU, so it refuses what it sends, and drops what comes.
    `hole`: the network drops larger packets silently, both ways. `loss`: it drops nine of ten
    datagrams of any size. How long each round took, the warnings, and what was counted.
    """
    ends = "10.9.0.1", "10.9.0.2"
    far = hold("far")
    with Rtnetlink() as kernel:
        kernel.send([rtnetlink.veth("near", "far", peer_pid=far)])
    for pid, name, address in ((None, "near", ends[0]), (far, "far", ends[1])):
        with Rtnetlink(pid) as kernel:
            index = kernel.index(name)
            kernel.send([rtnetlink.up(index), rtnetlink.address(index, f"{address}/24")])
        # A real network has no packets that are cut later.
        run([*inside(pid), *f"ip link set {name} gso_max_segs 1".split()])
    # Many enough that the bitmap of a STOP fills more than one segment of TCP.
    layout = PayloadLayout([("w", 364 * 12_500)])
    place = site(layout=layout, rate_bps=200e6, peer_timeout_s=8.0, insecure=True)
    payload = random_payload(layout)

    def worker():
        with (
            entered(far),
            open_endpoint(
                place.worker(bind_address=ends[1], peers={"server": ends[0]})
            ) as endpoint,
        ):
            for number in range(4):
                endpoint.send(2 * number, {"server": payload})
                into = layout.new_buffer()
                endpoint.receive(2 * number + 1, 0, {"server": into})
                assert np.array_equal(into, payload)
            return endpoint.counters()

    took_s = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        working = in_thread(worker)
        config = place.server(bind_address=ends[0], peers={"worker-1": ends[1]})
        with open_endpoint(config) as server:
            for number in range(4):
                if number == 2 and kind == "interface":
                    run([*inside(far), "ip", "link", "set", "far", "mtu", "1300"])
                elif number == 2:
                    nine_of_ten = "udp length > 8 numgen random mod 10 < 9"
                    for pid in (None, far):
                        drop("meta length > 1300" if kind == "hole" else nine_of_ten, pid=pid)
                began_s, into = time.monotonic(), layout.new_buffer()
                server.receive(2 * number, 0, {"worker-1": into})
                server.send(2 * number + 1, {"worker-1": into})
                assert np.array_equal(into, payload)
                took_s.append(time.monotonic() - began_s)
            counters = [server.counters(), working.result(timeout=30)]
    return took_s, [str(warning.message) for warning in caught], counters


@pytest.mark.parametrize(
    ("kind", "longest_s"),
    [
        *(("interface", 7), ("hole", 12)),
        pytest.param("loss", math.inf, marks=pytest.mark.long),  # in virtual time: test_stalls
    ],
)
def test_a_path_whose_mtu_shrinks_goes_on_and_one_that_loses_most_is_not_taken_for_one(
    kind, longest_s
):
    took_s, warned, counters = alone(over_a_path_that_changes, kind)
    assert max(took_s) < longest_s
    words = "the path to 10.9.0.{} takes no packets of 1500 bytes"
    expected = [] if kind == "loss" else [words.format(side) for side in (1, 2)]
    assert [each[: len(words) - 1] for each in sorted(warned)] == expected
    assert any("too-large" in each for each in counters) == (kind == "interface")
