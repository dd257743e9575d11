"""What is appended to datagrams: CRC-32C against accidents, keyed BLAKE2b against forgers."""

import hashlib
import sys
from collections import Counter

import numpy as np
import pytest

from testbed.transport.native.hot_path import LIBRARY, WHY_NONE
from testbed.transport.net.sealing import (
    TRAILER_BYTES,
    Authentication,
    CompiledAuthentication,
    seal,
)
from tests.transport.test_udp_socket import collect, linked

SIZE = 1468
KEY = bytes(range(32))
FAULTS = {"crc": "corrupt", "mac": "forged"}


def batch(count):
    return np.random.default_rng(count).integers(0, 256, (count, SIZE), dtype=np.uint8)


def seals(kind, key=KEY):
    return seal(kind, key, is_server=True), seal(kind, key, is_server=False)


@pytest.fixture(params=FAULTS)
def kind(request):
    return request.param


@pytest.fixture
def pair(kind):
    with linked(SIZE + TRAILER_BYTES[kind]) as (one, two):
        one.seal, two.seal = seals(kind)
        yield one, two


@pytest.mark.parametrize("count", [1, 44, 200])
def test_sealed_datagrams_arrive(pair, count):
    for sender, receiver in (pair, pair[::-1]):
        assert sender.send(batch(count)) == count
        assert np.array_equal(collect(receiver, count), batch(count))
        assert not receiver.counters


def test_altered_datagrams_are_counted_and_dropped(pair, kind, monkeypatch):
    one, two = pair
    plain = one.seal.seal

    def altered(frames):
        rows = plain(frames)
        rows[3, 700] ^= 1  # the chunk
        rows[5, 2] ^= 128  # the header
        rows[7, -1] ^= 1  # the trailer itself
        return rows

    monkeypatch.setattr(one.seal, "seal", altered)
    one.send(batch(10))
    assert np.array_equal(collect(two, 7), np.delete(batch(10), [3, 5, 7], axis=0))
    assert two.counters == {FAULTS[kind]: 3}


def test_the_checksum_is_castagnoli_in_network_order():
    frame = np.zeros((1, SIZE), dtype=np.uint8)
    frame[0, :9] = np.frombuffer(b"123456789", dtype=np.uint8)
    register = 0xFFFFFFFF
    for byte in frame[0].tolist():
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    expected = (register ^ 0xFFFFFFFF).to_bytes(4, "big")
    assert seals("crc")[0].seal(frame)[0, -4:].tobytes() == expected


def test_authentication_is_keyed_blake2b_with_the_senders_side():
    frame = batch(1)
    for ours, side in zip(seals("mac"), (b"server", b"worker"), strict=True):
        expected = hashlib.blake2b(frame.tobytes(), key=KEY, digest_size=16, person=side).digest()
        assert ours.seal(frame)[0, -16:].tobytes() == expected


@pytest.mark.skipif(LIBRARY is None, reason=f"compared with C: {WHY_NONE}")
@pytest.mark.parametrize("is_server", [True, False])
def test_compiled_authentication_has_the_bytes_and_the_judgement_of_hashlib_s(is_server):
    assert isinstance(seal("mac", KEY, is_server=is_server), CompiledAuthentication)
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
            judgements = []
            for judge in theirs:
                counters: Counter[str] = Counter()
                assert np.array_equal(judge.open(compiled, counters), frames[~guilty])
                judgements.append(counters)
            assert (
                judgements[0]
                == judgements[1]
                == Counter({"forged": guilty.sum()} if any(guilty) else {})
            )


def test_another_key_or_the_senders_own_datagrams_are_forgeries():
    server, worker = seals("mac")
    other, _ = seals("mac", bytes(32))
    for forger in (other, worker):  # `worker` hears its own datagrams again
        counters: Counter[str] = Counter()
        assert len(worker.open(forger.seal(batch(3)).copy(), counters)) == 0
        assert counters == {"forged": 3}
    assert np.array_equal(worker.open(server.seal(batch(3)), Counter()), batch(3))


def test_nothing_may_be_appended_and_keys_have_one_size():
    assert seal("none", b"", is_server=True) is None
    with pytest.raises(ValueError, match="a key of 0 bytes; valid: 32"):
        seal("mac", b"", is_server=True)


def test_without_its_package_the_checksum_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ValueError, match=r"extra \[crc\]"):
        seal("crc", b"", is_server=True)
