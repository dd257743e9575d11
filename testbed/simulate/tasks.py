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
    def __init__(self, simulation: Simulation) -> None:
        self.running: dict[str, greenlet.greenlet] = {}  # those that have not ended, by name
        self._simulation = simulation
        self._outside = greenlet.getcurrent()

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Begin a program at the present time; whoever runs the simulation gets its errors."""

        def run() -> None:
            try:
                work()
            except _CancelledError:
                pass
            finally:
                del self.running[name]

        task = greenlet.greenlet(run, self._outside)
        self.running[name] = task
        self.resume(task)

    def resume(self, task: greenlet.greenlet) -> None:
        self._simulation.at(self._simulation.now_s, task.switch)

    def pause(self) -> None:
        self._outside.switch()

    def sleep(self, duration_s: float) -> None:
        wake_up = greenlet.getcurrent().switch
        self._simulation.at(self._simulation.now_s + duration_s, wake_up)
        self.pause()

    def cancel(self) -> None:
        for task in list(self.running.values()):
            if task:  # it has begun, and has not ended
                task.throw(_CancelledError)
        self.running.clear()


class Signal:
    """A condition that one program waits for and anybody may notify."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: tuple[greenlet.greenlet, Callable[[], bool]] | None = None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            self._waiting = greenlet.getcurrent(), ready
            self._tasks.pause()

    def notify(self) -> None:
        if self._waiting is not None and self._waiting[1]():
            (task, _), self._waiting = self._waiting, None
            self._tasks.resume(task)


class Lateness:
    """The time that programs need until they run, once notified: drawn exponentially."""

    def __init__(self, simulation: Simulation, mean_s: float, seed: int) -> None:
        """`mean_s` is of all; each program has draws of its own, which follow from `seed`."""
        self._simulation, self._mean_s, self._seed = simulation, mean_s, seed
        self._programs = 0

    def of_a_program(self) -> Callable[[Callable[[], None]], None]:
        """A callable that does something for one more program once that runs; in order."""
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
    """One end of a connection, with a socket's methods and without timeouts."""

    def __init__(self, tasks: Tasks) -> None:
        self._signal = Signal(tasks)
        self._received = bytearray()
        self._closed = False
        self._other: Stream | None = None
        # Does what comes in as soon as its program runs: at once, or late.
        self.then: Callable[[Callable[[], None]], None] = lambda do: do()

    @classmethod
    def pair(cls, tasks: Tasks) -> "tuple[Stream, Stream]":
        one, two = cls(tasks), cls(tasks)
        one._other, two._other = two, one
        return one, two

    def settimeout(self, timeout_s: float | None) -> None:
        pass

    def makefile(self, mode: str) -> "Stream":
        return self

    def sendall(self, data: bytes) -> None:
        other = self._other
        if self._closed or other is None or other._closed:
            raise BrokenPipeError("the other end is closed")

        def arrive() -> None:
            other._received += data
            other._signal.notify()

        other.then(arrive)

    def readline(self, limit: int) -> bytes:
        def ready() -> bool:
            return b"\n" in self._received or self._closed or self._other is None

        self._signal.wait_until(ready)
        end = self._received.find(b"\n")
        size = min(limit, end + 1 if end >= 0 else len(self._received))
        line = bytes(self._received[:size])
        del self._received[:size]
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
    """A listening socket's methods; `lateness` is of those who connect."""

    def __init__(self, tasks: Tasks, lateness: Lateness | None = None) -> None:
        self._lateness = lateness
        self._tasks = tasks
        self._signal = Signal(tasks)
        self._waiting: list[Stream] = []

    def settimeout(self, timeout_s: float | None) -> None:
        pass

    def accept(self) -> tuple[Stream, None]:
        self._signal.wait_until(lambda: bool(self._waiting))
        return self._waiting.pop(0), None

    def connect(self) -> Stream:
        here, there = Stream.pair(self._tasks)
        if self._lateness is not None:
            there.then = self._lateness.of_a_program()
        self._waiting.append(here)
        self._signal.notify()
        return there

    def close(self) -> None:
        pass
