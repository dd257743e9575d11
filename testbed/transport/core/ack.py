"""The ACK message: a bitmap of send indices, for repairs that acknowledge while data flows.

    u16 first | u16 echo | u32 held_us | u32 probed | u16 marked | u16 flags | bits

Bit i (least significant first): the datagram `first` + i arrived after the previous ACK. `echo` is
the latest arrival, 65535 for none or one that had waited, and `held_us` its age: a sample of the
round trip. `probed` is the largest count of sent datagrams that a PROBE has named; flag 1 says that
this answers a PROBE without delay; `marked` counts congestion marks.
"""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import ControlMessage, MessageType, pack_bitmap
from testbed.transport.core.wire import SEND_INDEX_MODULUS, U32_MAX

_FIELDS = struct.Struct("!HHIIHH")
_NONE = 0xFFFF
_AT_ONCE = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """An acknowledgement of arrivals; send indices are modulo SEND_INDEX_MODULUS."""

    first: int  # the send index of the first bit
    arrived: NDArray[np.bool_]  # whether each datagram from `first` on came since the last ACK
    echo: int | None  # the latest arrival and how long ago it was; None when unknown
    held_s: float
    probed: int  # how many datagrams the sender had sent at its latest PROBE
    marked: int = 0  # how many arrivals carried a congestion mark
    at_once: bool = False  # whether it answers a PROBE that did not have to wait in the socket

    def message(self, transfer: int) -> ControlMessage:
        head = _FIELDS.pack(
            self.first,
            _NONE if self.echo is None else self.echo,
            min(U32_MAX, max(0, round(self.held_s * 1e6))),
            self.probed,
            min(_NONE, self.marked),
            _AT_ONCE if self.at_once else 0,
        )
        return ControlMessage(MessageType.ACK, transfer, head + pack_bitmap(self.arrived))

    @classmethod
    def parse(cls, body: bytes) -> "Ack":
        """Decodes a body whose size the parser has checked; ProtocolError when malformed."""
        if len(body) < _FIELDS.size:
            raise ProtocolError(f"ACK with a body of {len(body)} bytes")
        first, echo, held_us, probed, marked, flags = _FIELDS.unpack_from(body)
        if flags not in (0, _AT_ONCE):
            raise ProtocolError(f"ACK with flags {flags:#x}; valid: 0 and {_AT_ONCE}")
        if first >= SEND_INDEX_MODULUS or SEND_INDEX_MODULUS <= echo < _NONE:
            raise ProtocolError(f"ACK with send indices {first} and {echo}")
        bits = np.frombuffer(body, dtype=np.uint8, offset=_FIELDS.size)
        return cls(
            first=first,
            arrived=np.unpackbits(bits, bitorder="little").astype(np.bool_),
            echo=None if echo == _NONE else echo,
            held_s=held_us / 1e6,
            probed=probed,
            marked=marked,
            at_once=flags == _AT_ONCE,
        )
