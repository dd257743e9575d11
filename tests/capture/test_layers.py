"""The scapy layers say the same as the transport's own encoders and parsers."""

import itertools
import struct
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.packet import Packet, Raw

from testbed.capture.layers import Control, ControlPiece, Datagram
from testbed.transport import wire
from testbed.transport.control_datagrams import DatagramStream
from testbed.transport.messages import (
    ControlMessage,
    ControlParser,
    MessageType,
)

u16, u32 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
quickly = settings(max_examples=30, deadline=None)
HEADER = [name for name in wire.datagram_dtype(4).names or () if name != "chunk"]


def as_datagram(values, chunk):
    frames = wire.new_frames(1, len(chunk))
    record = wire.fields(frames, len(chunk))[0]
    for name in HEADER:
        record[name] = values[name]
    record["sequence"] |= values["turn"] << wire.CHUNK_BITS
    record["chunk"] = np.frombuffer(chunk, dtype=np.uint8)
    return frames.tobytes()


header_values = st.fixed_dictionaries(
    {name: u16 if wire.datagram_dtype(4)[name].itemsize == 2 else u32 for name in HEADER}
    | {"sequence": st.integers(0, (1 << wire.CHUNK_BITS) - 1), "turn": st.integers(0, 63)}
)


@quickly
@given(header_values, st.binary(min_size=8, max_size=8))
def test_a_datagram_is_read_and_crafted_as_wire_makes_it(values, chunk):
    packet = Datagram(as_datagram(values, chunk))
    assert {name: getattr(packet, name) for name in values} == values
    assert [field.name for field in Datagram.fields_desc if field.name != "turn"] == HEADER
    assert bytes(packet.payload) == chunk
    assert bytes(Datagram(**values) / chunk) == as_datagram(values, chunk)


@quickly
@given(st.sampled_from(MessageType), u32, st.binary(max_size=20))
def test_control_messages_are_read_and_crafted_like_controls_own(kind, transfer, body):
    message = ControlMessage(kind, transfer, body)
    packet = Control(message.encode())
    assert (packet.type, packet.transfer, packet.length) == (kind, transfer, len(body))
    assert packet.body == body
    crafted = Control(type=kind.value, transfer=transfer, body=body)
    assert bytes(crafted) == message.encode()
    accept = {kind: (0, 20)}
    assert ControlParser(accept).feed(bytes(crafted)) == [message]


def test_every_type_of_message_has_a_name_and_an_unknown_one_is_shown_by_its_number():
    for kind in MessageType:
        assert Control(type=kind.value, body=b"").sprintf("%type%") == kind.name
    unknown = Control(struct.pack("!BBHII", 63, 1, 0, 4, 2) + b"ab")
    assert (unknown.type, unknown.body) == (63, b"ab")


def test_several_messages_in_one_segment_follow_each_other():
    stream = b"".join(ControlMessage(MessageType.PROBE, number).encode() for number in (1, 2, 3))
    packet: Packet = Control(stream + b"\x06\x01")
    result = []
    while isinstance(packet, Control):
        result.append(packet.transfer)
        packet = packet.payload
    assert result == [1, 2, 3]
    assert isinstance(packet, Raw)
    assert Control.tcp_reassemble(stream[:-1], {}, {}) is None
    whole = Control.tcp_reassemble(stream, {}, {})
    assert whole is not None
    assert bytes(whole) == stream


def test_a_port_says_what_it_carries():
    for end, port in itertools.product(("sport", "dport"), (47000, 47001, 47500, 47999)):
        ports: Any = {"sport": 50000, "dport": 50000, end: port}
        packet = IP(bytes(IP() / UDP(**ports) / bytes(Datagram(sequence=9)) / b"data"))
        assert packet[Datagram].sequence == 9
    for port in (46998, 46999, 48000):
        assert Datagram not in IP(bytes(IP() / UDP(sport=1, dport=port) / bytes(20)))
    stop = ControlMessage(MessageType.STOP, 5).encode()
    assert IP(bytes(IP() / TCP(sport=46999, dport=1) / stop))[Control].transfer == 5
    assert (IP() / UDP() / Datagram())[UDP].dport == 47000
    assert (IP() / TCP() / Control())[TCP].dport == 46999


def test_a_datagram_of_control_messages_is_read_field_by_field():
    one, other = DatagramStream(7, Counter()), DatagramStream(7, Counter())
    other.write(bytes(50), urgent=True)
    one.take(other.datagrams(0.0)[0], 0.0, waited=False)
    stop, hold = (ControlMessage(kind, 5) for kind in (MessageType.STOP, MessageType.HOLD))
    one.datagrams(0.0)
    one.write(stop.encode() + hold.encode(), urgent=True)
    (sent,) = one.datagrams(0.0)
    head, trailer = IP(src="10.0.0.1", dst="10.0.0.2") / UDP(sport=50000, dport=46999), bytes(16)
    read = IP(bytes(head / (sent + trailer)))[ControlPiece]
    assert (read.session, read.number, read.flags, read.echo) == (7, 1, 1, 1)  # it asks
    assert (read.received, read.first) == (50, 0)
    assert [read[Control].type, read[Control].payload.type] == [stop.type, hold.type]
    assert read.lastlayer().load == trailer
    crafted = ControlPiece(session=7, number=1, flags=5, echo=1, received=50)
    assert bytes(crafted / stop.encode() / hold.encode()) == sent
    (rest,) = (IP(bytes(head / (sent[:36] + b"rest" + trailer)))[ControlPiece],)
    assert rest[Raw].load == b"rest"
