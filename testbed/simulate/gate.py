"""A gate behind a link, or before one: filters take some of the datagrams that pass it."""

import math

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.arrivals import Filter
from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link


class Gate(Link):
    """A link without a rate, a queue and a delay, whose filters see all that passes, in order."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation, rate_bps=math.inf, delay_s=0.0)
        self._filters: list[Filter] = []

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
