"""A gate behind a link, or before one: filters and meters take some of what passes it."""

import math

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.arrivals import Filter
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Flags, Floats, Link, Queued


class Meter(Link):
    """A token bucket: a queue of its bytes has room whenever the bucket has tokens."""

    # Nobody takes what comes out of it: `sent` and `dropped` count.

    def __init__(
        self, simulation: Simulation, *, rate_bps: float, burst_bytes: float, drop: bool
    ) -> None:
        """With `drop` nothing passes, and all counts."""
        super().__init__(simulation, rate_bps=rate_bps, delay_s=0.0, queue_bytes=burst_bytes)
        self._drop = drop
        self.sent_bytes = 0

    def keeps(self, arrivals_s: Floats, sizes: float | Floats) -> Flags:
        """Which of these pass, shape (count,)."""
        count = len(arrivals_s)
        self.sent += count
        self.sent_bytes += int(np.sum(np.broadcast_to(sizes, (count,))))
        if self._drop:
            self.dropped += count
            return np.zeros(count, np.bool_)
        entered, _ = self._queue(arrivals_s, sizes)
        return np.ones(count, np.bool_) if entered is None else entered


class Gate(Link):
    """A link without a rate, a queue and a delay, whose filters see all that passes, in order."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, rate_bps=math.inf, delay_s=0.0)
        self._filters: list[Filter] = []
        self._meters: list[Meter] = []

    def meter(self, meter: Meter) -> None:
        """From now on, what passes also passes this meter, behind those that are there."""
        self.catch_up()
        self._meters.append(meter)

    def meter_no_longer(self, meter: Meter) -> None:
        self.catch_up()
        self._meters.remove(meter)

    def _queue(self, arrivals_s: Floats, sizes: float | Floats) -> Queued:
        entered, leaves_s = super()._queue(arrivals_s, sizes)
        for meter in self._meters:
            if entered is None:
                entered = meter.keeps(arrivals_s, sizes)
            elif entered.any():
                some = sizes if isinstance(sizes, float) else sizes[entered]
                entered[entered] = meter.keeps(arrivals_s[entered], some)
        return entered, leaves_s

    def lose(self, keeps: Filter) -> None:
        """From now on, what passes also passes this filter, behind those that are there."""
        self.catch_up()
        self._filters.append(keeps)

    def lose_no_longer(self, keeps: Filter) -> None:
        self.catch_up()
        self._filters.remove(keeps)

    def drop(self) -> None:
        """Loses what has been announced and has not passed."""
        self.catch_up()
        for train, _ in self._waiting.empty():
            train.keep(0)

    def _not_lost(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        for keeps in self._filters:
            places = places[keeps(len(places))]
        return places
