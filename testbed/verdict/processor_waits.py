"""Measures how long the emulator's threads were ready and did not run, second by second.

For every thread, the kernel sums up the time in which it was ready and waited for a processor (run
delay, second number of /proc/PID/task/TID/schedstat), and counts how often it began to run (third
number). An average over a run would hide a second in which the switch hardly ran, so the sums are
read once a second and the second with the longest mean wait counts. That is what a packet waits for
the switch, beside what it waits in queues. A switch that waits often but shortly delays no packet
by more; what it then cannot carry shows as lost packets and missed rates.

Measured on 2 cores in the training of `quick`, where four processes compute: a switch began to run
3000 times a second, and waited for 39 to 62 microseconds in the mean of its worst second (seven
runs). Beside programs that took a third to two thirds of the processors it was 130 to 340; beside
real-time programs that took half of both processors, 580; beside four busy sessions, 1430.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.verdict.core_ticks import prefer

WINDOW_S = 1.0
# A mean is taken over at least so many waits: one long wait of a thread that hardly runs delays
# little. At the default limit, such a thread may wait for a quarter of a second.
_LEAST_WAITS = 500
# A thread that began to run less often, in this second and in the one before, carries no packets.
# Kernel 6.18 counts sleep as waiting now and then: once in some minutes, a thread of Open vSwitch
# that wakes twice a second was found asleep all the time that it was said to have waited, 0.5 s.
_FEWEST_RUNS = 20
_NANO = 1e-9


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The worst second of one process.

    Attributes:
        mean_s: the mean wait of a thread, in the second in which that was longest.
        at_s: when that second began, after the begin of the watch.
    """

    mean_s: float = 0.0
    at_s: float = 0.0


class WaitWatch:
    """Watches from now on until `finish`.

    Args:
        processes: name -> process id.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._began_s = self._read_s = time.monotonic()
        self._last = {name: run_delays(pid) for name, pid in self._processes.items()}
        self._ran: dict[str, dict[int, int]] = {name: {} for name in self._processes}
        self._worst = {name: Wait() for name in self._processes}
        self._longest_window_s = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def finish(self) -> tuple[dict[str, Wait | None], float]:
        """Stop watching.

        Returns:
            The worst second of each process, None where the kernel counts nothing or the process
            is gone; and the longest time between two readings.
        """
        self._done.set()
        self._thread.join()
        known = {name: self._worst[name] if last else None for name, last in self._last.items()}
        return known, self._longest_window_s

    def _watch(self) -> None:
        prefer(threading.get_native_id())
        while not self._done.wait(WINDOW_S):
            self.read()
        self.read()  # what is left of a second

    def read(self) -> None:
        """Judge the time since the last reading."""
        before, began_s = self._last, self._read_s
        self._last = {name: run_delays(pid) for name, pid in self._processes.items()}
        self._read_s = time.monotonic()
        self._longest_window_s = max(self._longest_window_s, self._read_s - began_s)
        for name, after in self._last.items():
            ran_before, self._ran[name] = self._ran[name], {}
            for thread, (waited_s, runs) in after.items():
                # A thread that began meanwhile has waited since then.
                earlier_s, earlier_runs = before[name].get(thread, (0.0, 0))
                ran = self._ran[name][thread] = runs - earlier_runs
                if max(ran, ran_before.get(thread, 0)) < _FEWEST_RUNS:
                    continue
                mean_s = (waited_s - earlier_s) / max(ran, _LEAST_WAITS)
                if mean_s > self._worst[name].mean_s:
                    self._worst[name] = Wait(mean_s=mean_s, at_s=began_s - self._began_s)


def run_delays(pid: int) -> dict[int, tuple[float, int]]:
    """Thread -> seconds that it was ready and did not run, and how often it began to run.

    Empty: the kernel counts nothing, or the process is gone.
    """
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):
                _, waited, runs = (entry / "schedstat").read_text().split()
                found[int(entry.name)] = int(waited) * _NANO, int(runs)
    return found
