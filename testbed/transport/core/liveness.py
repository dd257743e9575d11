"""When a peer was heard, when to ask whether it lives, and for how long one waits for it."""

from __future__ import annotations

import math

from testbed.transport.core.connection_settings import NEVER, SILENT, Patience

# One who has to wait asks so many times within the peer's timeout whether the peer lives, and looks
# at the time so often.
_PINGS = 4


class Liveness:
    """The times of one peer, from the begin of its connection."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._interval_s = timeout_s / _PINGS
        self.heard_s = self._pinged_s = now_s
        self.away_s = now_s + self._interval_s
        self._asked_s = -math.inf  # when it was asked first since it was heard
        self.awaiting_s: float | None = None  # since when an announcement of it is awaited

    def look(self, now_s: float) -> float:
        """This side does something now; returns for how long it has been away, 0 for not at all."""
        away_s = max(0.0, now_s - self.away_s)
        self.away_s = now_s + self._interval_s
        return away_s

    def ping_s(self, *, held: bool) -> float:
        """When to ask whether it lives: it `held` a transfer, or is awaited; else math.inf."""
        if not held and self.awaiting_s is None:
            return math.inf
        return max(self.heard_s, self._pinged_s) + self._interval_s

    def pinged(self, now_s: float) -> None:
        """It is asked now."""
        if self._pinged_s <= self.heard_s:
            self._asked_s = now_s
        self._pinged_s = now_s

    @property
    def silent_s(self) -> float:
        """Since when it is silent, which counts only if it was asked in time."""
        return max(self.heard_s, self._asked_s - self._interval_s)

    def patience(self) -> Patience:
        """Until when an announcement is awaited at most."""
        if self.awaiting_s is None:
            return NEVER
        return max(self.awaiting_s, self.silent_s) + self._timeout_s, SILENT, 0
