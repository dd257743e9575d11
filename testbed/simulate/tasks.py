"""Programs that wait in virtual time: each has a stack of its own, and one alone runs at any time.

So code that blocks, as on sockets, is simulated as it is. Who runs next is decided by the clock's
events and by nothing else: a run repeats itself exactly. Stacks are switched by greenlet, in one
thread: with a thread for each, most of the time of a run with many programs went into waking them.
"""

from collections.abc import Callable

import greenlet

from testbed.simulate.engine import Simulation


class _CancelledError(BaseException):
    """The simulation is over; what a program does meanwhile is of no interest."""


class Tasks:
    """The programs of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        """Made where the simulation runs."""
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

    def tell(self) -> None:
        """Something has happened."""
        if self._waits is not None and self._waits[1]():
            (task, _), self._waits = self._waits, None
            self._tasks.soon(task)
