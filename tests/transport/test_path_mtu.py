"""A chunk has to fit the path, or the network would cut it into fragments."""

import errno
import math
import re
import socket

import numpy as np
import pytest

from testbed.transport import PayloadLayout, open_endpoint
from testbed.transport.core.wire import CHUNK_BITS, DEFAULT_CHUNK_BYTES, fields, new_frames
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
from tests.transport.loopback import site
from tests.transport.own_namespace import told_by

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


@pytest.mark.parametrize(("version", "claimed", "chunk"), [("4", 600, 1456), ("6", 1280, 1436)])
def test_an_icmp_message_that_anyone_can_forge_ends_nothing(version, claimed, chunk):
    assert told_by("tests.transport.forged_icmp", version, timeout_s=60).splitlines() == [
        f"like most programs: {errno.errorcode[errno.EMSGSIZE]}",
        "ours: 100 sent, 100 arrived, segmentation True, {}",
        f"the kernel believes in {claimed}; a chunk of {chunk} bytes: a warning",
        "a chunk of 65536 bytes: refused",
    ]


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
    output = told_by("tests.transport.shrinking_mtu", kind, timeout_s=100)
    rounds = re.findall(r"(\S+): round (\d) whole True (\S+) s", output)
    assert len(rounds) == 8, output
    assert max(float(took_s) for _, _, took_s in rounds) < longest_s, output
    warned = re.findall(r"warned: the path to 10.9.0.\d takes no packets of 1500 bytes", output)
    assert len(warned) == (0 if kind == "loss" else 2), output
    assert ("too-large" in output) == (kind == "interface")
