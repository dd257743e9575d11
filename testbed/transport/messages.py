"""The control messages: a 12-byte header and a body, back to back on a TCP connection.

    u8 type | u8 version | u16 reserved | u32 transfer | u32 body length | body

PROBE, BITMAP and STOP are DBLP's signals (arXiv 2605.01989). Bits go least significant first.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.transport.control_datagrams import HEAD_BYTES as PIECE_HEAD_BYTES
from testbed.transport.control_datagrams import MOST_TCP_BYTES
from testbed.transport.errors import ProtocolError
from testbed.transport.wire import SEND_INDEX_MODULUS, U32_MAX

VERSION = 6  # not 3, which TLS has in the same place: it would take ours for a record of its own
HEADER = struct.Struct("!BBHII")
HEADER_BYTES = HEADER.size
# Ethernet, IPv4 and TCP headers with the timestamp option. With TCP_NODELAY a message travels in
# a segment of its own and costs these bytes besides its own.
WIRE_OVERHEAD_BYTES = 14 + 20 + 32
MAX_HELLO_BYTES = 1 << 20
MAX_ANNOUNCEMENT_BYTES = 1 << 16
MAX_REASON_BYTES = 1024
# STOP has a bit for every chunk. A peer that leaves 8 MiB unread is closed (`net.control`), so a
# longer one could never be said.
MAX_STOP_BYTES = 8_000_000
MAX_ENERGY_BYTES = MAX_STOP_BYTES  # for the same reason
SENT = struct.Struct("!I")  # a PROBE's body, where the repair numbers its datagrams
PASS = struct.Struct("!IB")  # the same with passes: the pass, from 1, and whether it ends
_HEAD = struct.Struct("!BI")  # of an answer to it: `pack_arrivals`
_RANGE, _LIST = 0, 1
# An ACK's fixed fields, and at most one bit for every send index.
_FIELDS = struct.Struct("!HHIIHH")
MAX_ACK_BYTES = _FIELDS.size + SEND_INDEX_MODULUS // 8
_NONE = 0xFFFF
_AT_ONCE = 1
KEY_BYTES = 32
_WELCOME = struct.Struct("!IHB")
HELLO = struct.Struct("!IHHHB")


class Cipher(IntEnum):
    """A way to seal datagrams; the highest is the best."""

    BLAKE2B = 0  # it authenticates and does not encrypt
    AES_256_GCM = 1


class MessageType(IntEnum):
    """The types of messages, each with its direction, its meaning and, after a dash, its body."""

    HELLO = 1  # worker to server: who I am - session, data port, cipher, name, terms, layout
    WELCOME = 2  # server to worker: joined - session, its data port for it, cipher, key or nothing
    REFUSED = 3  # server to worker: why not - text
    PROBE = 4  # sender to receiver: what is missing? - SENT or PASS
    BITMAP = 5  # receiver to sender: this came since I last answered - `pack_arrivals`
    STOP = 6  # receiver to sender: enough - one bit per chunk, or empty
    ANNOUNCE = 7  # server to worker: a message of the training - bytes
    ACK = 8  # receiver to sender: these datagrams came - `Ack`
    LATE_BITMAP = 9  # a BITMAP for a PROBE that had to wait, so its delay is not that of the path
    READY = 10  # server to worker: all have joined
    HOLD = 11  # receiver to sender: this transfer has not been asked for yet; wait
    PING = 12  # are you there?
    PONG = 13  # yes
    FAILED = 14  # why this side ends the connection - text
    ENERGY = 15  # sender to receiver: the energy of each chunk - bytes of `chunk_energy`
    PIECE = 17  # what would go in a datagram of control messages - `control_datagrams`


@dataclass(frozen=True, slots=True)
class ControlMessage:
    """One message; `transfer` is 0 where the type does not belong to a transfer.

    The peer asks soon for what it is `asked_for`, so that no reply of its own must confirm it.
    """

    type: MessageType
    transfer: int = 0
    body: bytes = b""
    asked_for: bool = field(default=False, compare=False)

    def encode(self) -> bytes:
        return HEADER.pack(self.type, VERSION, 0, self.transfer, len(self.body)) + self.body

    @property
    def wire_bytes(self) -> int:
        """Bytes that the message occupies on an Ethernet link, without TCP's acknowledgement."""
        return WIRE_OVERHEAD_BYTES + HEADER_BYTES + len(self.body)


