"""Trains: datagrams that travel together, as arrays of when each of them is where.

A train is handed to its next link as soon as its times there are known, which lie ahead. A link
cuts it wherever datagrams of others come in between. So nothing depends on how long trains are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.simulate.engine import Simulation


class Entrance(Protocol):
    """What trains can be sent over."""

    def send(self, train: "Train") -> None:
        """Takes a train whose times of arrival are not over."""


@dataclass(eq=False, kw_only=True)
class Batch:
    """What trains are cut from.

    Attributes:
        size_bytes: of each datagram on the wire.
        links: what they pass, one after the other.
        deliver: is called with each train that comes out of the last link, when it is known when:
            its times lie ahead.
        frames: the datagrams themselves, shape (k, datagram bytes), where they matter.
        unread_until_s: until when nobody looks for them at their end, unless he has the last link
            serve before.
    """

    size_bytes: int
    links: Sequence[Entrance]
    deliver: "Callable[[Train], None]"
    frames: NDArray[np.uint8] | None = None
    unread_until_s: Callable[[], float] = lambda: -math.inf


@dataclass(eq=False)
class Train:
    """Some datagrams of a batch, in order, at the entrance of a link or at their end.

    Attributes:
        batch: of which they are.
        index: their numbers in it, shape (n,), n > 0.
        times_s: when each is there, ascending.
        marked: which of them a queue has marked.
        hop: how many links they have passed.
    """

    batch: Batch
    index: NDArray[np.int64]
    times_s: NDArray[np.float64]
    marked: NDArray[np.bool_]
    hop: int = 0

    def until(self, now_s: float) -> "tuple[Train | None, Train | None]":
        """What is there by now, and what is not yet."""
        if self.times_s[-1] <= now_s:
            return self, None
        count = int(np.searchsorted(self.times_s, now_s, side="right"))
        return (self._cut(slice(None, count)) if count else None), self._cut(slice(count, None))

    def _cut(self, part: slice) -> "Train":
        return Train(
            self.batch, self.index[part], self.times_s[part], self.marked[part], hop=self.hop
        )

    def go_on(self) -> None:
        """To the next link, or to the end."""
        if self.hop < len(self.batch.links):
            self.batch.links[self.hop].send(self)
        else:
            self.batch.deliver(self)


def depart(batch: Batch, times_s: NDArray[np.float64]) -> None:
    """Sends a batch on its way: its datagrams come to the first link at these times, ascending."""
    if count := len(times_s):
        Train(batch, np.arange(count), times_s, np.zeros(count, np.bool_)).go_on()


def send_along(
    simulation: Simulation,
    links: Sequence[Entrance],
    size_bytes: int,
    deliver: Callable[[bool], None],
) -> None:
    """Sends one datagram now; `deliver(marked)` is called when it comes out, if it does."""

    def arrive(train: Train) -> None:
        for time_s, marked in zip(train.times_s.tolist(), train.marked.tolist(), strict=True):
            simulation.at(time_s, lambda marked=marked: deliver(marked))  # type: ignore[misc]

    depart(Batch(size_bytes=size_bytes, links=links, deliver=arrive), np.array([simulation.now_s]))
