"""Hedges a control stream: copies of its bytes in datagrams, while TCP is slow to deliver them.

    u32 session | u32 number and flag | u64 received | u64 first | bytes

`received` is how many bytes of the peer's stream have come, `first` the place of the bytes that
follow. Flag 1 asks for a hedge in return; the 31 bits above it number the hedges, and each number
is taken once. "Hedged control" in `docs/concepts/connection.md` says when a side hedges.
"""

import math
import struct
from collections import Counter, deque

_HEAD = struct.Struct("!IIQQ")
HEAD_BYTES = _HEAD.size
# With head, trailer and lower headers it fits into the smallest packet that IPv6 must carry.
PIECE_BYTES = 1152
_RETURN = 1
_Piece = tuple[int, bytes, int]  # of the stream: its place, its bytes, and the flag of its hedge
# A kernel may delay an acknowledgement for 40 ms. Besides, two round trips count.
_SLOW_S = 0.05
# For so long, and two round trips, what a side writes may reply to the hedge that it got.
_REPLIES_S = 5e-3
# What stays unanswered for the least round trip and this goes again, with twice as many copies.
_AGAIN_S = 2e-3
_MOST_COPIES = 8
_MOST_AT_A_TIME = 8  # pieces, or copies of fewer
# After so many times the pause doubles each time, up to the longest. After so many more, a side
# that asks gives up: hedges do not get through. New trouble begins with the longest pause from then
# on, until one comes.
_STEADY = 12
_LONGEST_S = 0.1
_HOPELESS = _STEADY + 8
# What is kept of the stream at most. Where more is under way, TCP alone delivers it.
_MOST_KEPT_BYTES = 1 << 20
# How far ahead of the stream a piece may be, and how many such pieces are kept.
_AHEAD_BYTES = 1 << 16
_MOST_AHEAD = 64
_WINDOW = 1024  # hedges behind the newest that are told from copies


