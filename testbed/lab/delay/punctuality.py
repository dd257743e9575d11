"""How punctual a relay is: when each frame left, compared with when it should have left.

An average would hide that the relay stood still once. So the worst stretch counts, of a second and
of enough frames that a single late one does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

STRETCH_S = 1.0
# With so many frames, the two latest do not make the 99th percentile.
LEAST_FRAMES = 300
# A direction's mean wait is taken over so long, and of at least so many frames.
MEAN_S = 0.25
LEAST_FOR_MEAN = 20
# The histogram of lateness. Beyond 100 ms all values count as that; the maximum is exact.
_BIN_NS = 4_000
_BINS = 25_000
_COLLECTED = 2048


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A part of a run.

    Attributes:
        at_s: when it began, on the monotonic clock.
        frames: how many left in it.
        late_p99_s: how long after their due time they left, 99th percentile.
        late_max_s: the same, maximum.
        link, sender: the directed link of the latest frame.
    """

    at_s: float
    frames: int
    late_p99_s: float
    late_max_s: float
    link: str
    sender: str


class Punctuality:
    """Lateness of all frames, and the mean wait in each direction."""

    def __init__(self, directions: Sequence[tuple[str, str]], now_ns: int) -> None:
        self._directions = directions
        self._late_ns: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._wait_ns: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._number: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._usual: NDArray[np.bool_] = np.zeros(_COLLECTED, dtype=np.bool_)
        self._unusual_until_ns = [0.0] * len(directions)
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """Forget all that was added, and begin anew."""
        count = len(self._directions)
        self._used = 0
        self._counts: NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)
        self._began_ns, self._ends_ns = now_ns, now_ns + round(STRETCH_S * 1e9)
        self._mean_ends_ns = now_ns + round(MEAN_S * 1e9)
        self._latest_ns, self._latest_number = 0, 0
        self.early_max_ns = self._max_ns = 0
        self._worst: Stretch | None = None
        # Of each direction: frames and their waits since the last mean was taken.
        self._new_frames: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._new_waits_ns: NDArray[np.float64] = np.zeros(count)
        self._least_ns: NDArray[np.float64] = np.full(count, np.inf)
        self._most_ns: NDArray[np.float64] = np.full(count, -np.inf)
        self._left_out: NDArray[np.int64] = np.zeros(count, dtype=np.int64)

    def leave_out(self, number: int, until_ns: float) -> None:
        """Take no mean of the waits in direction `number` until then: its delay was changed."""
        self._unusual_until_ns[number] = until_ns

    def add(
        self, number: int, now_ns: int, due_ns: NDArray[np.int64], came_ns: NDArray[np.int64]
    ) -> None:
        """Frames that left direction `number` just now: when they were due, and when they came."""
        if now_ns >= self._mean_ends_ns:
            self._count()
            self._take_means()
            self._mean_ends_ns = now_ns + round(MEAN_S * 1e9)
        if now_ns >= self._ends_ns:
            self._end_stretch(now_ns)
        usual = now_ns >= self._unusual_until_ns[number]
        done = 0
        while done < len(due_ns):
            count = min(len(due_ns) - done, _COLLECTED - self._used)
            span = slice(self._used, self._used + count)
            np.subtract(now_ns, due_ns[done : done + count], out=self._late_ns[span])
            np.subtract(now_ns, came_ns[done : done + count], out=self._wait_ns[span])
            self._number[span], self._usual[span] = number, usual
            self._used += count
            done += count
            if self._used == _COLLECTED:
                self._count()

    def _count(self) -> None:
        if not self._used:
            return
        late_ns, wait_ns = self._late_ns[: self._used], self._wait_ns[: self._used]
        number = self._number[: self._used]
        latest = int(late_ns.argmax())
        if late_ns[latest] > self._latest_ns:
            self._latest_ns, self._latest_number = int(late_ns[latest]), int(number[latest])
        self.early_max_ns = max(self.early_max_ns, -int(late_ns.min()))
        bins = np.clip(late_ns // _BIN_NS, 0, _BINS - 1)
        self._counts += np.bincount(bins, minlength=_BINS)
        count = len(self._directions)
        usual = self._usual[: self._used]
        self._left_out += np.bincount(number[~usual], minlength=count)
        number, wait_ns = number[usual], wait_ns[usual]
        self._new_frames += np.bincount(number, minlength=count)
        self._new_waits_ns += np.bincount(number, weights=wait_ns, minlength=count)
        self._used = 0

    def _end_stretch(self, now_ns: int) -> None:
        self._count()
        self._ends_ns = now_ns + round(STRETCH_S * 1e9)
        if self._counts.sum() < LEAST_FRAMES:
            return  # it goes on
        stretch = self._stretch()
        if self._worst is None or stretch.late_p99_s > self._worst.late_p99_s:
            self._worst = stretch
        self._counts[:] = 0
        self._max_ns = max(self._max_ns, self._latest_ns)
        self._latest_ns = self._latest_number = 0
        self._began_ns = now_ns

    def _stretch(self) -> Stretch:
        link, sender = self._directions[self._latest_number]
        return Stretch(
            at_s=self._began_ns / 1e9,
            frames=int(self._counts.sum()),
            late_p99_s=_p99_s(self._counts, self._latest_ns),
            late_max_s=self._latest_ns / 1e9,
            link=link,
            sender=sender,
        )

    def _take_means(self) -> None:
        enough = self._new_frames >= LEAST_FOR_MEAN
        mean_ns = self._new_waits_ns[enough] / self._new_frames[enough]
        self._least_ns[enough] = np.minimum(self._least_ns[enough], mean_ns)
        self._most_ns[enough] = np.maximum(self._most_ns[enough], mean_ns)
        self._new_frames[enough] = 0
        self._new_waits_ns[enough] = 0

    def late_max_s(self) -> float:
        """The latest frame's lateness; 0 when nothing was added."""
        self._count()
        return max(self._max_ns, self._latest_ns) / 1e9

    def worst(self) -> Stretch | None:
        """The stretch whose 99th percentile is the largest; None before the first frame."""
        self._count()
        frames = int(self._counts.sum())
        if not frames or (frames < LEAST_FRAMES and self._worst is not None):
            return self._worst
        last = self._stretch()
        if self._worst is None or last.late_p99_s > self._worst.late_p99_s:
            return last
        return self._worst

    def waits(self) -> list[dict[str, Any]]:
        """What a `DirectionDelay` has of each direction's waits."""
        self._count()
        self._take_means()
        return [
            {
                "wait_least_s": _seconds(self._least_ns[number]),
                "wait_most_s": _seconds(self._most_ns[number]),
                "left_out": int(self._left_out[number]),
            }
            for number in range(len(self._directions))
        ]


def _seconds(time_ns: float) -> float | None:
    """A time in seconds; None where there was nothing to measure."""
    return float(time_ns) / 1e9 if math.isfinite(time_ns) else None


def _p99_s(counts: NDArray[np.int64], max_ns: int) -> float:
    rank = int(np.searchsorted(np.cumsum(counts), 0.99 * int(counts.sum())))
    # The last bin has no upper end.
    return (max_ns if rank == _BINS - 1 else min((rank + 1) * _BIN_NS, max_ns)) / 1e9
