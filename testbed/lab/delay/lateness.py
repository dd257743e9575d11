"""How late frames left, over a whole run, in a fixed amount of memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BIN_NS = 2_000
_BINS = 25_000  # up to 50 ms; beyond that the last one
_COLLECTED = 1 << 15


class Lateness:
    """A histogram with bins of 2 microseconds; values are collected and counted in batches."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_BINS, dtype=np.int64)
        self._collected: NDArray[np.int64] = np.zeros(_COLLECTED, dtype=np.int64)
        self._used = 0
        self._max_ns = 0

    def add(self, late_ns: NDArray[np.int64]) -> None:
        """Takes some values, in nanoseconds, in any order; what is early counts as punctual."""
        while len(late_ns):
            fitting = late_ns[: _COLLECTED - self._used]
            self._collected[self._used : self._used + len(fitting)] = fitting
            self._used += len(fitting)
            late_ns = late_ns[len(fitting) :]
            if self._used == _COLLECTED:
                self._count()

    def _count(self) -> None:
        values = self._collected[: self._used]
        if len(values):
            self._max_ns = max(self._max_ns, int(values.max()))
            bins = np.clip(values // _BIN_NS, 0, _BINS - 1)
            self._counts += np.bincount(bins, minlength=_BINS)
        self._used = 0

    def summary_s(self) -> tuple[float, float, float]:
        """Median, 99th percentile and maximum in seconds; zeros when nothing was added."""
        self._count()
        total = int(self._counts.sum())
        if not total:
            return 0.0, 0.0, 0.0
        cumulated = np.cumsum(self._counts)
        p50, p99 = (
            min((int(np.searchsorted(cumulated, share * total)) + 1) * _BIN_NS, self._max_ns)
            for share in (0.5, 0.99)
        )
        return p50 / 1e9, p99 / 1e9, self._max_ns / 1e9
