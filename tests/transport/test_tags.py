"""Tags behind datagrams: keyed BLAKE2b against forgers and accidents."""

import hashlib

import numpy as np
import pytest

from testbed.transport.errors import ProtocolError
from testbed.transport.native.fast_path import LIBRARY, WHY_NONE
from testbed.transport.net.tls import (
    TAG_BYTES,
    Authentication,
    CompiledAuthentication,
    authentication,
)
from testbed.transport.wire import new_frames
from tests.transport.test_udp_socket import collect, linked

SIZE = 1468
KEY = bytes(range(32))


def batch(count):
    return np.random.default_rng(count).integers(0, 256, (count, SIZE), dtype=np.uint8)


def seals(kind, key=KEY):
    return kind(key, is_server=True), kind(key, is_server=False)


@pytest.fixture(params=[Authentication, authentication], ids=["hashlib", "compiled"])
def pair(request):
    with linked(SIZE + TAG_BYTES) as (one, two):
        one.seal, two.seal = seals(request.param)
        yield one, two


@pytest.mark.parametrize("count", [1, 44, 200])
def test_sealed_datagrams_arrive(pair, count):
    for sender, receiver in (pair, pair[::-1]):
        assert sender.send(batch(count)) == count
        assert np.array_equal(collect(receiver, count), batch(count))
        assert not receiver.counters


def test_altered_datagrams_are_counted_and_dropped(pair, monkeypatch):
    one, two = pair
    plain = one.seal.seal

    def altered(frames):
        rows = plain(frames).copy()
        rows[3, 700] ^= 1  # the chunk
        rows[5, 2] ^= 128  # the header
        rows[7, -1] ^= 1  # the trailer itself
        return rows

    monkeypatch.setattr(one.seal, "seal", altered)
    one.send(batch(10))
    assert np.array_equal(collect(two, 7), np.delete(batch(10), [3, 5, 7], axis=0))
    assert two.counters == {"forged": 3}


def test_authentication_is_keyed_blake2b_with_the_senders_side():
    frame = batch(1)
    for ours, side in zip(seals(authentication), (b"server", b"worker"), strict=True):
        expected = hashlib.blake2b(frame.tobytes(), key=KEY, digest_size=16, person=side).digest()
        assert ours.seal(frame)[0, -16:].tobytes() == expected


@pytest.mark.skipif(LIBRARY is None, reason=f"compared with C: {WHY_NONE}")
@pytest.mark.parametrize("is_server", [True, False])
def test_compiled_authentication_has_the_bytes_and_the_judgement_of_hashlib_s(is_server):
    assert isinstance(authentication(KEY, is_server=is_server), CompiledAuthentication)
    generator = np.random.default_rng(8)
    for size in (1, 7, 8, 127, 128, 129, 255, 256, 257, SIZE):
        key = generator.bytes(32)
        ours, theirs = (
            [kind(key, is_server=side) for kind in (CompiledAuthentication, Authentication)]
            for side in (is_server, not is_server)
        )
        for count in (1, 2, 7, 8, 9, 16, 17):
            frames = generator.integers(0, 256, (count, size), dtype=np.uint8)
            compiled, reference = (sealing.seal(frames).copy() for sealing in ours)
            assert np.array_equal(compiled, reference)
            guilty = generator.random(count) < 0.3
            for row in np.flatnonzero(guilty):
                compiled[row, generator.integers(size + 16)] ^= 1 << generator.integers(8)
            for judge in theirs:
                assert np.array_equal(judge.open(compiled.copy()), frames[~guilty])


def test_another_key_or_the_senders_own_datagrams_are_forgeries():
    server, worker = seals(authentication)
    other, _ = seals(authentication, bytes(32))
    for forger in (other, worker):  # `worker` hears its own datagrams again
        assert len(worker.open(forger.seal(batch(3)))) == 0
    assert np.array_equal(worker.open(server.seal(batch(3))), batch(3))


@pytest.mark.parametrize("kind", [Authentication, authentication])
def test_tags_go_where_frames_have_room_for_them_and_else_into_a_copy(kind):
    frames = new_frames(9, SIZE - 16, tag_bytes=TAG_BYTES)
    frames[:] = batch(9)
    ours, theirs = seals(kind)
    for part, in_place in ((frames[:4], True), (frames[2:6], False), (batch(4), False)):
        plain = part.copy()
        rows = ours.seal(part)
        assert np.shares_memory(rows, part) == in_place
        assert np.array_equal(theirs.open(rows), plain)


def test_keys_have_one_size():
    with pytest.raises(ProtocolError, match="a key of 0 bytes; valid: 32"):
        authentication(b"", is_server=True)
