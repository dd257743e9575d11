"""What arrives at a host: datagrams of all its connections, in the order of their arrival.

Trains are announced before they arrive. Nobody needs to wake for each datagram: whoever looks, at
whatever time, finds what has arrived by then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link
from testbed.simulate.train import Train

Index = NDArray[np.int64]
# Of so many datagrams that arrive one after another: which are kept, shape (count,).
Filter = Callable[[int], NDArray[np.bool_]]


@dataclass(eq=False)
class _Announced:
    train: Train
    take: Callable[[Index], None]
    hear_by: Callable[[float], None]


class Arrivals:
    """A host's network interface.

    Attributes:
        arrived: datagrams so far.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.arrived = 0
        self._simulation = simulation
        self._links: list[Link] = []
        self._announced: list[_Announced] = []
        self._filters: list[Filter] = []

    def come_by(self, links: Sequence[Link]) -> None:
        """The last one of these leads here."""
        for link in links[-1:]:
            if link not in self._links:
                self._links.append(link)

    def expect(
        self, train: Train, take: Callable[[Index], None], hear_by: Callable[[float], None]
    ) -> None:
        """A train is going to arrive.

        `take` gets the numbers of those of its batch's datagrams that have; `hear_by` is told when
        the next one does.
        """
        self._announced.append(_Announced(train, take, hear_by))
        hear_by(float(train.times_s[0]))

    def lose(self, keeps: Filter) -> None:
        """From now on, what arrives passes this filter behind those that are there."""
        self.catch_up()
        self.expect_waiting()
        self._filters.append(keeps)

    def lose_no_longer(self, keeps: Filter) -> None:
        self.catch_up()
        self.expect_waiting()
        self._filters.remove(keeps)

    def expect_waiting(self) -> None:
        """Is told of arrivals again; call it after `catch_up`, once it is known who looks when."""
        for link in self._links:
            link.expect_waiting()

    def catch_up(self) -> None:
        """Hands over all that has arrived by now."""
        for link in self._links:
            link.catch_up()
        now_s = self._simulation.now_s
        here: list[tuple[Train, _Announced]] = []
        left: list[_Announced] = []
        for each in self._announced:
            come, later = each.train.until(now_s)
            if come is not None:
                here.append((come, each))
            if later is not None:
                left.append(_Announced(later, each.take, each.hear_by))
        self._announced = left
        if here:
            self._hand_over(here)
        for each in left:
            each.hear_by(float(each.train.times_s[0]))

    def _hand_over(self, here: list[tuple[Train, _Announced]]) -> None:
        if len(here) == 1 and not self._filters:
            ((train, of),) = here
            self.arrived += len(train.index)
            of.take(train.index)
            return
        times_s = np.concatenate([train.times_s for train, _ in here])
        order = np.argsort(times_s, kind="stable")
        index = np.concatenate([train.index for train, _ in here])[order]
        lengths = [len(train.index) for train, _ in here]
        owners = np.repeat(np.arange(len(here)), lengths)[order]
        self.arrived += len(index)
        for keeps in self._filters:
            kept = keeps(len(index))
            index, owners = index[kept], owners[kept]
        for number, (_, of) in enumerate(here):
            if len(mine := index[owners == number]):
                of.take(mine)
