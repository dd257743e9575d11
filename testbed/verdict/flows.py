"""Samples the congestion state of the workload's data flows: of TCP's through sock_diag.

Formats: linux/inet_diag.h, and struct tcp_info of linux/tcp.h, to which fields are only appended.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from testbed.lab.kernel import netlink
from testbed.shared import jsonl, run_directory
from testbed.verdict.store import ChunkedTable

# Columns of a connection's state: the window is segments times their size, the rate the kernel's
# latest sample (0 before the first), the other two count since the connection began.
STATE = ("cwnd_bytes", "rtt_s", "rate_bps", "retransmits", "acked_bytes")

_SOCK_DIAG_BY_FAMILY = 20
_ESTABLISHED = 1 << 1
_WANT_INFO, _INFO = 1 << 1, 2
_WANT_CONGESTION_CONTROL, _CONGESTION_CONTROL = 1 << 3, 4
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_NO_COOKIE = b"\xff" * 8
_IDENTITY_BYTES = 48  # ports, addresses, interface, cookie
_MESSAGE_BYTES = 72
_IDENTITY = slice(4, 4 + _IDENTITY_BYTES)  # of an inet_diag_msg
# Segment size, round trip in us, window in segments, retransmits, acknowledged, bytes a second.
_TCP_INFO = struct.Struct("=16xI48xI8xI16xI16xQ32xQ")
_ANSWER_BYTES = 2048
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address as one of IPv6 (RFC 4291)

_AT_ONCE_BYTES = 1 << 16  # that are read of a log
# The flows sampled at each tick; more if a flow would wait for more than _LONGEST_CYCLE ticks.
FLOWS_PER_TICK = 6
_LONGEST_CYCLE = 4
# A search walks the kernel's whole table of sockets, so it is rare once all flows are found.
_SEEK_S, _SEEK_AGAIN_S = 0.25, 5.0
_CHUNK_ROWS = 20_000
# How many hosts a search asks.
_HOSTS_PER_SEARCH = 4
COLUMNS = ("t_s", "host", "peer", "leg", "kind", "port", "peer_port", *STATE)
_TEXTS = ("host", "peer", "leg", "kind")
_DTYPE = [("t_s", "f8"), ("flow", "u4"), *((name, "f8") for name in STATE)]
_LEGS = ("gather", "broadcast")


@dataclass(frozen=True, slots=True)
class Connection:
    """An established IPv4 connection, seen from one of its ends."""

    address: str
    port: int
    peer_address: str
    peer_port: int
    congestion_control: str = ""

    @property
    def reversed(self) -> Connection:
        return Connection(self.peer_address, self.peer_port, self.address, self.port)

    def lookup(self) -> bytes:
        identity = (
            struct.pack("!HH", self.port, self.peer_port)
            + socket.inet_aton(self.address).ljust(16, b"\0")
            + socket.inet_aton(self.peer_address).ljust(16, b"\0")
            + bytes(4)
            + _NO_COOKIE
        )
        content = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, _WANT_INFO, _ESTABLISHED)
        return netlink.pack(_SOCK_DIAG_BY_FAMILY, 0, content + identity)


class TcpReader:
    def __init__(self, pid: int) -> None:
        self._socket = netlink.connect(netlink.SOCK_DIAG, pid)

    def connections(self, first_port: int, last_port: int) -> list[Connection]:
        """List connections with either port in a range; OSError when the kernel refuses."""
        ports = range(first_port, last_port + 1)
        return [
            connection
            for family in (socket.AF_INET, socket.AF_INET6)
            for connection in self._connections(family)
            if connection.port in ports or connection.peer_port in ports
        ]

    def _connections(self, family: int) -> Iterator[Connection]:
        """Yield all of IPv4; a socket of IPv6 that accepts both families may hold them."""
        request = _REQUEST.pack(
            family, socket.IPPROTO_TCP, _WANT_CONGESTION_CONTROL, _ESTABLISHED
        ) + bytes(_IDENTITY_BYTES)
        for _, message in netlink.dump(self._socket, _SOCK_DIAG_BY_FAMILY, request):
            identity = bytes(message[_IDENTITY])
            ends = identity[4:20], identity[20:36]
            if family == socket.AF_INET6:
                if not all(end.startswith(_MAPPED) for end in ends):
                    continue
                ends = ends[0][len(_MAPPED) :], ends[1][len(_MAPPED) :]
            address, peer = (socket.inet_ntoa(end[:4]) for end in ends)
            port, peer_port = struct.unpack_from("!HH", identity, 0)
            used = netlink.values(message, _MESSAGE_BYTES).get(_CONGESTION_CONTROL)
            name = netlink.string(used) if used is not None else ""
            yield Connection(address, port, peer, peer_port, name)

    def ask(self, request: bytes) -> bytes:
        """Get the kernel's answer to a `lookup`, for `state_of`; OSError when it gives none."""
        numbered = bytearray(request)
        number = netlink.number(numbered, self._socket)
        self._socket.send(numbered)
        while netlink.number_of(answer := self._socket.recv(_ANSWER_BYTES)) != number:
            self._socket.stale_answers += 1  # of a request that had timed out
        return answer

    @property
    def stale_answers(self) -> int:
        return self._socket.stale_answers

    def close(self) -> None:
        self._socket.close()


