"""Hedges a control stream: copies of its bytes in datagrams, while TCP is slow to deliver them.

TCP waits 200 ms or more before it sends a lost message again, and longer after each further loss.
A *hedge* is a datagram with a piece of the same stream, named by its place in it. Whichever comes
first counts, as with the hedged requests of Dean and Barroso ("The Tail at Scale", 2013). TCP still
carries everything, so where no hedge gets through nothing is worse than without.

    u32 session | u32 flags | u64 heard | u64 first | bytes

`heard` is how many bytes of the peer's stream have come, `first` the place of the bytes that
follow. Flag 1 asks for a hedge in return, which tells what has come and brings what may not have.

In a calm network there are none. A side is *troubled* when a message that is due does not come,
when the peer's kernel takes longer to acknowledge than it may, or when the peer has not heard what
was said a while ago. Then what it says goes in hedges, too, again and again until the peer has it.
That ends when TCP has delivered all. A side that is hedged answers in the same way, once each.
"""

import math
import struct
from collections import Counter, deque

_HEAD = struct.Struct("!IIQQ")
HEAD_BYTES = _HEAD.size
# With head, trailer and lower headers it fits into the smallest packet that IPv6 must carry.
PIECE_BYTES = 1152
_RETURN = 1
# A kernel may delay an acknowledgement for 40 ms. Besides, two round trips count.
_PATIENCE_S = 0.05
# What stays unanswered for a round trip and this goes again, with twice as many copies, up to 8.
_AGAIN_S = 2e-3
_MOST_COPIES = 8
_MOST_AT_A_TIME = 8  # pieces, or copies of fewer
# After so many times without an answer the pause doubles each time, up to the longest. After so
# many more it asks no longer: hedges do not get through, or the peer does nothing.
_STEADY = 32
_LONGEST_S = 0.1
_HOPELESS = 8
# What is kept of the stream at most. Where more is under way, TCP alone delivers it.
_MOST_KEPT_BYTES = 1 << 20
# How far ahead of the stream a piece may be, and how many such pieces are kept.
_AHEAD_BYTES = 1 << 16
_MOST_AHEAD = 64


