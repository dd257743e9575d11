"""Control messages: their form, the parser, and what BITMAPs and ACKs report, and when."""

import contextlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport.errors import ProtocolError
from testbed.transport.messages import (
    SENT,
    VERSION,
    Ack,
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
    pack_arrivals,
    pack_bitmap,
    unpack_arrivals,
    unpack_bitmap,
)
from testbed.transport.order import InOrder, Shuffled
from testbed.transport.repair.selective import AcknowledgingReceiver
from testbed.transport.wire import (
    ACK_REQUESTED,
    DEFAULT_CHUNK_BYTES,
    SEND_INDEX_MODULUS,
    U32_MAX,
    wire_bytes,
)
from tests.transport import virtual
from tests.transport.virtual import (
    Network,
    bernoulli,
    layout_of,
    random_payload,
    transfer,
    unpaced,
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
    assert not parser.pending


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_random_bytes_give_messages_or_a_protocol_error_and_bounded_memory(pieces):
    parser = ControlParser(LIMITS)
    with contextlib.suppress(ProtocolError):
        for message in (part for piece in pieces for part in parser.feed(piece)):
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
        MessageType.HELLO: (11, 1 << 20),
        MessageType.WELCOME: (7, 39),
        MessageType.REFUSED: (0, 1024),
        MessageType.PROBE: (4, 5),
        MessageType.BITMAP: (1, 5 + bitmap_bytes),
        MessageType.LATE_BITMAP: (1, 5 + bitmap_bytes),
        MessageType.STOP: (0, bitmap_bytes),
        MessageType.ACK: (16, 16 + (1 << 12)),
        MessageType.ANNOUNCE: (0, 1 << 16),
        MessageType.FAILED: (0, 1024),
        MessageType.ENERGY: (1, CHUNKS),
        MessageType.PIECE: (36, 36 + (1 << 16)),
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


def test_bitmaps_begin_with_the_least_significant_bit():
    mask = np.zeros(10, dtype=np.bool_)
    mask[[0, 3, 9]] = True
    assert pack_bitmap(mask) == bytes([0b00001001, 0b00000010])


@pytest.mark.parametrize(("body", "named"), [(bytes(3), "3 bytes"), (b"\0\x04", "beyond the last")])
def test_bitmaps_of_another_size_are_refused(body, named):
    with pytest.raises(ProtocolError, match=named):
        unpack_bitmap(body, 10)


def test_introductions_survive_the_way():
    hello = Hello(session=2**32 - 1, name="wörker-1", data_port=47000, layout=b"\1\2\3", cipher=1)
    assert Hello.parse(hello.message().body) == hello
    shortest = Hello(session=1, name="")
    assert Hello.parse(shortest.message().body) == shortest
    with pytest.raises(ProtocolError, match="HELLO with a body of 10 bytes"):
        Hello.parse(shortest.message().body[:-1])
    welcome = Welcome(session=5, data_port=47001, key=bytes(32), cipher=1)
    assert Welcome.parse(welcome.message().body) == welcome
    for length in (6, 8, 38, 40):
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
        Hello.parse(struct.pack("!IHHHB", 1, 0, 3, 2, 0) + texts)


# What BITMAPs carry, and how little of the traffic it is.


def numbers(*chunks):
    return np.array(chunks, dtype=np.int64)


@given(st.integers(1, 400), st.data())
def test_arrivals_survive_the_way_within_the_limit_of_their_size(chunk_count, data):
    chunks = sorted(data.draw(st.sets(st.integers(0, chunk_count - 1))))
    body = pack_arrivals(numbers(*chunks))
    assert unpack_arrivals(body, chunk_count).tolist() == chunks
    smallest, largest = body_limits(chunk_count)[MessageType.BITMAP]
    assert smallest <= len(body) <= largest
    assert len(body) <= 1 + 4 * len(chunks)


def test_neighbours_are_a_range_and_scattered_chunks_a_list():
    assert pack_arrivals(numbers(300, 301, 303, 308)) == bytes([0, 0, 0, 1, 44, 0b1011, 1])
    assert pack_arrivals(numbers(3, 300)) == bytes([1, 0, 0, 0, 3, 0, 0, 1, 44])
    assert pack_arrivals(numbers(2**32 - 2)) == b"\1\xff\xff\xff\xfe"
    assert pack_arrivals(numbers()) == b"\1"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "form None in 0 bytes"),
        (b"\2", "form 2"),
        (b"\0\0\0\0\0", "form 0 in 5 bytes"),
        (b"\1\0\0\0", "form 1 in 4 bytes"),
        (b"\0\0\0\0\0\2", "longer than what arrived"),
        (b"\0\0\0\0\0\0", "longer than what arrived"),
        (b"\1\0\0\0\3\0\0\0\3", "does not ascend"),
        (b"\1\0\0\0\n", "chunk 10, beyond the last of 10"),
        (b"\0\0\0\0\2\1\1", "chunk 10, beyond the last of 10"),
        (b"\0\xff\xff\xff\xff\3", "beyond the last"),
    ],
)
def test_anything_else_is_a_protocol_error(body, named):
    with pytest.raises(ProtocolError, match=named):
        unpack_arrivals(body, 10)


