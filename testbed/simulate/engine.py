"""Virtual time: what is going to happen, in order."""

import functools
import heapq
import itertools
import math
from collections.abc import Callable


class Simulation:
    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = itertools.count()
        self.numbers = itertools.count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Calls `action` at `time_s`; things of the same time happen in the order of asking."""
        heapq.heappush(self._queue, (max(time_s, self.now_s), next(self._tie), action))

    def run(
        self,
        *,
        until_s: float = math.inf,
        done: Callable[[], bool] = lambda: False,
        limit: int = 5_000_000,
    ) -> float:
        """Runs until then, until `done`, or until nothing is left; returns the time."""
        for _ in range(limit):
            if done() or not self._queue:
                return self.now_s
            if self._queue[0][0] > until_s:
                self.now_s = until_s
                return until_s
            self.now_s, _, action = heapq.heappop(self._queue)
            self.events += 1
            action()
        raise AssertionError(f"no end after {limit} events, at {self.now_s} s")


class Alarm:
    """Calls an action at the earliest time asked for since it last rang."""

    def __init__(self, simulation: Simulation, action: Callable[[], None]) -> None:
        self._simulation = simulation
        self._action = action
        self._time_s = math.inf

    @property
    def is_set(self) -> bool:
        return self._time_s < math.inf

    def by(self, time_s: float) -> None:
        if time_s < self._time_s:
            self._time_s = time_s
            self._simulation.at(time_s, functools.partial(self._ring, time_s))

    def _ring(self, time_s: float) -> None:
        if time_s == self._time_s:  # not replaced by an earlier one meanwhile
            self._time_s = math.inf
            self._action()
