"""What `dissect` tells about captures whose content is known, whole and damaged."""

import json
import random
import struct

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP

from testbed.capture import frames
from testbed.capture.contents import Contents
from testbed.capture.control_streams import ControlStreams, Message
from testbed.transport.core.ack import Ack
from testbed.transport.core.messages import SENT, ControlMessage, MessageType
from tests.capture.craft import CHUNK, SERVER, SESSION, STRANGER, WORKER, Conversation, joined, told


def test_a_transfer_is_told_pass_by_pass(tmp_path):
    conversation = joined()
    conversation.gather(6, lost={2, 5, 9})
    document = told(conversation, tmp_path)
    [transfer] = document["transfers"]
    assert document["peers"] == {WORKER: "worker-1", SERVER: "server"}
    assert document["sessions"] == [SESSION]
    assert document["strays"] == []
    expected = {
        "transfer": 6,
        "round": 3,
        "leg": "gather",
        "sender": "worker-1",
        "receiver": "server",
        "chunk_count": 10,
        "datagrams": 13,
        "distinct_chunks": 10,
        "repeated": 3,
        "duplicates": 0,
        "late": 0,
        "messages": {"PROBE": 2, "BITMAP": 1, "STOP": 1},
        "duration_s": 0.016,
    }
    assert {key: transfer[key] for key in expected} == expected
    assert [(each["datagrams"], each["missing"]) for each in transfer["passes"]] == [
        (10, 3),
        (3, None),
    ]
    assert [(each["message"], each["note"]) for each in transfer["events"]] == [
        ("PROBE", ""),
        ("BITMAP", "3 of 10 missing"),
        ("PROBE", ""),
        ("STOP", ""),
    ]


def asked_within_a_pass(conversation):
    """Five of ten datagrams, a PROBE in the middle of the pass, its answer, the other five."""
    for sequence in range(5):
        conversation.datagram(6, sequence)
    conversation.probe(6, 1, ends=False)
    conversation.arrived(6, 0, 1, 2)
    for sequence in range(5, 10):
        conversation.datagram(6, sequence)


def told_notes(conversation, tmp_path):
    [transfer] = told(conversation, tmp_path)["transfers"]
    passes = [(each["datagrams"], each["missing"]) for each in transfer["passes"]]
    return passes, [each["note"] for each in transfer["events"]]


def test_a_question_within_a_pass_does_not_end_it_and_answers_add_up(tmp_path):
    conversation = joined()
    asked_within_a_pass(conversation)
    conversation.probe(6, 1)
    conversation.arrived(6, 3, 5, 6, 9)
    conversation.datagram(6, 4)
    passes, notes = told_notes(conversation, tmp_path)
    assert passes == [(10, 3), (1, None)]
    assert notes == ["within the pass", "7 of 10 missing", "", "3 of 10 missing"]


def test_what_is_missing_is_not_told_when_an_answer_was_not_captured(tmp_path):
    conversation = joined()
    asked_within_a_pass(conversation)
    conversation.probe(6, 1)  # its answer is not in the capture
    conversation.probe(6, 2)
    conversation.arrived(6, 3)
    passes, notes = told_notes(conversation, tmp_path)
    assert passes == [(10, None)]
    assert notes[-1] == "1 more arrived"


def test_what_is_missing_is_not_told_when_the_capture_began_later(tmp_path):
    conversation = joined()
    conversation.probe(6, 2)
    conversation.arrived(6, 0, 1, 2, 3, 4)
    assert told_notes(conversation, tmp_path) == ([], ["", "5 more arrived"])


def test_a_malformed_answer_is_told_as_that(tmp_path):
    conversation = joined()
    conversation.probe(6, 1)
    conversation.message(SERVER, ControlMessage(MessageType.BITMAP, 6, b"\2"))
    conversation.arrived(6, 0)
    assert told_notes(conversation, tmp_path)[1] == ["", "malformed", "1 more arrived"]


def test_messages_of_the_connection_belong_to_no_transfer(tmp_path):
    conversation = joined()
    for kind in ("READY", "PING", "PONG", "ANNOUNCE", "FAILED"):
        conversation.message(SERVER, ControlMessage(MessageType[kind]))
    conversation.probe(6, 1)
    conversation.message(SERVER, ControlMessage(MessageType.HOLD, 6))
    document = told(conversation, tmp_path)
    assert [each["transfer"] for each in document["transfers"]] == [6]
    assert document["transfers"][0]["messages"] == {"PROBE": 1, "HOLD": 1}
    assert document["messages"]["PING"] == 1


