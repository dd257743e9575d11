"""The ACK message: a bitmap of send indices, for repairs that acknowledge while data flows.

    u16 first | u16 echo | u32 held_us | u32 probed | u16 marked | u16 flags | bits

Bit i (least significant first) is set when the datagram with send index `first` + i arrived after
the previous ACK. The connection is reliable, so an arrival is acknowledged once only.

* `echo` is the send index of the latest arrival and `held_us` its age. Together they give a sample
  of the round trip without the receiver's own delay. `echo` is 65535 when nothing has arrived, or
  when the datagram had waited in the socket.
* `probed` is the largest count of sent datagrams that a PROBE has named, 0 before the first PROBE.
  Each datagram before that count has arrived, is late, or is lost.
* `marked` counts the arrivals that carried a congestion mark.
* Flag 1 says that this ACK answers a PROBE without delay, so its round trip is that of the path.
  The other flags are 0.
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
    """An acknowledgement of arrivals; send indices are modulo SEND_INDEX_MODULUS.

    Attributes:
        first: the send index of the first bit.
        arrived: whether each datagram from `first` on came since the last ACK.
        echo, held_s: the latest arrival and how long ago it was; None when unknown.
        probed: how many datagrams the sender had sent at its latest PROBE.
        marked: how many arrivals carried a congestion mark.
        at_once: whether it answers a PROBE that did not have to wait in the socket.
    """

    first: int
    arrived: NDArray[np.bool_]
    echo: int | None
    held_s: float
    probed: int
    marked: int = 0
    at_once: bool = False

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
