"""One captured transfer: its data pass by pass, and its control messages."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from testbed.capture.control_streams import Message
from testbed.transport import Leg
from testbed.transport.core.ack import Ack
from testbed.transport.core.arrivals import unpack_arrivals
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import PASS, SENT, MessageType
from testbed.transport.core.wire import SEND_INDEX_MODULUS, U32_MAX

# Of one transfer: more passes and messages are counted but not kept one by one.
MOST_PASSES = 1000
MOST_EVENTS = 500
# Each chunk's latest transmission is kept in pages, so that a false sequence number costs little.
_PAGE_BITS = 8
_PAGE = 1 << _PAGE_BITS
_UNSEEN = 0xFFFFFFFF
_EMPTY_PAGE = array("I", [_UNSEEN] * _PAGE)


@dataclass(slots=True)
class Pass:
    """The datagrams up to a PROBE that ends a pass.

    With a repair that has no passes, a transfer counts as one.

    Attributes:
        datagrams: how many, of which `fresh` were on this link for the first time in the transfer.
        missing: what the receiver then called missing; None if it said nothing or STOP.
    """

    began_ns: int
    ended_ns: int
    datagrams: int = 0
    fresh: int = 0
    missing: int | None = None


@dataclass(slots=True)
class Event:
    """A control message of the transfer, or the first of a pass's datagrams."""

    time_ns: int
    name: str
    note: str


