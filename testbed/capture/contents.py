"""Collects what a capture holds: sessions, peers, transfers, and datagrams that belong to none.

Packets are taken one by one. The memory is bounded, whatever the capture holds.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from testbed.capture.control_streams import ControlStreams, Message
from testbed.capture.frames import UDP, Segment
from testbed.capture.transfers import Transfer
from testbed.transport import EndpointConfig, PayloadLayout, ProtocolError
from testbed.transport.core.messages import Hello, MessageType, Welcome
from testbed.transport.core.wire import CHUNK_BITS, DATA_PORTS, HEADER_BYTES, datagram_dtype

CONTROL_PORT = EndpointConfig.control_port
MOST_TRANSFERS = 100_000
_MOST_PAIRS = 4096
_MOST_STRAY_KINDS = 256
_HEDGE = "HEDGE"  # a datagram with a piece of the control stream, which is in it anyway
_LOW, _HIGH = DATA_PORTS
_INTRODUCTIONS = {MessageType.HELLO, MessageType.WELCOME, MessageType.REFUSED}
# Of the connection, not of a transfer.
_COMMON = {
    MessageType.ANNOUNCE,
    MessageType.READY,
    MessageType.PING,
    MessageType.PONG,
    MessageType.FAILED,
}


def _header_struct() -> struct.Struct:
    """The datagram's header, from wire's own description of it."""
    described = datagram_dtype(4)
    codes = {1: "B", 2: "H", 4: "I", 8: "Q"}
    names = [name for name in described.names or () if name != "chunk"]
    return struct.Struct("!" + "".join(codes[described[name].itemsize] for name in names))


_HEADER = _header_struct()


@dataclass(slots=True)
class _TcpData:
    """Kernel TCP's data in one direction since the last STOP."""

    began_ns: int
    last_ns: int
    segments: int = 0
    data_bytes: int = 0
    repeated: int = 0