@given(st.binary(max_size=60), st.integers(1, 200))
def test_random_bodies_are_read_or_refused(body, chunk_count):
    try:
        chunks = unpack_arrivals(body, chunk_count)
    except ProtocolError:
        return
    assert (np.diff(chunks) > 0).all()
    assert not len(chunks) or 0 <= chunks[0] <= chunks[-1] < chunk_count


def reported(loss, layout, room, **settings):
    """It returns both sides' reports of a transfer to a receiver with room for so many."""
    outcome = transfer(
        random_payload(layout),
        layout,
        network=Network(survives=bernoulli(loss, 1), delay_s=5e-5, rate_bps=5e7),
        path=unpaced(layout, room=room),
        **settings,
    )
    return outcome.sender.report("receiver"), outcome.receiver.report("sender")


@pytest.mark.parametrize(("loss", "order"), [(0.0, InOrder()), (0.1, InOrder()), (0.5, Shuffled())])
def test_control_is_below_a_hundredth_of_the_data_and_grows_as_the_payload(loss, order):
    control_bytes = []
    for chunks in (2000, 4000):
        # To a buffer that an ordinary user gets.
        sent, got = reported(loss, layout_of(chunks), 140, order=order)
        control_bytes.append(sent.control_bytes + got.control_bytes)
        full_bytes = wire_bytes(sent.chunks_sent, DEFAULT_CHUNK_BYTES)  # as datagrams usually are
        assert 0 < control_bytes[-1] < 0.006 * full_bytes
    assert control_bytes[1] / control_bytes[0] == pytest.approx(2, rel=0.25)


@pytest.mark.parametrize("window", [2, 5, math.inf])
@pytest.mark.parametrize("loss", [0.0, 0.3, 0.8])
def test_both_sides_count_the_same_passes_whatever_the_window(window, loss):
    sent, got = reported(loss, layout_of(200), window)
    assert sent.passes == got.passes
    assert loss or sent.passes == 1


# What ACKs report, and when.


def body_of(*, first=0, echo=0xFFFF, held_us=0, probed=0, flags=0):
    return struct.pack("!HHIIHH", first, echo, held_us, probed, 0, flags)


@pytest.mark.parametrize(
    ("malformed", "named"),
    [
        (body_of(flags=2), "flags 0x2; valid: 0 and 1"),
        (body_of(first=SEND_INDEX_MODULUS), "send indices 32768 and 65535"),
        (body_of(echo=SEND_INDEX_MODULUS), "send indices 0 and 32768"),
        (body_of(echo=0xFFFE), "send indices 0 and 65534"),
    ],
)
def test_what_is_no_ack_is_refused(malformed, named):
    with pytest.raises(ProtocolError, match=named):
        Ack.parse(malformed)


@pytest.mark.parametrize(
    ("held_s", "expected"), [(-1.0, 0.0), (1e9, U32_MAX / 1e6), (2.5e-6, 2e-6)]
)
def test_what_does_not_fit_its_field_is_cut_to_it(held_s, expected):
    ack = Ack(first=0, arrived=np.zeros(0, np.bool_), echo=None, held_s=held_s, probed=0)
    read = Ack.parse(ack.message(6).body)
    assert read.held_s == expected
    assert (read.echo, read.at_once) == (None, False)


