"""What a receiver that acknowledges reports, when, and how much of the way that takes."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import ProtocolError
from testbed.transport.core.messages import (
    SENT,
    Ack,
    ControlMessage,
    ControlParser,
    MessageType,
    body_limits,
)
from testbed.transport.core.wire import ACK_REQUESTED, SEND_INDEX_MODULUS, U32_MAX
from testbed.transport.policies.repair.selective import AcknowledgingReceiver
from tests.transport import transfer_parts


def body_of(*, first=0, echo=0xFFFF, held_us=0, probed=0, flags=0):
    return struct.pack("!HHIIHH", first, echo, held_us, probed, 0, flags)


@pytest.mark.parametrize(
    ("malformed", "named"),
    [
        (body_of()[:-1], "ACK with a body of 15 bytes"),
        (b"", "ACK with a body of 0 bytes"),
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
    ack = Ack(
        first=0,
        arrived=np.zeros(0, dtype=np.bool_),
        echo=None,
        held_s=held_s,
        probed=0,
    )
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


@given(st.binary(min_size=0, max_size=64))
def test_random_reports_are_read_or_refused(body):
    try:
        report = Ack.parse(body)
    except ProtocolError:
        return
    assert report.first < SEND_INDEX_MODULUS
    assert len(report.arrived) == 8 * (len(body) - 16)


def progress(now_s):
    return transfer_parts.progress(np.zeros(9), now_s=now_s, first_s=None, last_s=None)


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
    spoke = []
    for every in (1, 2):  # nothing is lost, half is
        receiver = reporting(1e-4, 0.0025, loss_overheads=(0.0125, 0.005))
        times = []
        for number in range(0, 2048, every):
            receiver.on_arrivals(stamps(number), number * 1e-3, True)
            times += [number for _ in receiver.on_data(progress(number * 1e-3))]
        spoke.append(times)
    assert 2048 * 1514 * 0.0025 / 200 < len(spoke[0]) < 2048 * 1514 * 0.0025 / 80
    assert len(spoke[1]) > 1.3 * len(spoke[0])
    # The first 256 losses are among the first 512 datagrams, and are worth more than later ones.
    first, last = (sum(low <= at < low + 512 for at in spoke[1]) for low in (0, 1536))
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
    spoke = 0
    for number in range(200):
        slow.on_arrivals(stamps(number), number * 0.1, True)
        spoke += len(slow.on_data(progress(number * 0.1)))
        if (deadline_s := slow.deadline_s(progress(number * 0.1))) is not None:
            spoke += len(slow.on_deadline(progress(deadline_s)))
    assert 10 < spoke <= 30


@pytest.mark.parametrize("body", [b"", b"\0\0\0"])
def test_a_probe_without_a_count_is_refused_by_those_who_need_it(body):
    with pytest.raises(ProtocolError, match="PROBE with a body"):
        reporting().on_probe(ControlMessage(MessageType.PROBE, 6, body), progress(0.0), True)