def test_copies_repetitions_and_what_comes_after_stop_are_told_apart(tmp_path):
    conversation = joined()
    conversation.datagram(0, 1, stamp=0)
    conversation.datagram(0, 1, stamp=0)
    conversation.datagram(0, 1, stamp=1)
    conversation.message(SERVER, ControlMessage(MessageType.STOP, 0))
    conversation.datagram(0, 2)
    [transfer] = told(conversation, tmp_path)["transfers"]
    counts = [transfer[key] for key in ("datagrams", "repeated", "duplicates", "late")]
    assert counts == [4, 1, 1, 1]


def test_what_streaming_repair_says_is_told(tmp_path):
    conversation = joined()
    for sequence in range(10):
        conversation.datagram(0, sequence)
    arrived = np.array([True, False, True])
    report = Ack(first=0, arrived=arrived, echo=2, held_s=0.001, probed=0, marked=1)
    conversation.message(SERVER, report.message(0))
    conversation.message(SERVER, ControlMessage(MessageType.ACK, 0, b"\xff" * 16))
    conversation.message(WORKER, ControlMessage(MessageType.PROBE, 0, SENT.pack(1234)))
    conversation.message(SERVER, ControlMessage(MessageType.STOP, 0, b"\xff\x01"))
    conversation.message(SERVER, ControlMessage(MessageType(7), 0, b"said"))
    unknown = ControlMessage(MessageType.STOP, 0, b"abc").encode()
    conversation.add(conversation.segment(SERVER, b"\x3f" + unknown[1:]))
    document = told(conversation, tmp_path)
    assert [(each["message"], each["note"]) for each in document["transfers"][0]["events"]] == [
        ("ACK", "2 more arrived, 1 marked"),
        ("ACK", "malformed"),
        ("PROBE", "1,234 sent until now"),
        ("STOP", "1 of 10 missing"),
        ("type 63", "3 bytes"),
    ]
    assert document["messages"]["ANNOUNCE"] == 1


def test_who_says_what_chunks_are_worth_is_the_sender(tmp_path):
    conversation = joined()
    conversation.message(WORKER, ControlMessage(MessageType.WORTH, 0, b"\xff" * 10))
    conversation.datagram(0, 0)
    (transfer,) = told(conversation, tmp_path)["transfers"]
    assert (transfer["sender"], transfer["receiver"]) == ("worker-1", "server")
    assert [(each["message"], each["note"]) for each in transfer["events"]] == [
        ("WORTH", "10 bytes")
    ]


def test_datagrams_of_nobody_are_counted_by_reason_and_source(tmp_path):
    conversation = joined()
    conversation.datagram(0, 0)
    conversation.datagram(0, 0, session=SESSION + 1)
    conversation.datagram(0, 0, source=STRANGER)
    conversation.datagram(0, 10)
    conversation.datagram(0, 1, length=CHUNK + 1)
    conversation.datagram(0, 0, source=SERVER)
    conversation.add(IP(src=WORKER, dst=SERVER) / UDP(sport=47000, dport=47000) / b"short")
    document = told(conversation, tmp_path)
    assert {each["reason"]: each["source"] for each in document["strays"]} == {
        f"of another session, {SESSION + 1:#010x}": WORKER,
        "from an address that did not join": STRANGER,
        "behind the last chunk": WORKER,
        "says to be longer than it is": WORKER,
        "against the direction of its transfer": SERVER,
        "too short for a header": WORKER,
    }
    assert [each["datagrams"] for each in document["transfers"]] == [1]


def test_a_capture_that_begins_late_goes_by_the_most_frequent_session(tmp_path):
    conversation = Conversation()
    conversation.datagram(4, 0, session=77)
    conversation.gather(4, lost={1})
    document = told(conversation, tmp_path)
    [transfer] = document["transfers"]
    assert (transfer["datagrams"], transfer["sender"]) == (11, WORKER)
    assert [each["missing"] for each in transfer["passes"]] == [1, None]
    assert [each["datagrams"] for each in document["strays"]] == [1]


def test_data_packets_that_are_cut_behind_their_header_are_told_all_the_same(tmp_path):
    whole, cut = joined(), joined()
    for conversation, snapshot in ((whole, 65536), (cut, 58)):
        conversation.gather(2, lost={3})
        conversation.packets = [
            (time_ns, data if data[23] == frames.TCP else data[:snapshot], length)
            for time_ns, data, length in conversation.packets
        ]
    assert told(cut, tmp_path)["transfers"] == told(whole, tmp_path)["transfers"]


def test_kernel_tcp_is_told_by_its_segments(tmp_path):
    conversation = joined()
    for sequence in (1, 101, 101, 201):
        tcp = TCP(sport=40001, dport=47000, seq=sequence, flags="PA")
        conversation.add(IP(src=WORKER, dst=SERVER) / tcp / bytes(100))
    conversation.message(SERVER, ControlMessage(MessageType.STOP, 8))
    [transfer] = told(conversation, tmp_path)["transfers"]
    expected = {"carrier": "tcp", "sender": "worker-1", "datagrams": 4, "data_bytes": 400}
    assert {key: transfer[key] for key in expected} == expected
    assert (transfer["repeated"], transfer["transfer"]) == (1, 8)


