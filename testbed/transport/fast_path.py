"""The loops over datagrams that every byte passes, and what they may do without the protocol.

`Composer` and `Placement` are the numpy reference; `testbed.transport.native` does the same in C,
and also carries out plans while the driver waits. A `SendPlan`'s datagrams go as long as nothing
arrives: until then rate and window of the congestion control are steady, and so many chunks of the
repair are `plannable`. A `ReceivePlan` takes datagrams until the `SilenceBudget` is spent, or as
many have come as the stop rule calls `missing`. Results of a plan are reported before anything
else. See docs/concepts/pacing.md.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.layout import PayloadLayout
from testbed.transport.pacing import Pacer
from testbed.transport.wire import (
    ACK_REQUESTED,
    CHUNK_BITS,
    NUMBER_MODULUS,
    SEND_INDEX_BITS,
    SEND_INDEX_MODULUS,
    ahead_of,
    fields,
    numbers_of,
    stamps_of,
)

ASK_FIRST, ASK_LAST = 1, 2  # bits: which datagrams of a batch ask for an ACK
LEAST_FOR_TWO = 4  # datagrams of a batch for both
UNLIMITED = 1 << 62  # datagrams
_CHUNK_MASK = (1 << CHUNK_BITS) - 1
# A receiver remembers so many numbers for each chunk, and so many at the least: what was delayed by
# more datagrams than that is refused.
_NUMBERS_PER_CHUNK, _LEAST_WINDOW = 4, 1024
# A number so far ahead, or half a window, may be damaged: taken at once, it would move the window
# past what is to come.
_FAR = SEND_INDEX_MODULUS // 2
# Why a datagram is dropped: by its header, then by its number.
FAULTS = (
    *("wrong-session", "stale-transfer", "early-transfer", "out-of-range", "wrong-length"),
    *("replayed", "too-old", "far-ahead"),
)


@dataclass(kw_only=True, eq=False)
class Composer:
    """Writes the datagrams of one transfer into the memory from which batches are sent."""

    session: int
    transfer: int
    layout: PayloadLayout
    rows: NDArray[np.uint8]  # the payload's, as `PayloadLayout.rows` gives them
    frames: NDArray[np.uint8]

    def compose(self, chunks: NDArray[np.int64], first: int, *, ask: int) -> bool:
        """Writes one datagram per chunk, at most as many as `frames` has rows."""
        if chunks.min() < 0 or chunks.max() >= self.layout.chunk_count:
            return False
        chunks = chunks.astype(np.int64, copy=False)
        batch = fields(self.frames, self.layout.chunk_bytes)[: len(chunks)]
        batch["session"] = self.session
        batch["transfer"] = self.transfer
        numbers = np.arange(first, first + len(chunks)) % NUMBER_MODULUS
        batch["sequence"] = chunks | numbers >> SEND_INDEX_BITS << CHUNK_BITS
        batch["length"] = self.layout.chunk_lengths[chunks]
        batch["chunk"] = self.rows[chunks]
        batch["stamp"] = numbers % SEND_INDEX_MODULUS
        if ask & ASK_FIRST:
            batch["stamp"][0] |= ACK_REQUESTED
        if ask & ASK_LAST:
            batch["stamp"][-1] |= ACK_REQUESTED
        return True


class Arrivals(NamedTuple):
    stamps: NDArray[np.uint32]
    new: NDArray[np.int64]


def window_of(chunk_count: int) -> int:
    """Returns how many numbers a receiver remembers: a power of two, at most half of all."""
    least = max(_LEAST_WINDOW, _NUMBERS_PER_CHUNK * chunk_count)
    return min(1 << (least - 1).bit_length(), NUMBER_MODULUS // 2)


@dataclass(kw_only=True, eq=False)
class Placement:
    """Checks arriving datagrams and writes new chunks to their places in a buffer."""

    session: int
    transfer: int
    layout: PayloadLayout
    rows: NDArray[np.uint8]  # the buffer's, shape (chunk_count, chunk_bytes)

    def __post_init__(self) -> None:
        self.received = np.zeros(self.layout.chunk_count, dtype=np.bool_)
        self.received_count = 0
        self.ignored: Counter[str] = Counter()  # datagrams dropped, by reason
        # By number modulo the window; nothing was sent before the first.
        self._seen = np.ones(window_of(self.layout.chunk_count), dtype=np.bool_)
        self._far = min(_FAR, len(self._seen) // 2)
        self._newest = self._farthest = NUMBER_MODULUS - 1

    def move(self, rows: NDArray[np.uint8]) -> None:
        """Copies what has arrived to another buffer, which is the place of all from now on."""
        rows[self.received] = self.rows[self.received]
        self.rows = rows

    def take(self, frames: NDArray[np.uint8]) -> Arrivals:
        """Takes a batch of the layout's datagrams, one per row, shape (k, datagram bytes)."""
        batch = self._valid(fields(frames, self.layout.chunk_bytes))
        stamps = stamps_of(batch)
        if not (fresh := self._first_time(numbers_of(stamps))).all():
            batch, stamps = batch[fresh], stamps[fresh]
        return Arrivals(stamps, self._place(batch))

    def _first_time(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Finds the numbers that are new and in the window; counts the others."""
        if not len(numbers):
            return np.empty(0, dtype=np.bool_)
        seen, window = self._seen, len(self._seen)
        ahead = ahead_of(numbers, self._newest)
        step = max(0, int(ahead.max()))
        if step > self._far:
            step = self._far_step(numbers, ahead)
        if step:
            seen[(self._newest + 1 + np.arange(min(step, window))) % window] = False
            self._newest = (self._newest + step) % NUMBER_MODULUS
            ahead -= step
        fresh = (ahead > -window) & (ahead <= 0)
        if outside := len(fresh) - int(np.count_nonzero(fresh)):
            far = int(np.count_nonzero(ahead > 0))
            self.ignored += Counter({"far-ahead": far, "too-old": outside - far})
        places = numbers % window
        fresh &= ~seen[places]
        if not (ahead[1:] > ahead[:-1]).all():  # some may have come twice in this batch
            candidates = np.flatnonzero(fresh)
            firsts = candidates[np.unique(places[candidates], return_index=True)[1]]
            fresh[:] = False
            fresh[firsts] = True
        seen[places[fresh]] = True
        if again := len(fresh) - outside - int(np.count_nonzero(fresh)):
            self.ignored["replayed"] += again
        return fresh

    def _far_step(self, numbers: NDArray[np.int64], ahead: NDArray[np.int64]) -> int:
        """Returns how far the window moves where a number is far ahead, or damaged."""
        step = 0
        for number, distance in zip(numbers.tolist(), ahead.tolist(), strict=True):
            if distance - step > self._far and abs(ahead_of(number, self._farthest)) > self._far:
                self._farthest = number
            else:
                step = max(step, distance)
        return step

    def _valid(self, batch: NDArray[np.void]) -> NDArray[np.void]:
        """Finds the records whose header fits this transfer; counts the others' first faults."""
        transfers = batch["transfer"]
        sequences = batch["sequence"] & _CHUNK_MASK
        in_range = sequences < self.layout.chunk_count
        lengths = self.layout.chunk_lengths[np.where(in_range, sequences, 0)]
        faults = np.stack(
            [
                batch["session"] != self.session,
                transfers < self.transfer,
                transfers > self.transfer,
                ~in_range,
                batch["length"] != lengths,
            ]
        )
        good = ~faults.any(axis=0)
        if good.all():
            return batch
        counts = np.bincount(faults[:, ~good].argmax(axis=0), minlength=len(FAULTS))
        self.ignored.update({FAULTS[fault]: int(counts[fault]) for fault in np.flatnonzero(counts)})
        return batch[good]

    def _place(self, batch: NDArray[np.void]) -> NDArray[np.int64]:
        """Writes the new chunks to their rows; returns which were new."""
        chunks = batch["sequence"].astype(np.int64) & _CHUNK_MASK
        firsts = np.sort(np.unique(chunks, return_index=True)[1])
        new = firsts[~self.received[chunks[firsts]]]
        if duplicates := len(chunks) - len(new):
            self.ignored["duplicate"] += duplicates
        chunks = chunks[new]
        self.received[chunks] = True
        self.rows[chunks] = batch["chunk"][new]
        self.received_count += len(chunks)
        return chunks


def _transfer_of(frames: NDArray[np.uint8]) -> int | None:
    transfers = frames[:, 8:12].view(">u4")
    return int(transfers[0, 0]) if (transfers == transfers[0, 0]).all() else None


class FastPath(NamedTuple):
    """Says who composes and who places."""

    composer: type[Composer]
    placement: type[Placement]
    transfer_of: Callable[[NDArray[np.uint8]], int | None]
    compiled: bool  # whether it is the C code


NUMPY = FastPath(Composer, Placement, _transfer_of, compiled=False)


def defines(part: object, name: str) -> bool:
    """Says whether a class itself defines `steady_until_s`, `plannable` or `silence`.

    Inherited, they do not count: a subclass may have changed what they rest on.
    """
    return name in vars(type(part))


class SendPlan(NamedTuple):
    """Datagrams that may go in this order until something arrives; counts are from its begin."""

    composer: Composer  # writes them, with send indices from `first` on
    chunks: NDArray[np.int64]  # one for each datagram, shape (count,)
    first: int
    beyond: int  # how many more wait behind these; a batch need not be short because of them
    pacer: Pacer  # says when they go; its `tokens` and `refilled_s` are set after some have gone
    window: int = UNLIMITED  # so many may go until the window is full
    question: int = UNLIMITED  # once more have gone, the repair has a say before the next batch
    ask_at: int = UNLIMITED  # the first datagram of the batch that reaches it asks for an ACK
    ask_gap: int = 0  # and of later ones at such distances; where the window is full, too; 0: none
    rests: bool = False  # with a full window there is nothing to say
    steady_until_s: float = math.inf  # later ones may move the pace: the next one is offered


class SilenceBudget(NamedTuple):
    """Limits the datagrams that may come before a receiver's repair has to send a message."""

    budget: float  # each that comes costs 1; a message is due once it is overdrawn
    newest: int = -1  # the latest number, where they must come in order
    lost_cost: float = 1.0  # what each costs that is missing in that order
    likely: float = math.inf  # how many will come until then, judging by the last ones


NO_SILENCE = SilenceBudget(0, likely=0)

COALESCED_S = 1e-3  # a driver that is awake reads what would otherwise wake it so soon


class Coalescer:
    """Measures the arrivals from one peer, and says how long they may wait for others."""

    most_datagrams = 44  # as many as one segmented send of the peer
    least_s = 2.5e-4  # a shorter wait saves nothing
    # The rate is measured over at least a window, and not over pauses, in which nothing was sent.
    window_s = 1e-3
    pause_s = 2e-2
    decay = 0.9  # a rate is expected again: a burst of losses may end at any time

    def __init__(self) -> None:
        self.rate = 0.0  # in datagrams per second; 0 while unknown
        self.count = 0
        self.since_s = self.last_s = -math.inf

    def arrived(self, datagrams: int, now_s: float) -> None:
        if now_s - self.last_s > self.pause_s:
            self.since_s, self.count = now_s, 0
        else:
            self.count += datagrams
            elapsed_s = now_s - self.since_s
            if elapsed_s >= self.window_s:
                self.rate = max(self.count / elapsed_s, self.decay * self.rate)
                self.since_s, self.count = now_s, 0
        self.last_s = now_s

    def paused(self, latest_s: float) -> bool:
        """Says whether a stream has paused whose latest datagram came then, while others came."""
        return self.last_s - latest_s > self.pause_s

    def wait_s(self, missing: int, most_s: float) -> float:
        """Returns how long to wait for more when `missing` chunks could be enough; 0: not."""
        if not self.rate:
            return 0.0
        wait_s = min(most_s, min(self.most_datagrams, missing / 2) / self.rate)
        return wait_s if wait_s >= self.least_s else 0.0


class ReceivePlan(NamedTuple):
    """Datagrams of one transfer to which no message replies at first."""

    placement: Placement  # takes them
    coalescer: Coalescer  # says how long they may wait, and is told how many came
    missing: int  # so many new chunks could be enough
    most_s: float  # the longest that they may wait
    silence: SilenceBudget
