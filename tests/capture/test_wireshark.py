"""The dissector for Wireshark reads what the transport's own encoders write."""

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP

from testbed.capture import layers
from testbed.transport import PayloadLayout, control_datagrams, messages, wire
from testbed.transport.codec import CODECS
from testbed.transport.control_datagrams import DatagramStream
from testbed.transport.messages import (
    PASS,
    SENT,
    Ack,
    ControlMessage,
    Hello,
    MessageType,
    Welcome,
    pack_arrivals,
    pack_bitmap,
    reason_message,
)
from tests.capture.craft import CHUNK, SERVER, SESSION, WORKER, Conversation

SCRIPT = Path(__file__).parents[2] / "examples" / "wireshark.lua"


def _bits(*chunks: int, of: int) -> bytes:
    received = np.zeros(of, dtype=np.bool_)
    received[list(chunks)] = True
    return pack_bitmap(received)


def _chunks(*numbers: int) -> bytes:
    return pack_arrivals(np.array(numbers, dtype=np.int64))


def _ack(arrived: tuple[int, ...], echo: int | None, *, at_once: bool) -> ControlMessage:
    marks = np.zeros(8, dtype=np.bool_)
    marks[list(arrived)] = True
    return Ack(
        first=30, arrived=marks, echo=echo, held_s=0.00125, probed=77, at_once=at_once
    ).message(9)


_LAYOUT = PayloadLayout([("w", 5)], codec="int4").encode()
_HELLO = Hello(session=SESSION, name="worker-é", data_port=47003, terms="v1", layout=_LAYOUT)
_KEY = bytes(range(messages.KEY_BYTES))
# A message and what the dissector says of its body; every type stands here at least once.
MESSAGES: list[tuple[ControlMessage, dict[str, Any]]] = [
    (
        _HELLO.message(),
        {
            "session": "0x05e55104",
            "data_port": "47003",
            "cipher": "0",
            "name": "worker-é",
            "terms": "v1",
        }
        | {"codec": "4", "layout": _LAYOUT.hex(":")},
    ),
    (
        Welcome(session=SESSION, data_port=47003, key=_KEY, cipher=1).message(),
        {"session": "0x05e55104", "data_port": "47003", "cipher": "1", "key": _KEY.hex(":")},
    ),
    (reason_message(MessageType.REFUSED, "no such name"), {"reason": "no such name"}),
    (ControlMessage(MessageType.PROBE, 9, SENT.pack(1234)), {"sent": "1234"}),
    (ControlMessage(MessageType.PROBE, 9, PASS.pack(3, True)), {"pass": "3", "pass_ends": "1"}),
    (
        ControlMessage(MessageType.BITMAP, 9, _chunks(4, 5, 7)),
        {"form": "0", "first": "4", "bits": "0b", "arrived": "3"},
    ),
    (
        ControlMessage(MessageType.BITMAP, 9, _chunks(4, 5000)),
        {"form": "1", "chunk": ["4", "5000"], "arrived": "2"},
    ),
    (ControlMessage(MessageType.LATE_BITMAP, 9, _chunks()), {"form": "1", "arrived": "0"}),
    (ControlMessage(MessageType.STOP, 9), {}),
    (
        ControlMessage(MessageType.STOP, 9, _bits(0, 9, of=10)),
        {"bits": "01:02", "arrived": "2"},
    ),
    (ControlMessage(MessageType.ANNOUNCE, body=b"\xff\x00"), {"content": "ff:00"}),
    (
        _ack((0, 1, 2), 32, at_once=True),
        {"first": "30", "echo": "32", "held_us": "1250", "probed": "77"}
        | {"at_once": "1", "bits": "07", "arrived": "3"},
    ),
    (
        _ack((), None, at_once=False),
        {"first": "30", "echo": "65535", "held_us": "1250", "probed": "77"}
        | {"at_once": "0", "bits": "00", "arrived": "0"},
    ),
    (ControlMessage(MessageType.READY), {}),
    (ControlMessage(MessageType.HOLD, 9), {}),
    (ControlMessage(MessageType.PING), {}),
    (ControlMessage(MessageType.PONG), {}),
    (reason_message(MessageType.FAILED, "lost the server"), {"reason": "lost the server"}),
    (
        ControlMessage(MessageType.ENERGY, 9, bytes([200, 3, 128])),
        {"energy": "c8:03:80", "must": "2"},
    ),
    (ControlMessage(MessageType.PIECE, body=bytes(40)), {}),
]


