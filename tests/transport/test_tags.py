"""Sealed datagrams: keyed BLAKE2b against forgers and accidents, AES-256-GCM against readers."""

import ctypes
import functools
import hashlib
from typing import Any

import numpy as np
import pytest

from testbed.transport.errors import ProtocolError
from testbed.transport.messages import Cipher, Welcome
from testbed.transport.native.fast_path import LIBRARY, WHY_NONE
from testbed.transport.net.tls import (
    TAG_BYTES,
    Authentication,
    CompiledAuthentication,
    aes,
    authentication,
)
from testbed.transport.wire import new_frames
from tests.transport.test_udp_socket import collect, linked

SIZE = 1468
KEY = bytes(range(32))
SESSION = 0x5E55104
AES: Any = aes()
C: Any = LIBRARY
NEEDS_AES = pytest.mark.skipif(AES is None, reason="no C, or no libcrypto.so.3")
encryption = functools.partial(authentication, cipher=Cipher.AES_256_GCM, session=SESSION)


def batch(count):
    frames = np.random.default_rng(count).integers(0, 256, (count, SIZE), dtype=np.uint8)
    frames[:, :4] = list(SESSION.to_bytes(4, "big"))
    return frames


def seals(kind, key=KEY, **settings):
    return tuple(kind(key, is_server=is_server, **settings) for is_server in (True, False))


@pytest.fixture(
    params=[Authentication, authentication, pytest.param(encryption, marks=NEEDS_AES)],
    ids=["hashlib", "compiled", "encrypted"],
)
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


# AES-256-GCM.


def in_epochs(epoch_bits, **settings):
    return seals(CompiledAuthentication, evp=AES, epoch_bits=epoch_bits, **settings)


def keyed(key, *, encrypts):
    """A context of libcrypto with this key."""
    new = ctypes.CFUNCTYPE(ctypes.c_void_p)(AES.new_context)
    take = ctypes.CFUNCTYPE(
        ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int
    )(AES.init)
    context = new()
    assert take(context, AES.aes, None, key, None, encrypts) == 1
    return context


def by_libcrypto(key, nonce, head, text, *, encrypts=True):
    """Returns whether it could, and the text with its tag."""
    room = 0 if not encrypts else TAG_BYTES
    buffer = np.frombuffer(bytes(text) + bytes(room), dtype=np.uint8).copy()
    context, evp = keyed(key, encrypts=encrypts), ctypes.addressof(AES)
    place, count = buffer.ctypes.data, len(buffer) - TAG_BYTES
    done = C.aes_gcm(evp, context, nonce, head.ctypes.data, len(head), place, count, encrypts)
    return bool(done), buffer.tobytes()


@NEEDS_AES
def test_a_test_case_that_was_submitted_to_nist():
    """The last of those with a key of 256 bits and the usual nonce, which has all parts."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    head = np.frombuffer(bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2"), dtype=np.uint8)
    text = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    expected = bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
        "76fc6ece0f4e1768cddf8853bb2d551b"
    )
    assert by_libcrypto(key, nonce, head, text) == (True, expected)
    opened, plain = by_libcrypto(key, nonce, head, expected, encrypts=False)
    assert opened and plain[:-TAG_BYTES] == text
    wrong = expected[:-1] + bytes([expected[-1] ^ 1])
    assert not by_libcrypto(key, nonce, head, wrong, encrypts=False)[0]


@NEEDS_AES
def test_each_datagram_has_the_key_of_its_epoch_and_a_nonce_of_side_and_number():
    for is_worker, side in enumerate(in_epochs(2, session=SESSION)):
        rows = side.seal(batch(11))
        for number, (row, frame) in enumerate(zip(rows, batch(11), strict=True)):
            person = (b"aes server", b"aes worker")[is_worker]
            epoch = (number >> 2).to_bytes(8, "little")
            key = hashlib.blake2b(epoch, key=KEY, digest_size=32, person=person).digest()
            nonce = is_worker.to_bytes(4, "big") + number.to_bytes(8, "big")
            expected = by_libcrypto(key, nonce, frame[:16].copy(), frame[16:])
            assert (True, row[16:].tobytes()) == expected
            assert row[:16].tobytes() == number.to_bytes(4, "big") + frame[4:16].tobytes()


@NEEDS_AES
def test_keys_change_and_what_comes_late_or_after_a_long_loss_is_opened():
    ours, theirs = in_epochs(2, session=SESSION)
    rows, frames = ours.seal(batch(100)).copy(), batch(100)
    order = [*range(7, -1, -1), *range(60, 64), 59, *range(64, 100), 9]
    for number in order:
        assert np.array_equal(theirs.open(rows[[number]]), frames[[number]])
    assert theirs._it.theirs.number == 99


@NEEDS_AES
@pytest.mark.parametrize("begin", [2**32 - 2, 2**40 - 2])
def test_numbers_go_on_beyond_the_half_that_travels(begin):
    ours, theirs = in_epochs(23, session=SESSION)
    ours._it.ours.number, theirs._it.theirs.number = begin, begin - 2**31 + 5
    assert np.array_equal(theirs.open(ours.seal(batch(4))), batch(4))
    assert theirs._it.theirs.number == begin + 3


@NEEDS_AES
def test_a_number_before_the_first_is_a_forgery():
    ours, theirs = in_epochs(23, session=SESSION)
    ours._it.ours.number = 2**32 - 1
    assert not len(theirs.open(ours.seal(batch(1))))


@NEEDS_AES
def test_a_datagram_that_is_sealed_again_has_another_nonce():
    server, worker = seals(encryption)
    frames = batch(1)
    rows = np.concatenate([side.seal(frames).copy() for side in (server, worker) * 50])
    assert len({row[16:].tobytes() for row in rows}) == 100
    assert frames[0, 16:48].tobytes() not in rows.tobytes()


@NEEDS_AES
def test_forged_datagrams_do_not_hinder_the_genuine_ones():
    server, worker = seals(encryption)
    rows = server.seal(batch(40)).copy()
    forged = np.random.default_rng(1).integers(0, 256, (40, SIZE + TAG_BYTES), dtype=np.uint8)
    mixed = np.stack([forged, rows], axis=1).reshape(80, -1)
    assert np.array_equal(worker.open(mixed), batch(40))
    for another in (seals(encryption, bytes(32))[0], worker):  # `worker` hears its own again
        assert not len(worker.open(another.seal(batch(3))))
    assert not len(worker.open(authentication(KEY, is_server=True).seal(batch(3))))


@NEEDS_AES
def test_datagrams_that_are_too_short_are_not_sealed():
    short = np.zeros((1, 15), dtype=np.uint8)
    with pytest.raises(OSError, match="cannot encrypt"):
        encryption(KEY, is_server=True).seal(short)
    assert not len(encryption(KEY, is_server=True).open(np.zeros((1, 31), dtype=np.uint8)))


def test_keys_are_not_shown():
    assert "key" not in repr(Welcome(session=1, data_port=2, key=KEY))