class Hedge:
    """Both directions of one connection's stream."""

    def __init__(
        self, session: int, counters: Counter[str], *, written: int = 0, received: int = 0
    ) -> None:
        """So many bytes have gone and come. Counts in `counters` what is no hedge."""
        self.sent = self.gained = 0  # how many hedges were sent, and how many brought something
        self.round_trip_s = 0.0  # the smallest of the path, as far as is known
        self.troubled = False  # whether all goes in hedges, too, until the peer has it
        self._session = session
        self._counters = counters
        # The stream out: what the peer may lack, and TCP's own counts of bytes.
        self._kept = bytearray()  # from `_from` up to `_written`
        self._from = self._written = written
        self._unhedged: int | None = None  # from where on something is to be hedged that never was
        self._marks: deque[tuple[int, int, float]] = deque()  # TCP's count, `_written` then, when
        self._taken = self._until = 0  # TCP's count: now, and at the latest sign of trouble
        self._next = 0  # the place from which pieces go next
        # The stream in.
        self._received = self._by_tcp = received
        self._newest, self._seen = -1, 0  # the peer's hedges: bit i is the newest less i
        self._ahead: dict[int, bytes] = {}
        self._asks = False  # this side, for a hedge in return
        self._reply_due = False
        self._replies_until_s = -math.inf
        self._check_s = self._again_s = math.inf
        self._times, self._copies, self._hopeless = 0, 1, False

    def on_written(self, data: bytes, now_s: float, *, taken_bytes: int) -> None:
        """These bytes went into the stream; TCP has taken `taken_bytes` since its beginning."""
        first, place = not self._written, self._written
        self._written += len(data)
        self._kept += data
        self._taken = taken_bytes
        self._marks.append((taken_bytes, self._written, now_s))
        if first or len(self._kept) > _MOST_KEPT_BYTES:
            self._forget(self._written)
        elif (self.troubled or now_s < self._replies_until_s) and self._unhedged is None:
            self._unhedged = place
        if not self.troubled:
            self._check_s = min(self._check_s, now_s + self._slow_s)

    @property
    def _slow_s(self) -> float:
        return _SLOW_S + 2 * self.round_trip_s

    def acknowledged(self, taken_bytes: int) -> None:
        """The peer's kernel has acknowledged so many of the bytes that TCP has taken."""
        places = [written for taken, written, _ in self._marks if taken <= taken_bytes]
        self._peer_has(max(places, default=self._from))
        if self.troubled and taken_bytes >= self._until and not self._asks:
            self.troubled, self._again_s = False, math.inf
            self._check_s = self._lacked_since_s() + self._slow_s

    def doubt(self, now_s: float) -> None:
        """A message is overdue: it may be lost, or the one to which it would reply."""
        self._asks = True
        self._trouble(now_s)

    def _trouble(self, now_s: float) -> None:
        self._until = self._taken
        if not self.troubled:
            self.troubled, self._check_s = True, math.inf
            self._times, self._copies = _HOPELESS - 1 if self._hopeless else 0, 1
        if self._again_s == math.inf:
            self._again_s = now_s

    def _peer_has(self, place: int) -> None:
        if place > self._from:
            self._forget(place)
            if self._from == self._written and not self._asks:
                self._again_s = math.inf

    def _forget(self, place: int) -> None:
        del self._kept[: place - self._from]
        self._from = place
        while self._marks and self._marks[0][1] <= place:
            self._marks.popleft()

    def _lacked_since_s(self) -> float:
        return self._marks[0][2] if self._marks else math.inf

    def from_stream(self, data: bytes) -> bytes:
        overlap_bytes = self._received - self._by_tcp
        self._by_tcp += len(data)
        if self._by_tcp <= self._received:
            return b""
        self._received = self._by_tcp
        return data[overlap_bytes:] + self._continued()

    def from_datagram(self, datagram: bytes, now_s: float) -> bytes:
        """Returns what is new of a hedge; one that makes no sense is counted."""
        if not HEAD_BYTES <= len(datagram) <= HEAD_BYTES + PIECE_BYTES:
            return self._ignored("malformed")
        session, numbered, received, first = _HEAD.unpack_from(datagram)
        if session != self._session:
            return self._ignored("wrong-session")
        if received > self._written:
            return self._ignored("malformed")
        if not self._is_first(numbered >> 1):
            return self._ignored("replayed")
        self._hopeless = False
        if received > self._from:
            self._times, self._copies = 0, max(1, self._copies // 2)
            self._peer_has(received)
        if numbered & _RETURN:
            self._reply_due = True
            self._replies_until_s = now_s + _REPLIES_S + 2 * self.round_trip_s
            if self._lacked_since_s() < now_s - self.round_trip_s - _AGAIN_S:
                self._trouble(now_s)
        new = self._piece(first, datagram[HEAD_BYTES:])
        # While the peer has something to say, the rest of that may be lost.
        self._asks &= bool(new or self._ahead)
        return new

    def _is_first(self, number: int) -> bool:
        if (ahead := number - self._newest) > 0:
            self._newest = number
            self._seen = (self._seen << ahead if ahead < _WINDOW else 0) & (1 << _WINDOW) - 1
        behind = self._newest - number
        if behind >= _WINDOW or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True

    def _piece(self, first: int, data: bytes) -> bytes:
        end = first + len(data)
        if not data or end <= self._received:
            return b""
        if end > self._received + _AHEAD_BYTES:
            return self._ignored("far-ahead")
        if first <= self._received:
            self.gained += 1
        elif first not in self._ahead and len(self._ahead) >= _MOST_AHEAD:
            return b""
        self._ahead[first] = max(data, self._ahead.get(first, b""), key=len)
        return self._continued()

    def _ignored(self, why: str) -> bytes:
        self._counters[f"hedge-{why}"] += 1
        return b""

    def _continued(self) -> bytes:
        new = b""
        for first in sorted(self._ahead):
            if first > self._received:
                break
            more = self._ahead.pop(first)[self._received - first :]
            self._received += len(more)
            new += more
        return new

    @property
    def due_s(self) -> float:
        if self._reply_due or self._unhedged is not None:
            return -math.inf
        return min(self._again_s, self._check_s)

    def datagrams(self, now_s: float) -> list[bytes]:
        """Returns the hedges to send now; call `acknowledged` before."""
        if self._check_s <= now_s:
            self._check_s = self._lacked_since_s() + self._slow_s
            if self._check_s <= now_s:
                self._trouble(now_s)
        hedges = self._again(now_s) if self._again_s <= now_s else []
        if not hedges and (self._reply_due or self._unhedged is not None):
            hedges = self._at_once(now_s)
        self._unhedged, self._reply_due = None, False
        datagrams = [
            _HEAD.pack(self._session, number << 1 | flag, self._received, first) + data
            for number, (first, data, flag) in enumerate(hedges, start=self.sent)
        ]
        self.sent += len(hedges)
        return datagrams

    def _at_once(self, now_s: float) -> list[_Piece]:
        """Returns what was written lately; for a peer that asks, all that it may lack."""
        self._next = self._from if self._reply_due else max(self._from, self._unhedged or 0)
        pieces = self._pieces(_RETURN if self.troubled else 0)
        if not pieces:
            return [(self._from, b"", 0)] if self._reply_due else []
        if self.troubled and self._again_s == math.inf:
            self._again_s = now_s + self._pause_s
        return self._copied(pieces) if self.troubled else pieces

    def _again(self, now_s: float) -> list[_Piece]:
        """Returns all that the peer may lack, and of a longer stream other pieces each time."""
        pieces = self._pieces(_RETURN)
        if not pieces and self._asks:
            pieces = [(self._from, b"", _RETURN)]
        if not pieces:
            self._again_s = math.inf
            return []
        hedges = self._copied(pieces)
        self._again_s = now_s + self._pause_s
        self._times += 1
        self._copies = min(_MOST_COPIES, 2 * self._copies)
        if self._times >= _HOPELESS:
            self._asks, self._hopeless = False, True
        return hedges

    @property
    def _pause_s(self) -> float:
        pause_s = self.round_trip_s + _AGAIN_S
        slower = 2.0 ** min(max(0, self._times - _STEADY), 10)
        return min(pause_s * slower, max(pause_s, _LONGEST_S))

    def _copied(self, pieces: list[_Piece]) -> list[_Piece]:
        return (pieces * self._copies)[: max(len(pieces), _MOST_AT_A_TIME)]

    def _pieces(self, flag: int) -> list[_Piece]:
        end = min(self._written, self._from + _AHEAD_BYTES)
        if not self._from <= self._next < end:
            self._next = self._from
        pieces: list[_Piece] = []
        while self._next < end and len(pieces) < _MOST_AT_A_TIME:
            at = self._next - self._from
            data = bytes(self._kept[at : min(at + PIECE_BYTES, end - self._from)])
            pieces.append((self._next, data, flag))
            self._next += len(data)
        if self._next == end:
            self._next = self._from
        return pieces