# The control stream.


def reassembled(segments):
    streams = ControlStreams()
    found = []
    for data in segments:
        segment = frames.segment(data, 14)
        assert segment is not None
        found += list(streams.feed(segment))
    return found, streams


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_segments_out_of_order_and_repeated_give_the_messages_once(seed):
    generator = random.Random(seed)
    conversation = Conversation()
    messages = [
        ControlMessage(MessageType.BITMAP, number, generator.randbytes(generator.randrange(40)))
        for number in range(12)
    ]
    stream = b"".join(message.encode() for message in messages)
    start = 2**32 - 100  # wraps around
    conversation.add(conversation.segment(WORKER, b"", at=start - 1, flags="S"))
    pieces, at = [], 0
    while at < len(stream):
        size = generator.randrange(1, 60)
        pieces.append((at, stream[at : at + size]))
        at += size
    pieces += generator.choices(pieces, k=5)
    pieces.sort(key=lambda piece: piece[0] + generator.randrange(200))
    for offset, piece in pieces:
        conversation.add(conversation.segment(WORKER, piece, at=start + offset))
    found, streams = reassembled(data for _, data, _ in conversation.packets)
    assert [(each.transfer, each.body) for each in found] == [
        (each.transfer, each.body) for each in messages
    ]
    assert streams.lost_track == 0


def test_a_body_that_was_not_captured_whole_is_known_by_its_size():
    conversation = Conversation()
    big = ControlMessage(MessageType.BITMAP, 1, bytes(3000)).encode()
    conversation.add(conversation.segment(WORKER, big[:1400]), snapshot=96)
    conversation.add(conversation.segment(WORKER, big[1400:]), snapshot=96)
    conversation.message(WORKER, ControlMessage(MessageType.PROBE, 2))
    found, streams = reassembled(data for _, data, _ in conversation.packets)
    assert [tuple(each) for each in found] == [(5, 1, 3000, None), (4, 2, 0, b"")]
    assert streams.lost_track == 0


def test_a_segment_that_was_never_captured_costs_its_messages_and_no_others():
    conversation = Conversation()
    conversation.message(WORKER, ControlMessage(MessageType.PROBE, 1))
    conversation.segment(WORKER, bytes(5000))  # not captured
    for number in range(300):
        conversation.message(WORKER, ControlMessage(MessageType.BITMAP, number, bytes(100)))
    found, streams = reassembled(data for _, data, _ in conversation.packets)
    assert found[0] == Message(4, 1, 0, b"")
    assert [each.transfer for each in found[1:258]] == list(range(257))
    assert streams.lost_track == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=120), st.integers(0, 2)), max_size=40))
def test_noise_on_our_ports_never_fails(pieces):
    contents = Contents(SESSION)
    conversation = joined()
    for noise, kind in pieces:
        port = 46999 if kind == 2 else 47000
        tcp = TCP(sport=40000, dport=port, seq=len(noise))
        layer = UDP(sport=47000, dport=47000) if kind == 0 else tcp
        conversation.add(IP(src=WORKER, dst=SERVER) / layer / noise)
        conversation.packets.append((conversation.now_ns, noise, 2 * len(noise)))
    for time_ns, data, _ in conversation.packets:
        contents.on_packet(time_ns, frames.segment(data, frames.link(1)(data)))
    assert contents.packets == len(conversation.packets)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_packets_with_flipped_bits_never_fail(seed):
    generator = random.Random(seed)
    conversation = joined()
    conversation.gather(6, lost={1})
    contents = Contents(SESSION)
    for time_ns, data, _ in conversation.packets:
        changed = bytearray(data[: generator.randrange(len(data) + 1)])
        for _ in range(generator.randrange(4)):
            if changed:
                changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        contents.on_packet(time_ns, frames.segment(bytes(changed), frames.link(1)(bytes(changed))))
    json.dumps([each.as_json(0, contents.name_of) for each in contents.transfers])


def test_a_flood_of_transfers_and_sequence_numbers_is_bounded(monkeypatch):
    monkeypatch.setattr("testbed.capture.contents.MOST_TRANSFERS", 50)
    contents = Contents(SESSION)
    for number in range(500):
        payload = struct.pack("!IIIHH", SESSION, 2**32 - 1 - number, 1000 - number, 0, 0)
        segment = frames.Segment(17, b"aaaa", b"bbbb", 47000, 47000, payload, 16, 0, 0)
        contents.on_packet(number + 1, segment)
    assert len(contents.transfers) == 50
    assert contents.untold_transfers == 450
    assert sum(contents.strays.values()) == 450
    assert sum(len(each._seen or ()) for each in contents.transfers) <= 1