def _dissected(conversation: Conversation, path: Path) -> list[dict[str, Any]]:
    """It returns tshark's view of each packet: protocol -> fields, those of one name as a list."""
    if shutil.which("tshark") is None:
        pytest.skip("needs tshark")
    capture = conversation.write(path / "made.pcap")
    command = ["tshark", "-X", f"lua_script:{SCRIPT}", "-r", str(capture)]
    done = subprocess.run(
        [*command, "-T", "json", "--no-duplicate-keys"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "lua" not in done.stderr.casefold(), done.stderr
    return [load["_source"]["layers"] for load in json.loads(done.stdout)]


def _messages(packets: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The control messages of packets, each with its fields' short names."""
    for packet in packets:
        result = packet.get("bl_control", [])
        for entry in result if isinstance(result, list) else [result]:
            yield {name.removeprefix("bl_control."): value for name, value in entry.items()}


def test_the_script_has_the_transports_own_constants():
    script = SCRIPT.read_text(encoding="utf-8")
    types = {int(code): name for code, name in re.findall(r'\[(\d+)\] = "([A-Z_]+)"', script)}
    codecs = ", ".join(f'[{CODECS.create(name).code}] = "{name}"' for name in CODECS)
    assert f"local CODECS = {{ {codecs} }}\n" in script
    assert types == {kind.value: kind.name for kind in MessageType}
    assert f"VERSION = {messages.VERSION}\n" in script
    names = "HEADER_BYTES, DATA_HEADER_BYTES, PIECE_HEADER_BYTES"
    sizes = messages.HEADER_BYTES, wire.HEADER_BYTES, control_datagrams.HEAD_BYTES
    assert f"{names} = {', '.join(map(str, sizes))}\n" in script
    both = ", ".join(f'"{low}-{high}"' for low, high in (layers.CONTROL_PORTS, wire.DATA_PORTS))
    assert f"CONTROL_PORTS, DATA_PORTS = {both}\n" in script


@pytest.mark.long
def test_every_control_message_is_read_field_by_field(tmp_path):
    assert {message.type for message, _ in MESSAGES} == set(MessageType)
    conversation = Conversation()
    for message, _ in MESSAGES:
        conversation.message(WORKER, message)
    result = list(_messages(_dissected(conversation, tmp_path)))
    for (message, expected), text in zip(MESSAGES, result, strict=True):
        header = {
            "type": str(message.type.value),
            "version": str(messages.VERSION),
            "reserved": "0",
            "transfer": str(message.transfer),
            "length": str(len(message.body)),
        }
        assert text == header | expected, message.type.name


@pytest.mark.long
def test_segments_datagrams_pieces_and_what_is_none_of_them_are_told_apart(tmp_path):
    conversation = Conversation()
    stop = ControlMessage(MessageType.STOP, 5)
    long = ControlMessage(MessageType.BITMAP, 6, _chunks(*range(400)))
    stream = stop.encode() + long.encode()
    conversation.add(conversation.segment(SERVER, stream[:30]))
    conversation.add(conversation.segment(SERVER, stream[30:]))
    conversation.add(conversation.segment(WORKER, b"\x16\x03\x01" + bytes(40)))  # TLS begins so
    conversation.message(WORKER, ControlMessage(MessageType.ACK, 1, b"\x00\x01"))
    frames = wire.new_frames(1, CHUNK)
    record = wire.fields(frames, CHUNK)[0]
    record["session"], record["sequence"], record["transfer"] = SESSION, 70_000, 3_000_000_000
    record["length"], record["stamp"] = CHUNK - 4, wire.ACK_REQUESTED | 321
    record["chunk"][: CHUNK - 4] = 7
    datagram = IP(src=WORKER, dst=SERVER) / UDP(sport=47005, dport=47000) / frames.tobytes()
    conversation.add(datagram)
    conversation.add(datagram, snapshot=14 + 20 + 8 + wire.HEADER_BYTES)
    control = DatagramStream(SESSION, Counter())
    control.write(ControlMessage(MessageType.HOLD, 5).encode(), urgent=True)
    for sent in (control.datagrams(0.0)[0] + bytes(16), b"short"):
        conversation.add(IP(src=WORKER, dst=SERVER) / UDP(sport=50000, dport=46999) / sent)
    packets = _dissected(conversation, tmp_path)

    first, second, garbage, short, hold = _messages(packets)
    assert (hold["type"], hold["transfer"]) == ("11", "5")
    assert [(entry["type"], entry["transfer"]) for entry in (first, second)] == [
        ("6", "5"),
        ("5", "6"),
    ]
    assert second["arrived"] == "400"
    assert "type" not in garbage
    assert "No message begins here" in json.dumps(garbage["_ws.expert"])
    assert short["type"] == "8"
    assert "Body too short for its type" in json.dumps(short)

    whole, cut = (packet["bl_data"] for packet in packets if "bl_data" in packet)
    header = {
        "bl_data.session": "0x05e55104",
        "bl_data.sequence": "70000",
        "bl_data.transfer": "3000000000",
        "bl_data.length": str(CHUNK - 4),
        "bl_data.ack_requested": "1",
        "bl_data.send_index": "321",
    }
    payload = {"bl_data.payload": ":".join(["07"] * (CHUNK - 4)), "bl_data.rest": "00:00:00:00"}
    assert whole == header | payload
    assert cut == header

    whole, short = (packet["bl_piece"] for packet in packets if "bl_piece" in packet)
    assert whole == {
        "bl_piece.session": "0x05e55104",
        "bl_piece.number": "1",
        "bl_piece.asks": "1",
        "bl_piece.again": "0",
        "bl_piece.echo": "0",
        "bl_piece.received": "0",
        "bl_piece.first": "0",
        "bl_piece.bytes": ControlMessage(MessageType.HOLD, 5).encode().hex(":"),
        "bl_piece.trailer": bytes(16).hex(":"),
    }
    assert "Shorter than its header" in json.dumps(short)