def state_of(answer: bytes) -> tuple[float, ...] | None:
    """Read the state of a connection, as in STATE; None if the answer has none, or an older one."""
    view = memoryview(answer)
    length, kind, *_ = netlink.HEADER.unpack_from(view, 0)
    if kind != _SOCK_DIAG_BY_FAMILY:
        return None
    content = view[: min(length, len(view))]
    info = netlink.values(content, netlink.HEADER.size + _MESSAGE_BYTES).get(_INFO)
    if info is None or len(info) < _TCP_INFO.size:  # before Linux 4.9 there was no delivery rate
        return None
    segment_bytes, rtt_us, window, retransmits, acked_bytes, rate = _TCP_INFO.unpack_from(info)
    return window * segment_bytes, rtt_us * 1e-6, rate * 8.0, retransmits, acked_bytes


class Tail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._partial = b""

    def lines(self) -> list[bytes]:
        """Read the whole lines that are new, at most 64 KiB of them."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError:
                return []
        data = os.read(self._descriptor, _AT_ONCE_BYTES)
        *whole, self._partial = (self._partial + data).split(b"\n")
        return whole

    def records(self) -> Iterator[dict[str, Any]]:
        for line in self.lines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record


class Flow(NamedTuple):
    """The traffic of one host to another; of TCP, through one connection."""

    host: str
    peer: str
    port: int = 0
    peer_port: int = 0


class FlowSampler:
    """Samples both directions of the traffic between the hosts of a lab."""

    def __init__(
        self,
        folder: Path,
        hosts: Mapping[str, Mapping[str, Any]],
        flows: Mapping[str, Any],
        events: Path,
    ) -> None:
        self.table = ChunkedTable(folder, "flows", _DTYPE, chunk_rows=_CHUNK_ROWS)
        self.latest: dict[Flow, dict[str, Any]] = {}  # for the live view
        self._events = events
        self._hosts = hosts
        self._names = {host["address"]: name for name, host in hosts.items()}
        # `hosts` between which it flows, `ports` of TCP (null: another transport, whose endpoints
        # write logs), `centre`, a host that all of it begins or ends at (null: none).
        self._ports = flows["ports"]
        self._centre = flows["centre"]
        self._among = list(flows["hosts"])
        self._to_ask = deque([self._centre] if self._centre else self._among)
        self._readers: dict[str, TcpReader] = {}
        self._tails: dict[str, Tail] = {}
        if self._ports is None:
            self._tails = {host: Tail(events / f"congestion-{host}.jsonl") for host in self._among}
        self._flows: dict[Flow, bytes] = {}
        self._order: list[Flow] = []
        self._numbers: dict[Flow, int] = {}
        self._used: set[tuple[str, str, str]] = set()  # host, peer, congestion control
        self._seek_s = 0.0

    @property
    def stale_answers(self) -> int:
        return sum(reader.stale_answers for reader in self._readers.values())

    def sample(self, tick: int) -> None:
        """Read the state of the next connections; OSError if the kernel refuses."""
        if self._ports is None:
            return
        now_s = time.monotonic()
        if now_s >= self._seek_s:
            self._seek(now_s)
        cycle = min(_LONGEST_CYCLE, max(1, -(-len(self._order) // FLOWS_PER_TICK)))
        for flow in self._order[tick % cycle :: cycle]:
            now_s = time.monotonic()
            state = state_of(self._reader(flow.host).ask(self._flows[flow]))
            if state is None:  # the connection is gone: perhaps there is another
                self._seek_s = min(self._seek_s, now_s + _SEEK_S)
                self._order = [other for other in self._order if other != flow]
                self._flows.pop(flow)
                self.latest.pop(flow, None)
                continue
            number = self._numbers.setdefault(flow, len(self._numbers))
            self.table.take(1)[0] = (now_s, number, *state)
            self.latest[flow] = dict(zip(STATE, state, strict=True))

    def _seek(self, now_s: float) -> None:
        for _ in range(min(_HOSTS_PER_SEARCH, len(self._to_ask))):
            host = self._to_ask[0]
            self._to_ask.rotate(-1)
            for connection in self._reader(host).connections(*self._ports):
                peer = self._names.get(connection.peer_address)
                if peer is None or peer == host:
                    continue
                flow = Flow(host, peer, connection.port, connection.peer_port)
                self._flows[flow] = connection.lookup()
                back = Flow(peer, host, connection.peer_port, connection.port)
                self._flows[back] = connection.reversed.lookup()
                self._used.add((host, peer, connection.congestion_control))
        self._order = sorted(self._flows)
        # Others may open connections at any time.
        complete = self._centre and len(self._order) >= 2 * (len(self._among) - 1)
        self._seek_s = now_s + (_SEEK_AGAIN_S if complete else _SEEK_S)

    def _reader(self, host: str) -> TcpReader:
        if host not in self._readers:
            self._readers[host] = TcpReader(self._hosts[host]["pid"])
        return self._readers[host]

    def congestion_controls(self) -> list[dict[str, str]]:
        keys = ("host", "peer", "congestion_control")
        return [dict(zip(keys, used, strict=True)) for used in sorted(self._used)]

    def read_logs(self) -> None:
        for name, tail in self._tails.items():
            newest: dict[str, bytes] = {}
            for line in tail.lines()[-64:]:
                # Parsing all of them would cost more than sampling: one per peer is enough.
                newest[line.partition(b'"peer": "')[2].partition(b'"')[0].decode()] = line
            for peer, line in newest.items():
                with suppress(ValueError):
                    record = json.loads(line)
                    self.latest[Flow(name, peer)] = {key: record.get(key) for key in STATE}

    def write(self, path: Path, *, last: bool) -> None:
        import polars as pl

        schema: dict[str, Any] = {
            name: pl.String if name in _TEXTS else pl.Float64 for name in COLUMNS
        }
        further = [
            pl.scan_ndjson(log, schema=schema, ignore_errors=True).select(COLUMNS)
            for log in sorted(self._events.glob("congestion-*.jsonl"))
            if log.stat().st_size
        ]
        # The leg in which a host sends.
        names = [
            {"host": flow.host, "peer": flow.peer, "kind": "tcp"}
            | {"leg": _LEGS[flow.host == self._centre] if self._centre else ""}
            | {"port": float(flow.port), "peer_port": float(flow.peer_port)}
            for flow in self._numbers
        ]
        self.table.write(path, "flow", names, schema, further=further, last=last)


# What endpoints and connections used, beside what was configured

_KEY = "congestion_control"


def wrong_congestion_control(directory: Path, configured: str) -> str:
    """Say where an endpoint used another congestion control; empty where none did."""
    wrong = [
        f"{record.get('host')} towards {peer} used {facts[_KEY]!r}"
        for path in sorted((directory / "events").glob("endpoint-*.jsonl"))
        for record in jsonl.read(path)
        for peer, facts in record.get("facts", {}).items()
        if facts.get(_KEY, configured) != configured
    ]
    if not wrong:
        return ""
    more = f", and {len(wrong) - 1} more" if wrong[1:] else ""
    return f"congestion control {configured!r} was asked for, and {wrong[0]}{more}"


def wrong_congestion_control_of_hosts(directory: Path, configured: Mapping[str, str]) -> str:
    """Say where a host's connection used another congestion control; empty: nowhere."""
    sampled = run_directory.read_or_empty(directory / "samples" / "sampler.json")
    for used in sampled.get("congestion_controls", []):
        expected = configured.get(used["host"], used[_KEY])
        if used[_KEY] != expected:
            return (
                f"congestion control {expected!r} was asked for, and a connection of "
                f"{used['host']} towards {used['peer']} used {used[_KEY]!r}"
            )
    return ""
