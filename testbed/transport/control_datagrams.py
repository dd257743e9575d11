"""A stream of control messages in datagrams: what goes at once, and goes again until it came.

    u32 session | u64 number and flags | u64 echo | u64 received | u64 first | bytes

`received` counts the bytes that have come of the peer's stream, `first` is the place of those that
follow. Each number is taken once; `echo` is one above the newest that came. "Control in datagrams"
in `docs/concepts/connection.md` explains it.
"""

import math
import struct
from collections import Counter, deque
from typing import NamedTuple

from testbed.transport.errors import ProtocolError

_HEAD = struct.Struct("!IQQQQ")
HEAD_BYTES = _HEAD.size
# With head, trailer and lower headers it fits into the smallest packet that IPv6 must carry.
PIECE_BYTES = 1152
LONGEST_BYTES = HEAD_BYTES + PIECE_BYTES
# The flags: reply at once; these bytes went before.
_ASKS, _AGAIN = 1, 2
FLAG_BITS = 2
_MOST_AT_A_TIME = 8  # pieces, or copies of fewer
_WINDOW_BYTES = _MOST_AT_A_TIME * PIECE_BYTES  # where more is under way, TCP carries it, too
_TCP_PIECE_BYTES = 1 << 16
MOST_TCP_BYTES = HEAD_BYTES + _TCP_PIECE_BYTES
_MOST_KEPT_BYTES = 16 << 20
# What asks for no reply is acknowledged so late, unless something goes before; then it goes again
# after so long and two replies' time. Whoever needs it sooner asks.
ACK_DELAY_S = 0.025
_SLOW_S = 0.05
# What asks goes again, in up to twice as many copies, where a reply takes longer than others, which
# also wait for a busy peer: their mean, four mean deviations and this (RFC 9002, section 6.2.1; the
# pause stays the same, since the message has to get through a burst), up to the longest, or to the
# least of recent ones on a path that is longer.
_AGAIN_S = 2e-3
_LONGEST_REPLY_S = 0.03
_RECENT = 16
_FIRST_REPLY_S = 0.01
_MOST_COPIES = 8
# After so many times the pause doubles each time, up to the longest. After so many more, datagrams
# do not get through: TCP carries all until one does.
_STEADY = 12
_LONGEST_S = 0.1
_HOPELESS = _STEADY + 8
_MOST_AHEAD = 64  # pieces ahead of the stream that are kept
_NUMBERS = 1024  # behind the newest that are told from copies
_MOST_TIMED = 64


class _Sent(NamedTuple):
    end: int  # the place behind the piece
    number: int  # of the datagram that brought it last
    sent_s: float