class Contents:
    """What the packets so far hold.

    Attributes:
        packets, foreign: packets seen, and those that are none of ours.
        transfers: in the order in which they began.
        names: address -> name, from the HELLOs.
        sessions: those that a server welcomed somebody to.
        layouts: session -> payload layout.
        strays: (reason, sender's address) -> datagrams on our ports that belong to no transfer.
        began_ns, ended_ns: time of the first and the last packet.
    """

    def __init__(self, fallback_session: int | None = None) -> None:
        """`fallback_session` counts for hosts whose HELLO and WELCOME the capture has not."""
        self.packets = 0
        self.foreign = 0
        self.transfers: list[Transfer] = []
        self.names: dict[bytes, str] = {}
        self.sessions: Counter[int] = Counter()
        self.layouts: dict[int, PayloadLayout] = {}
        self.strays: Counter[tuple[str, str]] = Counter()
        self.messages: Counter[str] = Counter()
        self.untold_transfers = 0
        self.began_ns = 0
        self.ended_ns = 0
        self._fallback = fallback_session
        self._streams = ControlStreams()
        self._session_of: OrderedDict[bytes, int] = OrderedDict()  # by pair of addresses
        self._by_key: dict[tuple[int | None, bytes, int], Transfer] = {}
        self._latest: OrderedDict[bytes, Transfer] = OrderedDict()  # by source and target
        self._tcp: OrderedDict[bytes, _TcpData] = OrderedDict()
        self._tcp_ends: OrderedDict[tuple[bytes, int, int], int] = OrderedDict()

    @property
    def lost_track(self) -> int:
        """How often packets that were not captured hid the beginning of a control message."""
        return self._streams.lost_track

    def name_of(self, address: bytes | None) -> str:
        """A host's name, its address if it has not introduced itself."""
        if address is None:
            return "?"
        return self.names.get(address) or socket.inet_ntoa(address)

    def on_packet(self, time_ns: int, segment: Segment | None) -> None:
        """Take the next packet; None stands for one that is neither UDP nor TCP."""
        self.packets += 1
        if not self.began_ns:
            self.began_ns = time_ns
        self.ended_ns = time_ns
        if segment is None:
            self.foreign += 1
            return
        if segment.protocol != UDP and CONTROL_PORT in (segment.source_port, segment.target_port):
            for message in self._streams.feed(segment):
                self._on_message(time_ns, segment, message)
        elif CONTROL_PORT in (segment.source_port, segment.target_port):
            self.messages[_HEDGE] += 1
        elif not _has_data_port(segment):
            self.foreign += 1
        elif segment.protocol == UDP:
            self._on_datagram(time_ns, segment)
        else:
            self._on_tcp_data(time_ns, segment)

    # Datagrams.

    def _on_datagram(self, time_ns: int, segment: Segment) -> None:
        if segment.length < HEADER_BYTES or len(segment.payload) < HEADER_BYTES:
            self._stray("too short for a header", segment)
            return
        session, sequence, number, length, stamp = _HEADER.unpack_from(segment.payload)
        chunk = sequence % (1 << CHUNK_BITS)
        transfer = self._latest.get(segment.source + segment.target)
        if transfer is None or transfer.number != number or transfer.session != session:
            transfer = self._transfer_of(time_ns, segment, session, number)
            if transfer is None:
                return
        if length > segment.length - HEADER_BYTES:
            self._stray("says to be longer than it is", segment)
        elif transfer.chunk_count is not None and chunk >= transfer.chunk_count:
            self._stray("behind the last chunk", segment)
        else:
            transfer.on_datagram(time_ns, chunk, stamp, segment.length)

    def _transfer_of(
        self, time_ns: int, segment: Segment, session: int, number: int
    ) -> Transfer | None:
        expected = self._session_of.get(_pair(segment))
        if expected is None and self._session_of:
            self._stray("from an address that did not join", segment)
            return None
        if session != (self._fallback if expected is None else expected):
            self._stray(f"of another session, {session:#010x}", segment)
            return None
        transfer = self._find(time_ns, _pair(segment), session, number)
        if transfer is None:
            self._stray("of too many transfers", segment)
            return None
        if transfer.sender is None:
            transfer.sender, transfer.receiver = segment.source, segment.target
        elif transfer.sender != segment.source:
            self._stray("against the direction of its transfer", segment)
            return None
        flow = segment.source + segment.target
        before = self._latest.get(flow)
        if before is not None and before is not transfer:
            min(before, transfer, key=lambda each: each.number).forget_chunks()
        _put(self._latest, flow, transfer)
        return transfer

    def _find(self, time_ns: int, pair: bytes, session: int | None, number: int) -> Transfer | None:
        if known := self._by_key.get((session, pair, number)):
            return known
        if len(self.transfers) >= MOST_TRANSFERS:
            self.untold_transfers += 1
            return None
        layout = self.layouts.get(session) if session is not None else None
        chunk_count = None if layout is None else layout.chunk_count
        transfer = Transfer(
            number=number, session=session, began_ns=time_ns, chunk_count=chunk_count
        )
        transfer.last_ns = time_ns
        self._by_key[session, pair, number] = transfer
        self.transfers.append(transfer)
        return transfer

    def _stray(self, reason: str, segment: Segment) -> None:
        key = (reason, socket.inet_ntoa(segment.source))
        if key not in self.strays and len(self.strays) >= _MOST_STRAY_KINDS:
            key = ("of many kinds", "several addresses")
        self.strays[key] += 1

    # Control messages.

    def _on_message(self, time_ns: int, segment: Segment, message: Message) -> None:
        self.messages[message.name] += 1
        if message.type in _INTRODUCTIONS:
            self._on_introduction(segment, message)
            return
        if message.type in _COMMON:
            return
        pair = _pair(segment)
        session = self._session_of.get(pair, self._fallback)
        transfer = self._find(time_ns, pair, session, message.transfer)
        if transfer is None:
            return
        if transfer.sender is None:
            # Only the sender asks, and says what chunks are worth; everything else is an answer.
            asks = message.type in (MessageType.PROBE, MessageType.WORTH)
            ends = segment.source, segment.target
            transfer.sender, transfer.receiver = ends if asks else ends[::-1]
        if message.type == MessageType.STOP and not transfer.datagrams:
            self._end_of_tcp_data(transfer)
        transfer.on_message(time_ns, message)

    def _on_introduction(self, segment: Segment, message: Message) -> None:
        if message.body is None:
            return
        try:
            if message.type == MessageType.HELLO:
                hello = Hello.parse(message.body)
                if len(self.names) < _MOST_PAIRS:
                    self.names[segment.source] = _harmless(hello.name)
                    self.names.setdefault(segment.target, "server")
                if hello.layout and len(self.layouts) < 64:
                    self.layouts[hello.session] = PayloadLayout.decode(hello.layout)
            elif message.type == MessageType.WELCOME:
                session = Welcome.parse(message.body).session
                self.sessions[session] += 1
                _put(self._session_of, _pair(segment), session)
        except (ProtocolError, struct.error):
            self.messages["malformed"] += 1

    # Kernel TCP's data connections.

    def _on_tcp_data(self, time_ns: int, segment: Segment) -> None:
        if not segment.length:
            return
        flow = segment.source + segment.target
        data = self._tcp.get(flow)
        if data is None:
            data = _TcpData(time_ns, time_ns)
            _put(self._tcp, flow, data)
        data.last_ns = time_ns
        data.segments += 1
        data.data_bytes += segment.length
        connection = (flow, segment.source_port, segment.target_port)
        end = (segment.sequence + segment.length) & 0xFFFFFFFF
        known = self._tcp_ends.get(connection, segment.sequence)
        if (end - known) & 0xFFFFFFFF > 0x7FFFFFFF or end == known:
            data.repeated += 1
        else:
            _put(self._tcp_ends, connection, end)

    def _end_of_tcp_data(self, transfer: Transfer) -> None:
        """Give a transfer of kernel TCP its data: what went the other way before its STOP."""
        assert transfer.sender is not None
        assert transfer.receiver is not None
        data = self._tcp.pop(transfer.sender + transfer.receiver, None)
        if data is not None:
            transfer.carrier = "tcp"
            transfer.began_ns, transfer.last_ns = data.began_ns, data.last_ns
            transfer.datagrams, transfer.data_bytes = data.segments, data.data_bytes
            transfer.repeated = data.repeated


def _has_data_port(segment: Segment) -> bool:
    return _LOW <= segment.target_port <= _HIGH or _LOW <= segment.source_port <= _HIGH


def _pair(segment: Segment) -> bytes:
    """The two addresses, in an order that does not depend on the direction."""
    return b"".join(sorted((segment.source, segment.target)))


def _harmless(name: str) -> str:
    """A name from the network without anything that a terminal or rich would interpret."""
    return "".join(each if each.isprintable() and each not in "[]" else "?" for each in name[:64])


def _put(into: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Add an entry and forget the oldest of too many."""
    into[key] = value
    if len(into) > _MOST_PAIRS:
        into.popitem(last=False)


def most_frequent_session(segments: Iterable[Segment | None]) -> int | None:
    """The session of most datagrams, for captures that have no WELCOME."""
    found: Counter[int] = Counter()
    for segment in segments:
        if segment is None or segment.protocol != UDP or len(segment.payload) < HEADER_BYTES:
            continue
        if _has_data_port(segment):
            session = _HEADER.unpack_from(segment.payload)[0]
            if session in found or len(found) < _MOST_PAIRS:
                found[session] += 1
    return found.most_common(1)[0][0] if found else None
