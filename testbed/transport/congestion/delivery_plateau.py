"""Was sending more worth it? A check for those who do not take loss for congestion.

Whoever ignores losses can raise a rate for ever where the round trip does not betray the queue: a
short one, or one that has been full since we came. But random loss takes a share of whatever is
sent, so more arrives when more is sent, while a full queue lets through what it did before. That
tells the two apart without knowing the loss rate.
"""

from collections import deque
from typing import TypedDict

# Rounds from setting a rate until what was sent at it has all been answered.
_LAG = 2


class PlateauOptions(TypedDict):
    """The thresholds of `DeliveryPlateau.plateau_bps`."""

    growth: float
    gain: float
    patience: int


class DeliveryPlateau:
    """Compares what is delivered now with what was when the rate was lower."""

    def __init__(self) -> None:
        self._rate_bps = 0.0
        self._delivered_bps = 0.0
        self._futile_rounds = 0
        self._rates: deque[float] = deque(maxlen=_LAG)

    def forget(self) -> None:
        """Measures afresh: after a pause, or when the rate was set by other means."""
        self._rate_bps = self._delivered_bps = 0.0
        self._futile_rounds = 0
        self._rates.clear()

    def plateau_bps(
        self,
        rate_bps: float,
        delivered_bps: float | None,
        *,
        growth: float,
        gain: float,
        patience: int = 1,
    ) -> float | None:
        """To be called once a round with the rate now and what was delivered lately.

        When the rate has grown by `growth` since the last comparison and what is delivered by
        less than `gain` (both factors above 1) for `patience` rounds, returns the rate of then;
        otherwise None.
        """
        if len(self._rates) < _LAG or delivered_bps is None:
            self._rates.append(rate_bps)
            return None
        caused_bps = self._rates[0]
        self._rates.append(rate_bps)
        if self._rate_bps < caused_bps < growth * self._rate_bps:
            return None
        grown = caused_bps > self._rate_bps > 0
        if grown and delivered_bps < gain * self._delivered_bps:
            self._futile_rounds += 1
            if self._futile_rounds < patience:
                return None
            before_bps = self._rate_bps
            self.forget()
            return before_bps
        self._rate_bps, self._delivered_bps = caused_bps, delivered_bps
        self._futile_rounds = 0
        return None
