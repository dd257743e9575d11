"""A sender whose data do not arrive, although control messages do: it sends less, and pauses.

Meanwhile it looks for a size of datagrams that does arrive: the MTU may have shrunk (RFC 8899).
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable

from testbed.transport.core.congestion import Feedback

BATCH = 32  # datagrams between two pauses

# Answers must have named nothing new for so long, and so many of them, or fewer that tell of so
# many losses. Time alone says little: a busy peer may have answered once a second.
_TIME_S = 1.0
_ANSWERS = 16
_LOST = 2048
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

# So many small datagrams of each size go beside each batch of full ones. In so many rounds some of
# a size must have arrived, and so many in all, and no full one meanwhile: a path that loses nine of
# ten of every size, or all for a while, does not look like that.
_TRIALS = 8
_ROUNDS = 3
_ENOUGH = 16


class Fruitlessness:
    """What the answers to one transfer have named."""

    def __init__(self, now_s: float) -> None:
        self.since_s: float | None = None  # since when they have named nothing new
        self.resume_s = now_s  # until when to pause, once it `pauses`
        self.rounds = 0  # batches that went since it pauses
        self._answers = self._lost = 0
        self._pause_s = _FIRST_PAUSE_S

    def pauses(self, now_s: float) -> bool:
        """Whether control messages have come for a while, but no data has arrived."""
        enough = self._answers >= _ANSWERS or (self._answers > 1 and self._lost >= _LOST)
        return self.since_s is not None and enough and now_s - self.since_s >= _TIME_S

    def on_answer(self, feedback: Feedback | None, now_s: float) -> None:
        """Notes whether an answer tells of arrivals, or of losses alone."""
        if feedback is None:
            return
        if feedback.delivered_bytes:
            self.forget()
            self._pause_s = _FIRST_PAUSE_S
        elif feedback.lost_bytes:
            self._answers += 1
            self._lost += feedback.lost_bytes  # datagrams: what a repair tells
            if self.since_s is None:
                self.since_s = self.resume_s = now_s

    def on_sent(self, now_s: float) -> None:
        """A batch went while it pauses: the next one waits, each time longer."""
        self.rounds += 1
        self.resume_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def forget(self) -> None:
        """What was answered says nothing any more."""
        self.since_s, self._answers, self._lost, self.rounds = None, 0, 0, 0

    def excuse(self, away_s: float) -> None:
        """For so long this side sent nothing that an answer could have named."""
        if self.since_s is not None:
            self.since_s += away_s


class SizeSearch:
    """The trials of one sender whose full datagrams do not arrive."""

    def __init__(self, rounds: int = 0) -> None:
        self.rounds = rounds  # batches of full datagrams beside which trials went
        self._tried: dict[int, tuple[int, int]] = {}
        self._came: dict[int, Counter[int]] = {}  # by size: how many of each round

    def trials(self, sizes: Iterable[int]) -> list[tuple[int, int]]:
        """What to try beside the next batch: a number that nobody can guess, and its size."""
        self.rounds += 1
        trials = [(secrets.randbits(32), size) for size in sizes for _ in range(_TRIALS)]
        self._tried |= {number: (size, self.rounds) for number, size in trials}
        return trials

    def arrived(self, number: int) -> None:
        """The peer says that it has this one; it can only know the number from there."""
        if (trial := self._tried.pop(number, None)) is not None:
            self._came.setdefault(trial[0], Counter())[trial[1]] += 1

    @property
    def proven(self) -> int | None:
        """The first of the sizes that arrive; None while that is not sure."""
        sure = [
            rounds.total()
            for rounds in self._came.values()
            if len(rounds) >= _ROUNDS and rounds.total() >= _ENOUGH
        ]
        if not sure:
            return None
        # Of one that arrives, too, chance may have lost more.
        return min(size for size, rounds in self._came.items() if rounds.total() >= max(sure) / 2)