@dataclass(slots=True)
class Transfer:
    """One payload between two hosts. Addresses are four bytes, None until a packet shows them.

    Attributes:
        carrier: `udp` for our own transport, `tcp` for the kernel's.
        chunk_count: from the layout in a HELLO; None when the capture has none.
        datagrams, data_bytes: data packets on this link and their payload.
        repeated: those whose chunk was sent again; for `tcp`, segments.
        duplicates: copies of one transmission, which the network has made.
        late: those after STOP.
        messages: control messages by type; `message_bytes` with their headers.
        stopped_ns: when STOP passed, None if the capture has none.
        pass_open: whether the sender has not said that the latest pass has ended.
    """

    number: int
    session: int | None
    began_ns: int
    chunk_count: int | None
    carrier: str = "udp"
    sender: bytes | None = None
    receiver: bytes | None = None
    datagrams: int = 0
    data_bytes: int = 0
    distinct: int = 0
    repeated: int = 0
    duplicates: int = 0
    late: int = 0
    last_ns: int = 0
    stopped_ns: int | None = None
    message_bytes: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    passes: list[Pass] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    pass_open: bool = False
    _seen: dict[int, array[int]] | None = field(default_factory=dict)
    _pass: int = 0
    _named: int | None = None  # chunks that BITMAPs have named, where all were captured
    _highest: int = -1

    @property
    def leg(self) -> str:
        """`gather` or `broadcast`, from the number."""
        return Leg(self.number % 2).name.lower()

    @property
    def round(self) -> int:
        """The training round, from the number."""
        return self.number // 2

    @property
    def duration_s(self) -> float:
        """From the first packet of the transfer to STOP, or to its last datagram."""
        end_ns = self.last_ns if self.stopped_ns is None else self.stopped_ns
        return max(0, end_ns - self.began_ns) / 1e9

    def on_datagram(self, time_ns: int, sequence: int, stamp: int, length: int) -> None:
        """Count a datagram of this transfer."""
        self.last_ns = time_ns
        self.datagrams += 1
        self.data_bytes += length
        if self.stopped_ns is not None:
            self.late += 1
            return
        if not self.pass_open:
            self._begin_pass(time_ns)
        current = self.passes[-1]
        current.datagrams += 1
        current.ended_ns = time_ns
        if sequence > self._highest:
            self._highest = sequence
        if self._seen is None:
            return
        page = self._seen.get(sequence >> _PAGE_BITS)
        if page is None:
            page = self._seen[sequence >> _PAGE_BITS] = _EMPTY_PAGE[:]
        # Repair in passes sends a chunk once per pass, other repairs number all that they send.
        latest = self._pass % 0xFFFF * SEND_INDEX_MODULUS + stamp % SEND_INDEX_MODULUS
        before = page[sequence % _PAGE]
        if before == _UNSEEN:
            self.distinct += 1
            current.fresh += 1
        elif before == latest:
            self.duplicates += 1
        else:
            self.repeated += 1
        page[sequence % _PAGE] = latest

    def _begin_pass(self, time_ns: int) -> None:
        if len(self.passes) < MOST_PASSES:
            self.passes.append(Pass(time_ns, time_ns))
        self._pass += 1
        self.pass_open = True

    def on_message(self, time_ns: int, message: Message) -> None:
        """Count a control message of this transfer, and note it."""
        name = message.name
        self.messages[name] += 1
        self.message_bytes += message.length + 12
        if message.type == MessageType.PROBE:
            number, ends = _pass_of(message)
            if number == self.messages[name] == 1:
                self._named = 0
            self.pass_open = self.pass_open and not ends
        note = _NOTES.get(message.type, _plain_note)(self, message)
        if message.type == MessageType.STOP and self.stopped_ns is None:
            self.stopped_ns = time_ns
            self._seen = None
        if len(self.events) < MOST_EVENTS:
            self.events.append(Event(time_ns, name, note))

    def forget_chunks(self) -> None:
        """Free the memory of which chunks were seen; a later transfer has begun."""
        self._seen = None

    def chunks_estimate(self, bitmap_bytes: int | None = None) -> int:
        """The number of chunks: from the layout, else from what was seen."""
        if self.chunk_count is not None:
            return self.chunk_count
        seen = self._highest + 1
        if bitmap_bytes is None or bitmap_bytes == -(-seen // 8):
            return seen
        return bitmap_bytes * 8

    def name_chunks(self, body: bytes) -> tuple[int, int | None]:
        """Take a BITMAP; returns how many chunks it names, and how many are missing then.

        That is None where an earlier PROBE or BITMAP is not in the capture. Raises ProtocolError.
        """
        self._named, before = None, self._named
        chunks = unpack_arrivals(body, self.chunk_count or U32_MAX)
        answers = self.messages["BITMAP"] + self.messages["LATE_BITMAP"]
        if before is None or answers != self.messages["PROBE"]:
            return len(chunks), None
        self._named = before + len(chunks)
        self._highest = max(self._highest, int(chunks.max(initial=-1)))
        return len(chunks), max(0, self.chunks_estimate() - self._named)

    def as_json(self, origin_ns: int, name_of: Callable[[bytes | None], str]) -> dict[str, Any]:
        """The record in `dissect --json`; times are seconds since the capture began."""

        def seconds(time_ns: int | None) -> float | None:
            return None if time_ns is None else round((time_ns - origin_ns) / 1e9, 9)

        return {
            "transfer": self.number,
            "round": self.round,
            "leg": self.leg,
            "carrier": self.carrier,
            "session": self.session,
            "sender": name_of(self.sender),
            "receiver": name_of(self.receiver),
            "began_s": seconds(self.began_ns),
            "duration_s": self.duration_s,
            "stopped_s": seconds(self.stopped_ns),
            "chunk_count": self.chunk_count,
            "datagrams": self.datagrams,
            "data_bytes": self.data_bytes,
            "distinct_chunks": self.distinct if self.carrier == "udp" else None,
            "repeated": self.repeated,
            "duplicates": self.duplicates,
            "late": self.late,
            "messages": dict(self.messages),
            "message_bytes": self.message_bytes,
            "passes": [
                {
                    "began_s": seconds(each.began_ns),
                    "ended_s": seconds(each.ended_ns),
                    "datagrams": each.datagrams,
                    "fresh": each.fresh,
                    "missing": each.missing,
                }
                for each in self.passes
            ],
            "events": [
                {"at_s": seconds(each.time_ns), "message": each.name, "note": each.note}
                for each in self.events
            ],
        }


Note = Callable[[Transfer, Message], str]


def _plain_note(transfer: Transfer, message: Message) -> str:
    return f"{message.length} bytes" if message.length else ""


def _pass_of(message: Message) -> tuple[int, bool]:
    """The pass that a PROBE names, and whether it ends it; (0, False) without passes."""
    if message.body is None or message.length != PASS.size:
        return 0, False
    number, ends = PASS.unpack(message.body)
    return number, bool(ends)


def _probe_note(transfer: Transfer, message: Message) -> str:
    number, ends = _pass_of(message)
    if number:
        return "" if ends else "within the pass"
    if message.body is None or message.length != SENT.size:
        return ""
    return f"{SENT.unpack(message.body)[0]:,} sent until now"


def _bitmap_note(transfer: Transfer, message: Message) -> str:
    try:
        named, missing = transfer.name_chunks(message.body or b"")
    except ProtocolError:
        return "malformed" if message.body is not None else _cut_note(message)
    if missing is None:
        return f"{named:,} more arrived"
    if transfer.passes and not transfer.pass_open and transfer.passes[-1].missing is None:
        transfer.passes[-1].missing = missing
    return f"{missing:,} of {transfer.chunks_estimate():,} missing"


def _cut_note(message: Message) -> str:
    return f"{message.length} bytes, not all of them captured"


def _stop_note(transfer: Transfer, message: Message) -> str:
    if not message.length:
        return ""
    if message.body is None:
        return _cut_note(message)
    chunks = transfer.chunks_estimate(message.length)
    missing = max(0, chunks - int.from_bytes(message.body, "little").bit_count())
    return f"{missing:,} of {chunks:,} missing"


def _ack_note(transfer: Transfer, message: Message) -> str:
    if message.body is None:
        return _cut_note(message)
    try:
        ack = Ack.parse(message.body)
    except ProtocolError:
        return "malformed"
    marked = f", {ack.marked} marked" if ack.marked else ""
    return f"{int(ack.arrived.sum()):,} more arrived{marked}"


# What to say about a message's body; every other type is named with its size.
_NOTES: dict[int, Note] = {
    MessageType.PROBE: _probe_note,
    MessageType.BITMAP: _bitmap_note,
    MessageType.LATE_BITMAP: _bitmap_note,
    MessageType.STOP: _stop_note,
    MessageType.ACK: _ack_note,
}
