"""scapy layers for our datagrams and control messages, from the transport's own descriptions.

    >>> from scapy.utils import rdpcap
    >>> import testbed.capture.layers
    >>> rdpcap("server.pcap")[100].show()

The import binds them to the transport's ports. A segment may hold several messages, one the payload
of the other; one that goes on in the next segment needs `scapy.sessions.TCPSession`.
"""

from __future__ import annotations

from typing import Any

from scapy.fields import (
    BitField,
    ByteEnumField,
    ByteField,
    FieldLenField,
    IntField,
    LongField,
    ShortField,
    StrLenField,
    XIntField,
)
from scapy.layers.inet import TCP, UDP
from scapy.packet import Packet, Raw, bind_bottom_up, bind_top_down

from testbed.transport import EndpointConfig
from testbed.transport.control_datagrams import FLAG_BITS
from testbed.transport.messages import HEADER, HEADER_BYTES, VERSION, MessageType
from testbed.transport.net.tls import TAG_BYTES
from testbed.transport.wire import CHUNK_BITS, DATA_PORTS, datagram_dtype

_BY_SIZE = {1: ByteField, 2: ShortField, 4: IntField}


def _datagram_fields() -> list[Any]:
    """The header's fields in wire's order; the chunk is the payload."""
    described = datagram_dtype(4)
    fields: list[Any] = []
    for name in described.names or ():
        if name == "sequence":
            fields += [BitField("turn", 0, 32 - CHUNK_BITS), BitField(name, 0, CHUNK_BITS)]
        elif name != "chunk":
            kind = XIntField if name == "session" else _BY_SIZE[described[name].itemsize]
            fields.append(kind(name, 0))
    return fields


class Datagram(Packet):
    """A chunk of a payload with its header."""

    name = "Datagram"
    fields_desc = _datagram_fields()


class Control(Packet):
    """A control message; what follows it in the same segment is its payload."""

    name = "Control"
    fields_desc = [  # noqa: RUF012 - scapy's way
        ByteEnumField(
            "type", MessageType.STOP.value, {kind.value: kind.name for kind in MessageType}
        ),
        ByteField("version", VERSION),
        ShortField("reserved", 0),
        IntField("transfer", 0),
        FieldLenField("length", None, length_of="body", fmt="!I"),
        StrLenField("body", b"", length_from=lambda packet: packet.length),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return Control if len(payload) >= HEADER_BYTES else Raw

    @classmethod
    def tcp_reassemble(
        cls, data: bytes, metadata: dict[str, Any], session: dict[str, Any]
    ) -> Packet | None:
        """Return the messages to `TCPSession`, once the last one is complete."""
        at = 0
        while len(data) - at >= HEADER_BYTES:
            at += HEADER_BYTES + HEADER.unpack_from(data, at)[-1]
        return cls(data) if at == len(data) else None


class ControlPiece(Packet):
    """A datagram of control messages: its payload begins with one, or continues one."""

    name = "ControlPiece"
    fields_desc = [  # noqa: RUF012
        XIntField("session", 0),
        BitField("number", 0, 64 - FLAG_BITS),
        BitField("flags", 0, FLAG_BITS),
        LongField("echo", 0),
        LongField("received", 0),
        LongField("first", 0),
    ]

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return s[:-TAG_BYTES], s[-TAG_BYTES:]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        begins = len(payload) >= HEADER_BYTES and payload[1:4] == bytes([VERSION, 0, 0])
        return Control if begins else Raw


# The first one, and lower ones of further exchanges.
CONTROL_PORTS = EndpointConfig.control_port - 9, EndpointConfig.control_port


class PortRange:
    """Equal to every port in it, so that one binding does for a thousand ports."""

    def __init__(self, lowest: int, highest: int) -> None:
        self._lowest, self._highest = lowest, highest

    def __eq__(self, port: object) -> bool:
        return isinstance(port, int) and self._lowest <= port <= self._highest

    def __hash__(self) -> int:
        return hash((self._lowest, self._highest))


def _bind() -> None:
    data_port, control_port = EndpointConfig.data_port, EndpointConfig.control_port
    for end in ("dport", "sport"):
        bind_bottom_up(UDP, Datagram, {end: PortRange(*DATA_PORTS)})
        bind_bottom_up(TCP, Control, {end: PortRange(*CONTROL_PORTS)})
        bind_bottom_up(UDP, ControlPiece, {end: PortRange(*CONTROL_PORTS)})
    bind_top_down(UDP, Datagram, sport=data_port, dport=data_port)
    bind_top_down(TCP, Control, dport=control_port)
    bind_top_down(UDP, ControlPiece, dport=control_port)


_bind()