class Hedge:
    """Both directions of one connection's stream.

    Attributes:
        sent: how many hedges were sent.
        gained: how many brought something before TCP did.
        troubled: whether what is said goes in hedges until the peer has it.
    """

    def __init__(
        self,
        session: int,
        counters: Counter[str],
        *,
        said: int = 0,
        heard: int = 0,
        round_trip_s: float = 0.0,
    ) -> None:
        """So many bytes have been `said` and `heard`; a round trip takes `round_trip_s` or more.

        Counts in `counters` what is no hedge.
        """
        self.sent = self.gained = 0
        self.troubled = False
        self._session = session
        self._counters = counters
        self._round_trip_s = round_trip_s
        self._kept = bytearray()  # what was said from `_from` on, which the peer may lack
        self._from = self._said = said
        # TCP's own count of bytes, what was said by then, and when.
        self._marks: deque[tuple[int, int, float]] = deque()
        self._heard = self._by_tcp = heard
        self._ahead: dict[int, bytes] = {}
        self._asks = False  # the peer, for a hedge in return
        self._owes = False  # one
        self._hedged_until_s = -math.inf  # so long what this side says may answer the peer's hedges
        self._again_s = math.inf
        self._check_s = math.inf  # whether the peer's kernel has acknowledged
        self._patience_s = _PATIENCE_S + 2 * round_trip_s
        self._times, self._copies = 0, 1
        self._next = 0  # the place from which pieces go next

    # The side that speaks.

    def said(self, data: bytes, now_s: float, *, taken_bytes: int) -> None:
        """These bytes went into the stream; TCP has taken `taken_bytes` since its beginning.

        The first ones are not hedged: they belong to joining, and may hold a key.
        """
        first = not self._said
        self._said += len(data)
        self._kept += data
        self._marks.append((taken_bytes, self._said, now_s))
        if first or len(self._kept) > _MOST_KEPT_BYTES:
            self._forget(self._said)
        if self.troubled:
            self._again_s = now_s
        elif now_s < self._hedged_until_s:
            self._owes = True
        self._check_s = min(self._check_s, now_s + self._patience_s)

    def acknowledged(self, taken_bytes: int) -> None:
        """The peer's kernel has acknowledged so many of the bytes that TCP has taken."""
        while self._marks and self._marks[0][0] <= taken_bytes:
            self._has(self._marks.popleft()[1])
        if not self._marks and not self._asks:
            self.troubled, self._again_s = False, math.inf

    def doubt(self, now_s: float) -> None:
        """A message is overdue: it may be lost, or what it would answer."""
        self._asks = True
        self._trouble(now_s)

    def _trouble(self, now_s: float) -> None:
        self.troubled = True
        if self._again_s == math.inf:
            self._again_s, self._times, self._copies = now_s, 0, 1

    def _has(self, place: int) -> None:
        """The peer has all before this place."""
        if place > self._from:
            self._forget(place)
            self._times, self._copies = 0, max(1, self._copies // 2)

    def _forget(self, place: int) -> None:
        del self._kept[: place - self._from]
        self._from = place

    # The side that hears.

    def from_stream(self, data: bytes) -> bytes:
        """What is new of the next bytes that TCP brought."""
        known = self._heard - self._by_tcp
        self._by_tcp += len(data)
        if self._by_tcp <= self._heard:
            return b""
        self._heard = self._by_tcp
        return data[known:] + self._continued()

    def from_datagram(self, datagram: bytes, now_s: float) -> bytes:
        """What is new of what a hedge brought; one that makes no sense is counted."""
        if not HEAD_BYTES <= len(datagram) <= HEAD_BYTES + PIECE_BYTES:
            return self._ignored("malformed")
        session, flags, heard, first = _HEAD.unpack_from(datagram)
        if session != self._session:
            return self._ignored("wrong-session")
        data = datagram[HEAD_BYTES:]
        end = first + len(data)
        if flags & ~_RETURN or heard > self._said:
            return self._ignored("malformed")
        if end > self._heard + _AHEAD_BYTES:
            return self._ignored("far-ahead")
        self._asks = False
        self._has(heard)
        if flags & _RETURN:
            self._owes = True
            self._hedged_until_s = now_s + self._patience_s
            if self._lacked_since_s() < now_s - self._round_trip_s - _AGAIN_S:
                self._trouble(now_s)
        if end <= self._heard:
            return b""
        if first > self._heard:
            if first in self._ahead or len(self._ahead) < _MOST_AHEAD:
                self._ahead[first] = max(data, self._ahead.get(first, b""), key=len)
            return b""
        self.gained += 1
        new = data[self._heard - first :]
        self._heard = end
        return new + self._continued()

    def _lacked_since_s(self) -> float:
        """When this side said the first of what the peer may lack; math.inf for nothing."""
        if self._from == self._said:
            return math.inf
        return next((said_s for _, said, said_s in self._marks if said > self._from), math.inf)

    def _ignored(self, why: str) -> bytes:
        self._counters[f"hedge-{why}"] += 1
        return b""

    def _continued(self) -> bytes:
        """What had come ahead of the stream and continues it now."""
        new = b""
        for first in sorted(self._ahead):
            if first > self._heard:
                break
            more = self._ahead.pop(first)[self._heard - first :]
            self._heard += len(more)
            new += more
        return new

    # What is due.

    @property
    def due_s(self) -> float:
        """When `datagrams` is due; math.inf for never."""
        return -math.inf if self._owes else min(self._again_s, self._check_s)

    def datagrams(self, now_s: float) -> list[bytes]:
        """What to send now; call `acknowledged` before."""
        if self._check_s <= now_s:
            self._check(now_s)
        hedges: list[bytes] = []
        if self._again_s <= now_s:
            hedges = self._again(now_s)
        if self._owes and not hedges:
            hedges = self._pieces(flags=0) or [self._hedge(self._from, b"", flags=0)]
        self._owes = False
        self.sent += len(hedges)
        return hedges

    def _check(self, now_s: float) -> None:
        """Whether what was said some time ago has been acknowledged since."""
        self._check_s = self._lacked_since_s() + self._patience_s
        if self._check_s <= now_s:
            self._trouble(now_s)
            self._check_s = math.inf  # the trouble ends when there is nothing to check

    def _again(self, now_s: float) -> list[bytes]:
        pieces = self._pieces(flags=_RETURN)
        if not pieces and self._asks:
            pieces = [self._hedge(self._from, b"", flags=_RETURN)]
        if not pieces:
            self._again_s = math.inf
            return []
        hedges = (pieces * self._copies)[: max(len(pieces), _MOST_AT_A_TIME)]
        self._times += 1
        self._asks &= self._times < _STEADY + _HOPELESS
        self._copies = min(_MOST_COPIES, 2 * self._copies)
        pause_s = _AGAIN_S * 2.0 ** min(max(0, self._times - _STEADY), 10)
        self._again_s = now_s + self._round_trip_s + min(pause_s, _LONGEST_S)
        return hedges

    def _pieces(self, *, flags: int) -> list[bytes]:
        """Pieces of what the peer may lack, and of a longer stream other ones each time."""
        if self._from == self._said:
            return []
        if not self._from <= self._next < self._said:
            self._next = self._from
        pieces = []
        for _ in range(_MOST_AT_A_TIME):
            at = self._next - self._from
            data = bytes(self._kept[at : at + PIECE_BYTES])
            pieces.append(self._hedge(self._next, data, flags=flags))
            self._next += len(data)
            if self._next == self._said:
                self._next = self._from
                break
        return pieces

    def _hedge(self, first: int, data: bytes, *, flags: int) -> bytes:
        return _HEAD.pack(self._session, flags, self._heard, first) + data
