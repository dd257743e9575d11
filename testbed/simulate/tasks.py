"""Programs that wait in virtual time: each is a thread, and one alone runs at any time.

So code that blocks, as on sockets, is simulated as it is. Who runs next is decided by the clock's
events and by nothing else: a run repeats itself exactly.
"""

import threading
from collections.abc import Callable

from testbed.simulate.engine import Simulation


class _CancelledError(BaseException):
    """The simulation is over; what a program does meanwhile is of no interest."""


class _Task:
    def __init__(self, tasks: "Tasks", name: str, work: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self.over = False
        self.turn = threading.Lock()  # held by nobody but while it runs
        self.turn.acquire()
        self._tasks = tasks
        self._work = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self._tasks.cancelled:
                self._work()
        except _CancelledError:
            pass
        except BaseException as error:  # told where it is resumed
            self.error = error
        self.over = True
        self._tasks.back.release()

    def end(self) -> None:
        """Lets it end, once all are cancelled."""
        self.turn.release()
        self._thread.join()


class Tasks:
    """The programs of a simulation.

    Attributes:
        cancelled: whether all are to end where they are.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.cancelled = False
        self.back = threading.Lock()  # released by whoever ran, as it pauses or ends
        self.back.acquire()
        self._simulation = simulation
        self._all: list[_Task] = []
        self._running: _Task | None = None

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return all(each.over for each in self._all)

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Begins a program at the present time."""
        task = _Task(self, name, work)
        self._all.append(task)
        self._soon(task)

    def _soon(self, task: _Task) -> None:
        self._simulation.at(self._simulation.now_s, lambda: self._resume(task))

    def _resume(self, task: _Task) -> None:
        """Lets a program run until it waits; raises what it raises."""
        self._running = task
        task.turn.release()
        self.back.acquire()
        self._running = None
        if task.error is not None:
            raise task.error

    def _pause(self, task: _Task) -> None:
        self.back.release()
        task.turn.acquire()
        if self.cancelled:
            raise _CancelledError

    def sleep(self, duration_s: float) -> None:
        """The running program waits for so long."""
        task = self._current
        self._simulation.at(self._simulation.now_s + duration_s, lambda: self._resume(task))
        self._pause(task)

    @property
    def _current(self) -> _Task:
        assert self._running is not None  # asked by a program
        return self._running

    def cancel(self) -> None:
        """Ends all programs where they wait."""
        self.cancelled = True
        for task in self._all:
            if not task.over:
                task.end()


class Signal:
    """What one program waits for and anybody may give."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waits: tuple[_Task, Callable[[], bool]] | None = None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """The running program waits until it is ready, which is asked whenever it is told."""
        while not ready():
            task = self._tasks._current
            self._waits = task, ready
            self._tasks._pause(task)

    def tell(self) -> None:
        """Something has happened."""
        if self._waits is not None and self._waits[1]():
            (task, _), self._waits = self._waits, None
            self._tasks._soon(task)