class DatagramStream:
    """Both directions of one connection."""

    def __init__(self, session: int, counters: Counter[str]) -> None:
        """Counts in `counters` what is none of its datagrams."""
        self.sent = self.repeated = 0  # datagrams, and those of what had gone before
        self.late = False  # whether what `take` has returned last was delayed on its way
        self.blocked = False  # whether datagrams do not get through
        self._session, self._counters = session, counters
        self._reply_s, self._deviation_s = _FIRST_REPLY_S, _FIRST_REPLY_S / 4
        self._recent_s: deque[float] = deque(maxlen=_RECENT)
        self._asked_s: dict[int, float] = {}  # when the latest that ask were sent, by number
        self._heard = 0  # the largest echo
        # The stream out, by places: the peer has all up to `_from`; what follows is kept.
        self._kept = bytearray()
        self._from = self._next = self._written = 0  # from `_next` on nothing has gone yet
        self._urgent = self._needed = 0  # before: what asks for a reply, what the peer awaits
        self._by_tcp = 0  # up to here it went by TCP
        self._under_way: deque[_Sent] = deque()
        self._again_s = math.inf
        self._lost = False
        self._times, self._copies = 0, 1
        self._repeat = 0  # the number of the first datagram that went again
        # The stream in.
        self._received = 0
        self._newest, self._seen = -1, 0  # the peer's datagrams: bit i is the newest less i
        self._ahead: dict[int, bytes] = {}
        self._gap = -1  # where the gap was that the peer has been told of
        self._reply_due = self._reply_due_by_tcp = self._peer_repeats = False
        self._acknowledge_s = math.inf
        self._repeated_s = -math.inf  # when the peer was last told again what it may lack

    def write(self, data: bytes, *, urgent: bool, needed: bool = True) -> None:
        """Takes bytes to send; the peer waits for what is needed. ProtocolError: too many lie."""
        self._kept += data
        self._written += len(data)
        if urgent:
            self._urgent = self._written
        if needed:
            self._needed = self._written
        if len(self._kept) > _MOST_KEPT_BYTES:
            raise ProtocolError("it does not acknowledge what it is sent")

    # What comes.

    def take(self, datagram: bytes, now_s: float, *, waited: bool, by_tcp: bool = False) -> bytes:
        """Returns what is new of the peer's stream; a datagram that makes no sense is counted."""
        longest = MOST_TCP_BYTES if by_tcp else LONGEST_BYTES
        if not HEAD_BYTES <= len(datagram) <= longest:
            return self._ignored("malformed")
        session, numbered, echo, received, first = _HEAD.unpack_from(datagram)
        if session != self._session:
            return self._ignored("wrong-session")
        if received > self._written or echo > self.sent:
            return self._ignored("malformed")
        if not (by_tcp or self._is_first(numbered >> FLAG_BITS)):
            return self._ignored("replayed")
        self._acknowledged(received, now_s)
        self._echoed(echo, now_s)
        self.late = waited or by_tcp or bool(numbered & _AGAIN) or bool(self._ahead)
        new = self._piece(first, datagram[HEAD_BYTES:])
        asks = bool(numbered & _ASKS)
        if by_tcp:
            self._reply_due_by_tcp |= asks
        elif asks and numbered & _AGAIN and now_s < self._repeated_s + _AGAIN_S:  # another copy
            self._acknowledge_s = min(self._acknowledge_s, self._repeated_s + _AGAIN_S)
        elif asks and numbered & _AGAIN:
            self._reply_due = self._peer_repeats = True
        elif asks or (self._ahead and self._gap != self._received):
            self._reply_due = True
        elif len(datagram) > HEAD_BYTES:
            self._acknowledge_s = min(self._acknowledge_s, now_s + ACK_DELAY_S)
        self._gap = self._received if self._ahead else -1
        return new

    def _ignored(self, why: str) -> bytes:
        self._counters[f"control-{why}"] += 1
        return b""

    def _is_first(self, number: int) -> bool:
        if (ahead := number - self._newest) > 0:
            self._newest = number
            self._seen = (self._seen << ahead if ahead < _NUMBERS else 0) & (1 << _NUMBERS) - 1
        behind = self._newest - number
        if behind >= _NUMBERS or self._seen >> behind & 1:
            return False
        self._seen |= 1 << behind
        return True

    def _acknowledged(self, place: int, now_s: float) -> None:
        if place <= self._from:
            return
        del self._kept[: place - self._from]
        self._from, self._next = place, max(self._next, place)
        while self._under_way and self._under_way[0].end <= place:
            self._under_way.popleft()
        if not self._times:
            self._copies = max(1, self._copies // 2)
        self._times, self._again_s = 0, math.inf
        self._set_timer(now_s)

    def _echoed(self, echo: int, now_s: float) -> None:
        if echo <= self._heard:
            return
        self._heard, self.blocked = echo, False
        if (sent_s := self._asked_s.get(echo - 1)) is not None:
            self._recent_s.append(now_s - sent_s)
            off_s = now_s - sent_s - self._reply_s
            self._reply_s += off_s / 8
            self._deviation_s += (abs(off_s) - self._deviation_s) / 4
        if echo <= self._repeat:  # nothing was lost: the reply was late
            self._copies = 1
        self._asked_s = {number: at_s for number, at_s in self._asked_s.items() if number >= echo}
        # A later one came before it.
        self._lost = bool(self._under_way) and self._under_way[0].number < echo - 1

    def _piece(self, first: int, data: bytes) -> bytes:
        end = first + len(data)
        if not data or end <= self._received:
            return b""
        if first > self._received and len(self._ahead) >= _MOST_AHEAD:
            return self._ignored("far-ahead")
        if end > self._received + _WINDOW_BYTES + _TCP_PIECE_BYTES:
            return self._ignored("far-ahead")
        self._ahead[first] = max(data, self._ahead.get(first, b""), key=len)
        new = b""
        for place in sorted(self._ahead):
            if place > self._received:
                break
            more = self._ahead.pop(place)[self._received - place :]
            self._received += len(more)
            new += more
        return new

    # What goes.

    @property
    def due_s(self) -> float:
        """It tells when to ask for `datagrams` at the latest."""
        if self._reply_due or self._lost or self._next < self._written:
            return -math.inf
        return min(self._again_s, self._acknowledge_s)

    def datagrams(self, now_s: float) -> list[bytes]:
        """Returns the datagrams to send now."""
        if now_s < self.due_s:
            return []
        begin, flags = self._next, _ASKS if self._next < self._urgent else 0
        again = self._again_s <= now_s
        due = self._reply_due and now_s >= self._repeated_s + _AGAIN_S  # a flood gets no more
        if due and begin == self._written and self._needed > self._from:  # which may be lost
            begin, flags, self._repeated_s = self._from, _AGAIN, now_s
        if again or self._lost or self._peer_repeats:
            begin, flags = self._from, _AGAIN | (_ASKS if again or self._lost else 0)
        if again or self._peer_repeats:  # of so many datagrams few arrive
            self._copies = min(_MOST_COPIES, 2 * self._copies)
        if self._peer_repeats:
            self._repeated_s = now_s
        if again:
            self._repeat = self._repeat if self._times else self.sent
            self._times += 1
            self._again_s = math.inf
            self.blocked |= self._times >= _HOPELESS
        self._lost = self._peer_repeats = False
        end = min(self._written, self._from + _WINDOW_BYTES)
        kept = self._kept[: end - self._from]
        pieces = [
            (place, bytes(kept[place - self._from : place - self._from + PIECE_BYTES]))
            for place in range(begin, end, PIECE_BYTES)
        ]
        self._note_sent(pieces, now_s)
        self._next = self._written
        self._set_timer(now_s)
        if not pieces and (self._reply_due or self._acknowledge_s <= now_s):
            pieces, flags = [(self._from, b"")], 0
        copies = 1 if self.blocked else self._copies
        pieces = (pieces * copies)[: max(len(pieces), _MOST_AT_A_TIME)]
        if pieces:
            self._reply_due, self._acknowledge_s = False, math.inf
        self.repeated += len(pieces) if flags & _AGAIN else 0
        if flags & _ASKS:
            self._asked_s |= dict.fromkeys(range(self.sent, self.sent + len(pieces)), now_s)
            for number in list(self._asked_s)[:-_MOST_TIMED]:
                del self._asked_s[number]
        return [self._packed(flags, first, data) for first, data in pieces]

    def _note_sent(self, pieces: list[tuple[int, bytes]], now_s: float) -> None:
        if pieces and self._under_way and pieces[0][0] < self._under_way[-1].end:
            self._under_way.clear()  # all of it goes again
        for number, (first, data) in enumerate(pieces, start=self.sent):
            self._under_way.append(_Sent(first + len(data), number, now_s))

    def _packed(self, flags: int, first: int, data: bytes) -> bytes:
        number, self.sent = self.sent, self.sent + 1
        numbered = number << FLAG_BITS | flags
        head = _HEAD.pack(self._session, numbered, self._newest + 1, self._received, first)
        return head + data

    def for_tcp(self, *, leaving: bool = False) -> list[bytes]:
        """Returns what TCP is to bring, too: all, where this side is `leaving` its loop."""
        bodies = []
        leaving &= self._needed > self._from
        if leaving or self.blocked or len(self._kept) > _WINDOW_BYTES:
            for place in range(max(self._from, self._by_tcp), self._written, _TCP_PIECE_BYTES):
                at = place - self._from
                data = bytes(self._kept[at : at + _TCP_PIECE_BYTES])
                bodies.append(self._packed(0 if leaving else _ASKS, place, data))
            self._by_tcp = self._written
        if self._reply_due_by_tcp and not bodies:
            bodies.append(self._packed(0, self._from, b""))
        self._reply_due_by_tcp = False
        return bodies

    def _set_timer(self, now_s: float) -> None:
        if not self._kept:
            self._again_s = math.inf
        elif self._times or (self._urgent > self._from and len(self._kept) <= _WINDOW_BYTES):
            self._again_s = min(self._again_s, now_s + self._pause_s)
        else:
            since_s = self._under_way[0].sent_s if self._under_way else now_s
            self._again_s = min(self._again_s, since_s + _SLOW_S + 2 * self._reply_s)

    @property
    def _pause_s(self) -> float:
        longest_s = max(min(self._recent_s, default=0.0), _LONGEST_REPLY_S)
        pause_s = min(self._reply_s + 4 * self._deviation_s, longest_s) + _AGAIN_S
        slower = 2.0 ** min(max(0, self._times - _STEADY), 10)
        return min(pause_s * slower, max(pause_s, _LONGEST_S))
