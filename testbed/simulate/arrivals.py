"""What arrives at a host: only what filters datagrams sees those of all connections in order."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation
from testbed.simulate.link import Link, Pool, Train

# Of so many datagrams that arrive one after another: which are kept, shape (count,).
Filter = Callable[[int], NDArray[np.bool_]]


class Arrivals:
    """A host's network interface."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._links: list[Link] = []
        self._pools: list[Pool] = []
        self._filters: list[Filter] = []
        self._filtered = Pool()  # what is going to pass the filters, and its place behind them

    def come_by(self, links: Sequence[Link], pool: Pool) -> None:
        """The last one of these leads here; what comes waits in `pool` for who takes it."""
        self._pools.append(pool)
        for link in links[-1:]:
            if link not in self._links:
                self._links.append(link)

    def expect(self, train: Train, pool: Pool, note: object) -> None:
        """A train is going to arrive, which belongs into this pool, with this note."""
        if self._filters:
            self._filtered.add(train, (pool, note))
        else:
            pool.add(train, note)

    def lose(self, keeps: Filter) -> None:
        """From now on, what arrives passes this filter behind those that are there."""
        self.catch_up()
        if not self._filters:
            for pool in self._pools:
                for train, note in pool.empty():
                    if len((here := train.take(self._simulation.now_s)).times_s):
                        _put(here, pool, note)
                    if len(train.times_s):
                        self._filtered.add(train, (pool, note))
        self._filters.append(keeps)

    def lose_no_longer(self, keeps: Filter) -> None:
        self.catch_up()
        self._filters.remove(keeps)
        if not self._filters:
            for train, (pool, note) in self._filtered.empty():
                pool.add(train, note)

    def drop_announced(self) -> None:
        """Forgets what has been announced and has not arrived."""
        self.catch_up()
        for pool in [*self._pools, self._filtered]:
            for train, note in pool.empty():
                if len((here := train.take(self._simulation.now_s)).times_s):
                    _put(here, pool, note)
                train.keep(0)

    def catch_up(self) -> None:
        """From now on, all that has arrived by now is where it belongs."""
        for link in self._links:
            link.catch_up()
        now_s = self._simulation.now_s
        if self._filtered.first_s > now_s or not (parts := self._filtered.take(now_s)):
            return
        trains = [train for train, _ in parts]
        lengths = [len(train.times_s) for train in trains]
        order = np.argsort(np.concatenate([train.times_s for train in trains]), kind="stable")
        kept = np.ones(len(order), np.bool_)
        for keeps in self._filters:
            kept[kept] = keeps(int(np.count_nonzero(kept)))
        stays = np.empty(len(order), np.bool_)
        stays[order] = kept
        for (train, (pool, note)), mine in zip(
            parts, np.split(stays, np.cumsum(lengths)[:-1]), strict=True
        ):
            if mine.any():
                _put(train.of(mine), pool, note)


def _put(train: Train, pool: Pool, note: object) -> None:
    train.batch.trains[train] = None
    pool.add(train, note)
