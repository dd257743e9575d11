"""Programs that wait in virtual time: each has a stack of its own, and one alone runs at any time.

So code that blocks, as on sockets, is simulated as it is. Stacks are switched by greenlet: with a
thread for each, most of the time of a run went into waking them.
"""

from collections.abc import Callable

import greenlet
import numpy as np

from testbed.simulate.engine import Simulation


class _CancelledError(BaseException):
    """The simulation is over; what a program does meanwhile is of no interest."""


class Tasks:
    """The programs of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.left: dict[str, None] = {}  # the names of those that have not ended
        self._simulation = simulation
        self._outside = greenlet.getcurrent()
        self._all: list[greenlet.greenlet] = []

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return not self.left

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Begins a program at the present time; whoever runs the simulation gets its errors."""

        def run() -> None:
            try:
                work()
            except _CancelledError:
                pass
            finally:
                del self.left[name]

        task = greenlet.greenlet(run, self._outside)
        self._all.append(task)
        self.left[name] = None
        self.soon(task)

    def soon(self, task: greenlet.greenlet) -> None:
        """Lets a program go on at the present time, behind what else happens then."""
        self._simulation.at(self._simulation.now_s, task.switch)

    def pause(self) -> None:
        """The running program waits until it is told to go on."""
        self._outside.switch()

    def sleep(self, duration_s: float) -> None:
        """The running program waits for so long."""
        wake = greenlet.getcurrent().switch
        self._simulation.at(self._simulation.now_s + duration_s, wake)
        self.pause()

    def cancel(self) -> None:
        """Ends all programs where they wait."""
        for task in self._all:
            if task:  # it has begun, and has not ended
                task.throw(_CancelledError)
        self._all.clear()
        self.left.clear()


class Signal:
    """What one program waits for and anybody may give."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waits: tuple[greenlet.greenlet, Callable[[], bool]] | None = None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """The running program waits until it is ready, which is asked whenever it is told."""
        while not ready():
            self._waits = greenlet.getcurrent(), ready
            self._tasks.pause()

    def notify(self) -> None:
        """Something has happened."""
        if self._waits is not None and self._waits[1]():
            (task, _), self._waits = self._waits, None
            self._tasks.soon(task)


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
            other._signal.notify()

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
                other._signal.notify()

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
        self._signal.notify()
        return there

    def close(self) -> None:
        """Nobody comes any more."""
