"""Reads control messages from the segments of captured TCP connections.

Segments may come twice, late, cut short by the capture, or not at all. What was not captured is
known by its length: a message that misses some of its body is given without it, and after a gap
reading goes on at the next segment that begins with a message, as nearly all do (TCP_NODELAY).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from testbed.capture.frames import Segment
from testbed.transport.core.messages import (
    HEADER,
    HEADER_BYTES,
    MAX_HELLO_BYTES,
    VERSION,
    MessageType,
)

# The fields of HEADER.
CONTROL_FIELDS = ("type", "version", "reserved", "transfer", "length")
SYN = 2
# Larger than any real body (a bitmap of 24 GB has this size), to tell a length from noise.
_MOST_BODY_BYTES = 2 * MAX_HELLO_BYTES
_MOST_STREAMS = 128
# What waits in a stream for a segment that is missing, before that is given up.
_MOST_WAITING_BYTES = 1 << 20
_MOST_WAITING = 256


class Message(NamedTuple):
    """A captured control message.

    `body` is None when not all of its `length` bytes were captured. `type` may be a number that
    this version of the protocol does not know.
    """

    type: int
    transfer: int
    length: int
    body: bytes | None

    @property
    def name(self) -> str:
        """The type in words."""
        try:
            return MessageType(self.type).name
        except ValueError:
            return f"type {self.type}"


def _plausible(head: bytes | bytearray) -> bool:
    """Whether 12 bytes look like the beginning of a control message."""
    kind, version, reserved, _, length = HEADER.unpack_from(head)
    return version == VERSION and not reserved and 0 < kind < 64 and length <= _MOST_BODY_BYTES


class MessageReader:
    """Reads messages from the pieces of one stream, which come in order and may have holes.

    Attributes:
        lost_track: how often a hole or nonsense hid where the next message begins.
    """

    def __init__(self) -> None:
        self.lost_track = 0
        self._pending = bytearray()
        self._skip = 0  # bytes still to come of a body that is not kept
        self._astray = False

    def feed(self, data: bytes, lost: int = 0) -> Iterator[Message]:
        """Take a piece: its captured bytes, and how many on the wire followed them."""
        if self._astray:
            if len(data) < HEADER_BYTES or not _plausible(data):
                return
            self._astray = False
        if self._skip:
            skipped = min(self._skip, len(data))
            data = data[skipped:]
            also = min(self._skip - skipped, lost)
            lost -= also
            self._skip -= skipped + also
        self._pending += data
        while len(self._pending) >= HEADER_BYTES:
            if not _plausible(self._pending):
                self.go_astray()
                return
            kind, _, _, transfer, length = HEADER.unpack_from(self._pending)
            end = HEADER_BYTES + length
            if len(self._pending) < end:
                break
            body = bytes(self._pending[HEADER_BYTES:end])
            del self._pending[:end]
            yield Message(kind, transfer, length, body)
        if lost:
            yield from self._cut_short(lost)

    def _cut_short(self, lost: int) -> Iterator[Message]:
        """After what is pending, `lost` bytes were not captured."""
        if len(self._pending) < HEADER_BYTES:
            self.go_astray()
            return
        kind, _, _, transfer, length = HEADER.unpack_from(self._pending)
        missing = HEADER_BYTES + length - len(self._pending)
        self._pending.clear()
        yield Message(kind, transfer, length, None)
        if lost > missing:
            self.go_astray()
        else:
            self._skip = missing - lost

    def start_again(self, *, astray: bool = False) -> None:
        """Begin a new stream, or (`astray`) one that is under way."""
        self._pending.clear()
        self._skip = 0
        self._astray = astray

    def go_astray(self) -> None:
        """Note that it is unknown where the next message begins."""
        self.lost_track += 1
        self.start_again(astray=True)


class _Stream:
    """One direction of one connection."""

    def __init__(self) -> None:
        self.reader = MessageReader()
        self._next: int | None = None
        self._waiting: dict[int, Segment] = {}

    def feed(self, segment: Segment) -> Iterator[Message]:
        if segment.flags & SYN:  # perhaps of a new connection between the same ports
            self._next = (segment.sequence + 1) & 0xFFFFFFFF
            self._waiting.clear()
            self.reader.start_again()
            return
        if not segment.length:
            return
        if self._next is None:  # the capture began later than the connection
            self._next = segment.sequence
            self.reader.start_again(astray=True)
        ahead = _distance(self._next, segment.sequence)
        if ahead <= 0:
            yield from self._take(segment, -ahead)
        else:
            self._waiting.setdefault(segment.sequence, segment)
            waiting_bytes = sum(each.length for each in self._waiting.values())
            if waiting_bytes <= _MOST_WAITING_BYTES and len(self._waiting) <= _MOST_WAITING:
                return
            self._next = self._first_waiting()
            self.reader.go_astray()
        while self._waiting:
            first = self._first_waiting()
            behind = _distance(first, self._next)
            if behind < 0:
                return
            yield from self._take(self._waiting.pop(first), behind)

    def _take(self, segment: Segment, known: int) -> Iterator[Message]:
        """Take a segment whose first `known` bytes were there already."""
        if known >= segment.length:
            return
        assert self._next is not None
        self._next = (self._next + segment.length - known) & 0xFFFFFFFF
        fresh = segment.payload[known:]
        yield from self.reader.feed(fresh, segment.length - known - len(fresh))

    def _first_waiting(self) -> int:
        """The sequence number of the waiting segment that comes first."""
        now = self._next or 0
        return min(self._waiting, key=lambda each: _distance(now, each))


def _distance(start: int, end: int) -> int:
    """How far `end` lies behind `start` in TCP's circle of sequence numbers."""
    return ((end - start + 0x80000000) & 0xFFFFFFFF) - 0x80000000


class ControlStreams:
    """All control connections of a capture, with bounded memory."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[bytes, bytes, int, int], _Stream] = OrderedDict()
        self._lost_track = 0

    def feed(self, segment: Segment) -> Iterator[Message]:
        """The messages that are complete with this segment."""
        key = (segment.source, segment.target, segment.source_port, segment.target_port)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream()
            if len(self._streams) > _MOST_STREAMS:
                _, oldest = self._streams.popitem(last=False)
                self._lost_track += oldest.reader.lost_track
        else:
            self._streams.move_to_end(key)
        yield from stream.feed(segment)

    @property
    def lost_track(self) -> int:
        """How often a hole or nonsense hid where the next message begins."""
        return self._lost_track + sum(each.reader.lost_track for each in self._streams.values())
