"""Reads a bridge's OpenFlow 1.3 statistics from Open vSwitch's management socket of that bridge.

Counters have 64 bits on the wire and are exact; the switch's own programs print less of some.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

_VERSION = 4
_HELLO, _ERROR, _MULTIPART_REQUEST, _MULTIPART_REPLY = 0, 1, 18, 19
_FLOW, _TABLE, _GROUP, _GROUP_DESC = 1, 3, 6, 7
_MORE = 1
_APPLY_ACTIONS, _WRITE_ACTIONS, _OUTPUT = 4, 3, 0
# By so much may the switch's own clock, which it reads once a turn, be behind.
_CLOCK_S = 0.02
_TIMEOUT_S = 5.0
_ANY, _ALL_GROUPS, _ALL_TABLES = 0xFFFFFFFF, 0xFFFFFFFC, 0xFF

_HEADER = struct.Struct("!BBHI")
_PART = struct.Struct("!HH4x")
_FLOW_REQUEST = struct.Struct("!B3xII4xQQHH4x")
_FLOW_FACTS = struct.Struct("!HBxIIHHHH4xQQQ")
_TABLE_FACTS = struct.Struct("!B3xIQQ")
_GROUP_FACTS = struct.Struct("!H2xII4xQQII")
_COUNTS = struct.Struct("!QQ")
_TYPE_AND_LENGTH = struct.Struct("!HH")


class StatisticsError(OSError):
    """A switch refused a request, or its answer is none."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """One flow entry. `identity` is all of it that does not change as packets pass."""

    identity: bytes
    packets: int
    since_s: tuple[float, float] = (0.0, 0.0)
    ports: tuple[int, ...] = ()
    drops: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Packets that a table was asked about, and those that matched an entry."""

    lookups: int
    matched: int


class Statistics(AbstractContextManager["Statistics"]):
    def __init__(self, bridge: str) -> None:
        self._bridge = bridge
        self._xid = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_TIMEOUT_S)
        folder = os.environ.get("OVS_RUNDIR", "/var/run/openvswitch")
        try:
            self._socket.connect(str(Path(folder, f"{bridge}.mgmt")))
            self._stream = self._socket.makefile("rb")
            self._send(_HELLO, b"")
        except OSError:
            self._socket.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def flows(self) -> list[Flow]:
        began_s = time.monotonic()
        body = self._ask(_FLOW, _FLOW_REQUEST.pack(_ALL_TABLES, _ANY, _ANY, 0, 0, 1, 4))
        span_s = began_s - _CLOCK_S, time.monotonic() + _CLOCK_S
        return [_flow(entry, span_s) for entry in _sized(body, length_at=0)]

    def tables(self) -> list[Table]:
        facts = _TABLE_FACTS.iter_unpack(self._ask(_TABLE))
        return [Table(lookups=lookups, matched=matched) for _, _, lookups, matched in facts]

    def bucket_ports(self) -> dict[int, list[tuple[int, ...]]]:
        """Read the output ports of each bucket, by group."""
        ports: dict[int, list[tuple[int, ...]]] = {}
        for entry in _sized(self._ask(_GROUP_DESC), length_at=0):
            buckets = _sized(entry[8:], length_at=0)
            (number,) = struct.unpack_from("!I", entry, 4)
            ports[number] = [_output_ports(bucket[16:]) for bucket in buckets]
        return ports

    def bucket_packets(self) -> dict[int, list[int]]:
        """Count the packets through each bucket, by group."""
        packets = {}
        for entry in _sized(self._ask(_GROUP, struct.pack("!I4x", _ALL_GROUPS)), length_at=0):
            number = _GROUP_FACTS.unpack_from(entry)[1]
            counts = _COUNTS.iter_unpack(entry[_GROUP_FACTS.size :])
            packets[number] = [count for count, _ in counts]
        return packets

    def _ask(self, kind: int, request: bytes = b"") -> bytes:
        """Return the bodies of all parts of an answer."""
        xid = self._send(_MULTIPART_REQUEST, _PART.pack(kind, 0) + request)
        body = b""
        while True:
            _, what, length, answers = _HEADER.unpack(self._read(_HEADER.size))
            message = self._read(length - _HEADER.size)
            if answers != xid:
                continue  # a greeting, or a question of the switch's own
            if what == _ERROR:
                code = struct.unpack_from("!HH", message)
                raise StatisticsError(f"{self._bridge} refused statistics {kind}: error {code}")
            if what != _MULTIPART_REPLY:
                continue
            body += message[_PART.size :]
            if not _PART.unpack_from(message)[1] & _MORE:
                return body

    def _send(self, what: int, body: bytes) -> int:
        self._xid += 1
        header = _HEADER.pack(_VERSION, what, _HEADER.size + len(body), self._xid)
        self._socket.sendall(header + body)
        return self._xid

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise StatisticsError(f"{self._bridge} closed its management socket")
        return data


def _sized(body: bytes, *, length_at: int) -> Iterator[bytes]:
    """Yield the entries of a body, each with its length in two bytes."""
    while body:
        (length,) = struct.unpack_from("!H", body, length_at)
        if length <= length_at:
            raise StatisticsError(f"an entry of {length} bytes")
        yield body[:length]
        body = body[length:]


def _flow(entry: bytes, read_s: tuple[float, float]) -> Flow:
    """Read an entry of an answer that was made between two monotonic times."""
    facts = _FLOW_FACTS.unpack_from(entry)
    age_s = facts[2] + facts[3] / 1e9
    # What follows the counters is the match, padded to a multiple of 8 bytes, and instructions.
    _, match_bytes = _TYPE_AND_LENGTH.unpack_from(entry, _FLOW_FACTS.size)
    instructions = entry[_FLOW_FACTS.size + (match_bytes + 7) // 8 * 8 :]
    ports: tuple[int, ...] = ()
    for instruction in _sized(instructions, length_at=2):
        if _TYPE_AND_LENGTH.unpack_from(instruction)[0] in (_APPLY_ACTIONS, _WRITE_ACTIONS):
            ports += _output_ports(instruction[8:])
    return Flow(
        # Without its length, age and counters.
        identity=entry[2:4] + entry[12:32] + entry[_FLOW_FACTS.size :],
        packets=facts[9],
        since_s=(read_s[0] - age_s, read_s[1] - age_s),
        ports=ports,
        drops=not instructions,
    )


def _output_ports(actions: bytes) -> tuple[int, ...]:
    return tuple(
        int(struct.unpack_from("!I", action, 4)[0])
        for action in _sized(actions, length_at=2)
        if _TYPE_AND_LENGTH.unpack_from(action)[0] == _OUTPUT
    )
