"""Sockets for barriers in virtual time: what is written can be read at once.

They have what `testbed.training.coordination` needs of a socket. Where programs wake up late, what
is written to them can be read when they do.
"""

from collections.abc import Callable

import numpy as np

from testbed.simulate.engine import Simulation
from testbed.simulate.tasks import Signal, Tasks


class Lateness:
    """How long programs need until they run, once told something: drawn exponentially."""

    def __init__(self, simulation: Simulation, mean_s: float, seed: int) -> None:
        """`mean_s` is of all; each program has draws of its own, which follow from `seed`."""
        self._simulation, self._mean_s, self._seed = simulation, mean_s, seed
        self._programs = 0

    def of_a_program(self) -> "Callable[[Callable[[], None]], None]":
        """Does something for one more program once that runs; in order."""
        draws = np.random.default_rng([self._seed, 11, self._programs])
        self._programs += 1
        latest_s = 0.0

        def then(do: Callable[[], None]) -> None:
            nonlocal latest_s
            due_s = self._simulation.now_s + draws.exponential(self._mean_s)
            latest_s = max(latest_s, due_s)
            self._simulation.at(latest_s, do)

        return then


class Stream:
    """One end of a connection."""

    def __init__(self, tasks: Tasks) -> None:
        self._signal = Signal(tasks)
        self._came = bytearray()
        self._closed = False
        self._other: Stream | None = None
        # Does what comes in as soon as its program runs: at once, or late.
        self.then: Callable[[Callable[[], None]], None] = lambda do: do()

    @classmethod
    def pair(cls, tasks: Tasks) -> "tuple[Stream, Stream]":
        """Two ends that are connected."""
        one, two = cls(tasks), cls(tasks)
        one._other, two._other = two, one
        return one, two

    def settimeout(self, timeout_s: float | None) -> None:
        """Nobody is late here: who waits in vain ends the simulation."""

    def makefile(self, mode: str) -> "Stream":
        """For reading."""
        return self

    def sendall(self, data: bytes) -> None:
        other = self._other
        if self._closed or other is None or other._closed:
            raise BrokenPipeError("the other end is closed")

        def come() -> None:
            other._came += data
            other._signal.tell()

        other.then(come)

    def readline(self, limit: int) -> bytes:
        """A line, or less of it at the stream's end."""

        def ready() -> bool:
            return b"\n" in self._came or self._closed or self._other is None

        self._signal.wait_until(ready)
        end = self._came.find(b"\n")
        size = min(limit, end + 1 if end >= 0 else len(self._came))
        line = bytes(self._came[:size])
        del self._came[:size]
        return line

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        other, self._other = self._other, None
        if other is not None:

            def hang_up() -> None:
                other._other = None
                other._signal.tell()

            other.then(hang_up)


class Listener:
    """Where streams come in."""

    def __init__(self, tasks: Tasks, lateness: Lateness | None = None) -> None:
        """`lateness` is of those who connect."""
        self._lateness = lateness
        self._tasks = tasks
        self._signal = Signal(tasks)
        self._waiting: list[Stream] = []

    def settimeout(self, timeout_s: float | None) -> None:
        """As for `Stream`."""

    def accept(self) -> tuple[Stream, None]:
        self._signal.wait_until(lambda: bool(self._waiting))
        return self._waiting.pop(0), None

    def connect(self) -> Stream:
        """The other side's end of a new connection."""
        here, there = Stream.pair(self._tasks)
        if self._lateness is not None:
            there.then = self._lateness.of_a_program()
        self._waiting.append(here)
        self._signal.tell()
        return there

    def close(self) -> None:
        """Nobody comes any more."""