def body_limits(chunk_count: int) -> dict[MessageType, tuple[int, int]]:
    """The smallest and largest body of each type for payloads of `chunk_count` chunks."""
    kind, bitmap_bytes = MessageType, -(-chunk_count // 8)
    arrivals = (1, _HEAD.size + bitmap_bytes)
    return {
        kind.HELLO: (HELLO.size, MAX_HELLO_BYTES),
        kind.WELCOME: (_WELCOME.size, _WELCOME.size + KEY_BYTES),
        **dict.fromkeys((kind.REFUSED, kind.FAILED), (0, MAX_REASON_BYTES)),
        **dict.fromkeys((kind.READY, kind.HOLD, kind.PING, kind.PONG), (0, 0)),
        **dict.fromkeys((kind.BITMAP, kind.LATE_BITMAP), arrivals),
        kind.PROBE: (SENT.size, PASS.size),
        kind.STOP: (0, bitmap_bytes),
        kind.ACK: (_FIELDS.size, MAX_ACK_BYTES),
        kind.ANNOUNCE: (0, MAX_ANNOUNCEMENT_BYTES),
        kind.PIECE: (PIECE_HEAD_BYTES, MOST_TCP_BYTES),
        kind.ENERGY: (1, min(chunk_count, MAX_ENERGY_BYTES)),
    }


class ControlParser:
    """Cuts a stream of bytes, which may arrive in pieces of any size, into messages."""

    def __init__(self, limits: Mapping[MessageType, tuple[int, int]]) -> None:
        """`limits` gives the body sizes to accept; other types are rejected."""
        self._limits = limits
        self.pending = bytearray()  # received of a message that is not complete yet

    @property
    def missing_bytes(self) -> int:
        """The least number of bytes that the next message still lacks, at least 1."""
        if len(self.pending) < HEADER_BYTES:
            return HEADER_BYTES - len(self.pending)
        *_, length = HEADER.unpack_from(self.pending)
        return HEADER_BYTES + int(length) - len(self.pending)

    def feed(self, data: bytes) -> list[ControlMessage]:
        """Takes the next bytes and returns the messages that are now complete."""
        self.pending += data
        messages = []
        at = 0
        while len(self.pending) - at >= HEADER_BYTES:
            message_type, transfer, length = self._header(at)
            end = at + HEADER_BYTES + length
            if len(self.pending) < end:
                break
            body = bytes(self.pending[at + HEADER_BYTES : end])
            messages.append(ControlMessage(message_type, transfer, body))
            at = end
        del self.pending[:at]
        return messages

    def _header(self, at: int) -> tuple[MessageType, int, int]:
        code, version, reserved, transfer, length = HEADER.unpack_from(self.pending, at)
        if version != VERSION:
            raise ProtocolError(f"control message of version {version}, not {VERSION}")
        if reserved:
            raise ProtocolError(f"control message with reserved field {reserved}, not 0")
        try:
            message_type = MessageType(code)
            smallest, largest = self._limits[message_type]
        except (ValueError, KeyError):
            raise ProtocolError(f"control message of unexpected type {code}") from None
        if not smallest <= length <= largest:
            valid = str(smallest) if smallest == largest else f"{smallest} to {largest}"
            raise ProtocolError(f"{message_type.name} with a body of {length} bytes, not {valid}")
        return message_type, transfer, length


def pack_bitmap(received: NDArray[np.bool_]) -> bytes:
    """One bit per chunk, 1 = received, least significant bit first."""
    return np.packbits(received, bitorder="little").tobytes()


def unpack_bitmap(body: bytes, chunk_count: int) -> NDArray[np.bool_]:
    """The chunks that a STOP's body marks as received, shape (chunk_count,)."""
    if len(body) != -(-chunk_count // 8):
        raise ProtocolError(f"bitmap of {len(body)} bytes for {chunk_count} chunks")
    bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8), bitorder="little")
    if bits[chunk_count:].any():
        raise ProtocolError(f"bitmap names chunks beyond the last of {chunk_count}")
    return bits[:chunk_count].astype(np.bool_)


