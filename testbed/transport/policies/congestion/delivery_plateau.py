"""Detects a delivery plateau: the rate has grown, but no more data is delivered.

A congestion control that ignores losses needs this where the round trip does not reveal the queue,
because the queue is short or has been full from the beginning. Random loss takes a share of what is
sent, so a higher rate delivers more. A full queue delivers no more than before. The difference
shows without knowing the loss rate.
"""

from collections import deque
from typing import TypedDict

# Rounds after which all data that was sent at a new rate has been acknowledged.
_LAG = 2


class PlateauOptions(TypedDict):
    """The options of `DeliveryPlateau.plateau_bps`."""

    growth: float
    gain: float
    patience: int


class DeliveryPlateau:
    """Compares the present delivery rate with that of a lower sending rate."""

    def __init__(self) -> None:
        self._rate_bps = 0.0
        self._delivered_bps = 0.0
        self._plateau_rounds = 0
        self._rates: deque[float] = deque(maxlen=_LAG)

    def forget(self) -> None:
        """Starts anew, after a pause or when the rate was set by other means."""
        self._rate_bps = self._delivered_bps = 0.0
        self._plateau_rounds = 0
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
        """Returns the earlier rate that delivered as much, or None. Call it once per round.

        There is a plateau when, since the last comparison, the rate has grown by the factor
        `growth` but the delivery rate by less than the factor `gain` (both above 1), and this
        for `patience` rounds.
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
            self._plateau_rounds += 1
            if self._plateau_rounds < patience:
                return None
            before_bps = self._rate_bps
            self.forget()
            return before_bps
        self._rate_bps, self._delivered_bps = caused_bps, delivered_bps
        self._plateau_rounds = 0
        return None