@given(
    st.integers(0, SEND_INDEX_MODULUS - 1),
    st.lists(st.booleans(), max_size=300),
    st.one_of(st.none(), st.integers(0, SEND_INDEX_MODULUS - 1)),
    st.floats(0, 5000),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_reports_survive_the_way(first, bits, echo, held_s, probed, at_once):
    mask = np.array(bits, dtype=np.bool_)
    fields = {"first": first, "echo": echo, "probed": probed, "at_once": at_once}
    message = Ack(arrived=mask, held_s=held_s, **fields).message(6)
    (got,) = ControlParser(body_limits(1)).feed(message.encode())
    back = Ack.parse(got.body)
    assert np.flatnonzero(back.arrived).tolist() == np.flatnonzero(mask).tolist()
    assert {name: getattr(back, name) for name in fields} == fields
    assert back.held_s == pytest.approx(min(held_s, 2**32 / 1e6), abs=1e-6)


@given(st.binary(min_size=16, max_size=64))
def test_random_reports_are_read_or_refused(body):
    try:
        report = Ack.parse(body)
    except ProtocolError:
        return
    assert report.first < SEND_INDEX_MODULUS
    assert len(report.arrived) == 8 * (len(body) - 16)


def progress(now_s):
    return virtual.progress(np.zeros(9), now_s=now_s, first_s=None, last_s=None)


def reporting(interval_s=1e-3, overhead=0.0125, **options):
    return AcknowledgingReceiver(
        transfer=6, datagram_wire_bytes=1514, interval_s=interval_s, overhead=overhead, **options
    )


def stamps(*numbers, ask=0):
    return np.array(
        [n // SEND_INDEX_MODULUS << 16 | n % SEND_INDEX_MODULUS | ask for n in numbers],
        dtype=np.uint32,
    )


def test_reports_name_what_came_across_the_turn_of_the_send_index():
    receiver = reporting()
    probe = ControlMessage(MessageType.PROBE, 6, SENT.pack(SEND_INDEX_MODULUS - 3))
    assert len(receiver.on_probe(probe, progress(0.0), True)) == 1
    numbers = [SEND_INDEX_MODULUS + step for step in (-2, 0, 2)]
    receiver.on_arrivals(stamps(*numbers, ask=ACK_REQUESTED), 1.0, True)
    (message,) = receiver.on_data(progress(1.25))
    report = Ack.parse(message.body)
    assert (report.first, report.echo) == (SEND_INDEX_MODULUS - 2, 2)
    assert np.flatnonzero(report.arrived).tolist() == [0, 2, 4]
    assert report.held_s == pytest.approx(0.25)
    assert (report.probed, report.at_once) == (SEND_INDEX_MODULUS - 3, False)


def test_what_an_ack_cannot_name_is_no_news_of_the_path():
    receiver = reporting()
    receiver.on_arrivals(stamps(18_001), 1.0, True)
    newest, credit_bytes = receiver._newest, receiver._credit_bytes
    receiver.on_arrivals(stamps(1), 1.0, True)
    assert (receiver._newest, receiver._credit_bytes) == (newest, credit_bytes)
    report = Ack.parse(receiver._acknowledge(1.0).body)
    assert (report.first, int(report.arrived.sum())) == (18_001, 1)


def test_what_waited_in_the_socket_does_not_time_the_path():
    receiver = reporting()
    receiver.on_arrivals(stamps(0, ask=ACK_REQUESTED), 1.0, False)
    (message,) = receiver.on_data(progress(1.0))
    assert Ack.parse(message.body).echo is None
    probe = ControlMessage(MessageType.PROBE, 6, SENT.pack(1))
    for attentive in (False, True):
        (message,) = receiver.on_probe(probe, progress(1.0), attentive)
        assert Ack.parse(message.body).at_once == attentive


def test_losses_are_worth_more_reports_than_arrivals():
    reports = []
    for every in (1, 2):  # nothing is lost, half is
        receiver = reporting(1e-4, 0.0025, loss_overheads=(0.0125, 0.005))
        times = []
        for number in range(0, 2048, every):
            receiver.on_arrivals(stamps(number), number * 1e-3, True)
            times += [number for _ in receiver.on_data(progress(number * 1e-3))]
        reports.append(times)
    assert 2048 * 1514 * 0.0025 / 200 < len(reports[0]) < 2048 * 1514 * 0.0025 / 80
    assert len(reports[1]) > 1.3 * len(reports[0])
    # The first 256 losses are among the first 512 datagrams, and are worth more than later ones.
    first, last = (sum(low <= at < low + 512 for at in reports[1]) for low in (0, 1536))
    assert first > 1.5 * last > 0


def test_unasked_reports_keep_their_distance_and_their_budget():
    receiver, times, cost = reporting(), [], 0
    for number in range(2000):  # nine of ten are lost
        now_s = number * 1.2e-4
        if number % 10 == 0:
            receiver.on_arrivals(stamps(number), now_s, True)
            for message in receiver.on_data(progress(now_s)):
                times.append(now_s)
                cost += message.wire_bytes + 66
    assert len(times) > 50
    assert np.diff(times).min() >= 1e-3
    assert cost <= 0.0125 * 2000 * 1514 + 300
    # Slow data: fewer reports, not dearer ones.
    slow = reporting()
    reports = 0
    for number in range(200):
        slow.on_arrivals(stamps(number), number * 0.1, True)
        reports += len(slow.on_data(progress(number * 0.1)))
        if (deadline_s := slow.deadline_s(progress(number * 0.1))) is not None:
            reports += len(slow.on_deadline(progress(deadline_s)))
    assert 10 < reports <= 30


@pytest.mark.parametrize("body", [b"", b"\0\0\0"])
def test_a_probe_without_a_count_is_refused_by_those_who_need_it(body):
    with pytest.raises(ProtocolError, match="PROBE with a body"):
        reporting().on_probe(ControlMessage(MessageType.PROBE, 6, body), progress(0.0), True)