def reason_message(kind: MessageType, reason: str) -> ControlMessage:
    """A REFUSED or FAILED; a long text is cut, perhaps within a character."""
    return ControlMessage(kind, body=reason.encode()[:MAX_REASON_BYTES])


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    session: int  # of the run
    name: str  # the worker's
    data_port: int = 0  # its UDP port; 0 where the data need none
    terms: str = ""  # a text of what must be equal on both sides besides the layout
    layout: bytes = b""  # PayloadLayout.encode()'s result, or empty
    cipher: int = Cipher.BLAKE2B  # the best that it can

    def message(self) -> ControlMessage:
        """ValueError when it is larger than a HELLO may be: the layout has too many tensors."""
        name, terms = self.name.encode(), self.terms.encode()
        head = HELLO.pack(self.session, self.data_port, len(name), len(terms), self.cipher)
        body = head + name + terms + self.layout
        if len(body) > MAX_HELLO_BYTES:
            raise ValueError(
                f"the layout's description is {len(self.layout)} bytes long and a HELLO holds "
                f"{MAX_HELLO_BYTES}: merge tensors, or shorten their names"
            )
        return ControlMessage(MessageType.HELLO, body=body)

    @classmethod
    def parse(cls, body: bytes) -> "Hello":
        if len(body) < HELLO.size:
            raise ProtocolError(f"HELLO with a body of {len(body)} bytes")
        session, data_port, name_bytes, terms_bytes, cipher = HELLO.unpack_from(body)
        rest = body[HELLO.size :]
        texts_bytes = name_bytes + terms_bytes
        if len(rest) < texts_bytes:
            raise ProtocolError(f"HELLO with texts of {texts_bytes} bytes but {len(rest)} left")
        try:
            name = rest[:name_bytes].decode()
            terms = rest[name_bytes:texts_bytes].decode()
        except UnicodeDecodeError:
            raise ProtocolError("HELLO with a text that is not UTF-8") from None
        layout = rest[texts_bytes:]
        return cls(
            session=session,
            name=name,
            data_port=data_port,
            terms=terms,
            layout=layout,
            cipher=cipher,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Welcome:
    session: int  # of the run
    data_port: int  # the server's port for this worker's data
    key: bytes = field(default=b"", repr=False)  # of this worker's datagrams, KEY_BYTES long
    cipher: int = Cipher.BLAKE2B  # seals them

    def message(self) -> ControlMessage:
        body = _WELCOME.pack(self.session, self.data_port, self.cipher) + self.key
        return ControlMessage(MessageType.WELCOME, body=body)

    @classmethod
    def parse(cls, body: bytes) -> "Welcome":
        if len(body) not in (_WELCOME.size, _WELCOME.size + KEY_BYTES):
            raise ProtocolError(f"WELCOME with a body of {len(body)} bytes")
        session, data_port, cipher = _WELCOME.unpack_from(body)
        key = body[_WELCOME.size :]
        return cls(session=session, data_port=data_port, cipher=cipher, key=key)


def check_u32(name: str, value: int) -> None:
    """Raises ValueError unless `value` fits its 32 bits on the wire."""
    if not 0 <= value <= U32_MAX:
        raise ValueError(f"{name} is {value}; valid: 0 to {U32_MAX}")


def pack_arrivals(chunks: NDArray[np.int64]) -> bytes:
    """The body of a BITMAP: chunks that came since the last one, ascending; the smaller form.

    u8 0 | u32 first chunk | bits      a range; bit i is chunk first + i
    u8 1 | u32 chunk | u32 chunk ...   a list; an empty one when nothing arrived
    """
    if len(chunks):
        first = int(chunks[0])
        span = int(chunks[-1]) - first + 1
        if _HEAD.size + -(-span // 8) <= 1 + 4 * len(chunks):
            bits = np.zeros(span, dtype=np.bool_)
            bits[chunks - first] = True
            return _HEAD.pack(_RANGE, first) + np.packbits(bits, bitorder="little").tobytes()
    return bytes([_LIST]) + chunks.astype(">u4").tobytes()


def unpack_arrivals(body: bytes, chunk_count: int) -> NDArray[np.int64]:
    """The chunk numbers that a body names, ascending; its work is proportional to the body."""
    form = body[0] if body else None
    if form == _RANGE and len(body) > _HEAD.size:
        _, first = _HEAD.unpack_from(body)
        if not (body[_HEAD.size] & 1 and body[-1]):
            raise ProtocolError("range of arrivals that is longer than what arrived")
        bits = np.frombuffer(body, dtype=np.uint8, offset=_HEAD.size)
        chunks = first + np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    elif form == _LIST and len(body) % 4 == 1:
        chunks = np.frombuffer(body, dtype=">u4", offset=1).astype(np.int64)
        if (chunks[1:] <= chunks[:-1]).any():
            raise ProtocolError("list of arrivals that does not ascend")
    else:
        raise ProtocolError(f"arrivals of form {form} in {len(body)} bytes")
    if len(chunks) and chunks[-1] >= chunk_count:
        raise ProtocolError(f"arrival of chunk {chunks[-1]}, beyond the last of {chunk_count}")
    return chunks


@dataclass(frozen=True, kw_only=True, slots=True)
class Ack:
    """An acknowledgement of arrivals; send indices are modulo SEND_INDEX_MODULUS.

    u16 first | u16 echo | u32 held_us | u32 probed | u16 reserved | u16 flags | bits
    """

    first: int  # the send index of the first bit
    arrived: NDArray[np.bool_]  # whether each datagram from `first` on came since the last ACK
    echo: int | None  # the latest arrival, and how long ago it was; None: it waited, or none came
    held_s: float
    probed: int  # how many datagrams the sender had sent at its latest PROBE
    at_once: bool = False  # whether it answers a PROBE that did not have to wait in the socket

    def message(self, transfer: int) -> ControlMessage:
        head = _FIELDS.pack(
            self.first,
            _NONE if self.echo is None else self.echo,
            min(U32_MAX, max(0, round(self.held_s * 1e6))),
            self.probed,
            0,
            _AT_ONCE if self.at_once else 0,
        )
        return ControlMessage(MessageType.ACK, transfer, head + pack_bitmap(self.arrived))

    @classmethod
    def parse(cls, body: bytes) -> "Ack":
        """Decodes a body whose size the parser has checked; ProtocolError when malformed."""
        first, echo, held_us, probed, _, flags = _FIELDS.unpack_from(body)
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
            at_once=flags == _AT_ONCE,
        )
