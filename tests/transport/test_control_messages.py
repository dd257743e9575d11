"""Control messages and their parser."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import (
    VERSION,
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
    pack_bitmap,
    unpack_bitmap,
)

CHUNKS = 77
LIMITS = body_limits(CHUNKS)
transfers = st.integers(0, 2**32 - 1)
messages = st.one_of(
    [
        st.builds(
            ControlMessage, st.just(kind), transfers, st.binary(min_size=least, max_size=most)
        )
        for kind, least, most in (
            (MessageType.STOP, 0, 0),
            (MessageType.PROBE, 4, 5),
            (MessageType.BITMAP, 1, 15),
            (MessageType.ACK, 16, 40),
            (MessageType.ANNOUNCE, 0, 40),
        )
    ]
)


def test_a_message_is_a_twelve_byte_header_and_its_body():
    message = ControlMessage(MessageType.BITMAP, 0x01020304, b"\xaa\xbb")
    assert message.encode() == bytes([5, VERSION, 0, 0, 1, 2, 3, 4, 0, 0, 0, 2, 0xAA, 0xBB])
    stop = ControlMessage(MessageType.STOP, 7)
    assert stop.encode() == bytes([6, VERSION, 0, 0, 0, 0, 0, 7] + [0] * 4)


@given(st.lists(messages, max_size=8), st.data())
def test_any_split_of_the_stream_gives_the_same_messages(sent, data):
    stream = b"".join(message.encode() for message in sent)
    parser = ControlParser(LIMITS)
    got, at = [], 0
    while at < len(stream):
        end = at + data.draw(st.integers(1, len(stream) - at))
        got += parser.feed(stream[at:end])
        at = end
    assert got == sent
    assert parser.pending_bytes == 0


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_random_bytes_give_messages_or_a_protocol_error_and_bounded_memory(pieces):
    parser = ControlParser(LIMITS)
    with contextlib.suppress(ProtocolError):
        for message in (each for piece in pieces for each in parser.feed(piece)):
            smallest, largest = LIMITS[message.type]
            assert smallest <= len(message.body) <= largest
    with contextlib.suppress(ProtocolError):
        Hello.parse(b"".join(pieces).ljust(8, b"x"))


def header(kind=6, version=VERSION, reserved=0, length=0):
    return struct.pack("!BBHII", kind, version, reserved, 0, length)


@pytest.mark.parametrize(
    ("stream", "named"),
    [
        (header(kind=0), "type 0"),
        (header(version=1), "version 1"),
        (header(reserved=1), "reserved"),
        (header(length=11), "STOP with a body of 11"),
        (header(kind=4, length=0), "PROBE with a body of 0 bytes, not 4 to 5"),
        (header(kind=5, length=0), "BITMAP with a body of 0 bytes, not 1 to 15"),
        (header(kind=1, length=2**32 - 1), "HELLO"),
    ],
)
def test_a_malformed_header_is_refused_before_its_body_is_awaited(stream, named):
    with pytest.raises(ProtocolError, match=named):
        ControlParser(LIMITS).feed(stream)


@pytest.mark.parametrize("kind", MessageType)
def test_the_smallest_and_the_largest_body_are_taken_and_no_other(kind):
    bitmap_bytes = 10
    smallest, largest = {
        MessageType.HELLO: (10, 1 << 20),
        MessageType.WELCOME: (6, 38),
        MessageType.REFUSED: (0, 1024),
        MessageType.PROBE: (4, 5),
        MessageType.BITMAP: (1, 5 + bitmap_bytes),
        MessageType.LATE_BITMAP: (1, 5 + bitmap_bytes),
        MessageType.STOP: (0, bitmap_bytes),
        MessageType.ACK: (16, 16 + (1 << 12)),
        MessageType.ANNOUNCE: (0, 1 << 16),
        MessageType.FAILED: (0, 1024),
        MessageType.WORTH: (1, CHUNKS),
        MessageType.TRIED: (4, 4),
        MessageType.PIECES: (4, 4),
    }.get(kind, (0, 0))
    for size in {smallest, largest}:
        assert len(ControlParser(LIMITS).feed(ControlMessage(kind, 0, bytes(size)).encode())) == 1
    for size in {max(0, smallest - 1), largest + 1} - {smallest}:
        with pytest.raises(ProtocolError, match=kind.name):
            ControlParser(LIMITS).feed(header(kind=kind, length=size))


def test_a_type_that_is_not_expected_is_refused():
    parser = ControlParser({MessageType.HELLO: LIMITS[MessageType.HELLO]})
    with pytest.raises(ProtocolError, match="unexpected type 6"):
        parser.feed(ControlMessage(MessageType.STOP).encode())


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_bitmaps_survive_the_way(bits):
    mask = np.array(bits, dtype=np.bool_)
    body = pack_bitmap(mask)
    assert len(body) == -(-len(bits) // 8)
    assert unpack_bitmap(body, len(bits)).tolist() == bits


def test_bitmaps_begin_with_the_least_significant_bit():
    mask = np.zeros(10, dtype=np.bool_)
    mask[[0, 3, 9]] = True
    assert pack_bitmap(mask) == bytes([0b00001001, 0b00000010])


@pytest.mark.parametrize(("body", "named"), [(bytes(3), "3 bytes"), (b"\0\x04", "beyond the last")])
def test_bitmaps_of_another_size_are_refused(body, named):
    with pytest.raises(ProtocolError, match=named):
        unpack_bitmap(body, 10)


def test_a_hello_that_is_too_large_is_refused_with_the_cure():
    largest = (1 << 20) - 10 - 1  # its fixed fields and the name
    assert len(Hello(session=1, name="w", layout=bytes(largest)).message().body) == 1 << 20
    with pytest.raises(ValueError, match="merge tensors"):
        Hello(session=1, name="w", layout=bytes(largest + 1)).message()


def test_introductions_survive_the_way():
    hello = Hello(session=2**32 - 1, name="wörker-1", data_port=47000, layout=b"\1\2\3")
    assert Hello.parse(hello.message().body) == hello
    shortest = Hello(session=1, name="")
    assert Hello.parse(shortest.message().body) == shortest
    with pytest.raises(ProtocolError, match="HELLO with a body of 9 bytes"):
        Hello.parse(shortest.message().body[:-1])
    welcome = Welcome(session=5, data_port=47001)
    assert Welcome.parse(welcome.message().body) == welcome
    for length in (5, 7, 37, 39):
        with pytest.raises(ProtocolError, match=f"WELCOME with a body of {length} bytes"):
            Welcome.parse(bytes(length))


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (b"", "texts of 5 bytes but 0 left"),
        (b"abcd", "texts of 5 bytes but 4 left"),
        (b"ab\xffde", "not UTF-8"),
        (b"abcd\xff", "not UTF-8"),
    ],
)
def test_a_hello_whose_texts_are_cut_or_unreadable_is_refused(texts, named):
    with pytest.raises(ProtocolError, match=named):
        Hello.parse(struct.pack("!IHHH", 1, 0, 3, 2) + texts)
