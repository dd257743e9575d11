"""Measures whether the emulator had the processor when it wanted it, and whether the clock went on.

First measure: for every thread, the kernel counts the time in which it was ready but did not run
(run delay, second number of /proc/PID/task/TID/schedstat). As a share of the training phase, this
is what other processes took from the switch, the controller and the delay relay.

Second measure: a fair scheduler protects threads that run little and often, so the switch is served
well even when the hosts' training starves. So we also take the share of the machine's processor
time that processes outside the lab used, or the share of time in which some task waited for a
processor (PSI), whichever is smaller.

Measured on 2 cores with 4 training processes: alone, the switch waited 0.04 to 0.08 of the time and
others took 0.0 to 0.13. Beside 64 busy processes of one session, the switch waited 0.09 and its
impairments were punctual, but the training took twice as long. Four busy processes with a session
each (and so a share of the processors each) take over 0.25; the limit's lab test uses them.

Third measure: two watching threads, each pinned to a processor and of high priority where that is
allowed, look at the clock every few milliseconds. When neither ran for a while, the machine stood
still.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOOK_EVERY_S = 0.004
_WATCHERS = 2
_NANO = 1e-9


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """Shares and times over one phase.

    Attributes:
        waited: process name -> the largest share of the time that one of its threads was ready
            and did not run; None: the kernel does not count it, or the process is gone.
        others: share of the machine's processor time that processes outside the lab used.
        stall_s: longest time in which nothing ran, beyond the watchers' own rhythm.
        drift: of CLOCK_MONOTONIC against CLOCK_MONOTONIC_RAW, seconds per second.
        pressure: share of the time in which some task of the machine waited for a processor (PSI).
        stolen: share of the machine's processor time that its hypervisor took.
    """

    duration_s: float
    waited: dict[str, float | None]
    others: float | None
    stall_s: float
    drift: float
    pressure: float | None
    stolen: float | None

    @property
    def contended(self) -> float | None:
        """The share of processor time that others took while somebody waited; None: unknown."""
        known = [each for each in (self.others, self.pressure) if each is not None]
        return None if self.others is None else min(known)


class Watch:
    """Watches from now on until `finish`.

    Args:
        processes: name -> process id, of the emulator's own processes.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._threads = {name: _run_delays(pid) for name, pid in self._processes.items()}
        self._pressure = _pressure_us()
        self._ticks = _machine_ticks()
        self._own_ticks = _own_ticks()
        self._began_s, self._began_raw_s = _clocks()
        self._stall_s = 0.0
        self._last_s = time.monotonic()
        self._lock = threading.Lock()
        self._done = threading.Event()
        processors = sorted(os.sched_getaffinity(0))
        self._watchers = [
            threading.Thread(
                target=self._look, args=(processors[i % len(processors)],), daemon=True
            )
            for i in range(_WATCHERS)
        ]
        for watcher in self._watchers:
            watcher.start()

    def finish(self) -> Headroom:
        """Stop watching; returns what was seen."""
        self._done.set()
        for watcher in self._watchers:
            watcher.join()
        now_s, now_raw_s = _clocks()
        duration_s = now_s - self._began_s
        raw_s = now_raw_s - self._began_raw_s
        gained = self._gained()
        own_ticks = _own_ticks() - self._own_ticks
        return Headroom(
            duration_s=duration_s,
            waited={name: self._waited(name, duration_s) for name in self._processes},
            others=max(0.0, gained["busy"] - own_ticks) / gained["all"] if gained else None,
            stall_s=self._stall_s,
            drift=abs(duration_s / raw_s - 1) if raw_s > 0 else 0.0,
            pressure=_share(self._pressure, _pressure_us(), duration_s * 1e6),
            stolen=gained["stolen"] / gained["all"] if gained else None,
        )

    def _look(self, processor: int) -> None:
        number = threading.get_native_id()
        with suppress(OSError):
            os.sched_setaffinity(number, {processor})
        with suppress(OSError):  # as root of the host only
            os.setpriority(os.PRIO_PROCESS, number, -20)
        while not self._done.wait(_LOOK_EVERY_S):
            now_s = time.monotonic()
            with self._lock:
                self._stall_s = max(self._stall_s, now_s - self._last_s - _LOOK_EVERY_S)
                self._last_s = max(self._last_s, now_s)

    def _waited(self, name: str, duration_s: float) -> float | None:
        before, after = self._threads[name], _run_delays(self._processes[name])
        if not after or duration_s <= 0:
            return None
        return max(
            (waited_s - before.get(thread, 0.0)) / duration_s for thread, waited_s in after.items()
        )

    def _gained(self) -> dict[str, int] | None:
        before, after = self._ticks, _machine_ticks()
        if before is None or after is None or after["all"] <= before["all"]:
            return None
        return {name: after[name] - before[name] for name in after}


def _run_delays(pid: int) -> dict[int, float]:
    """Thread -> seconds that it was ready and did not run; empty: not counted, or gone."""
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                found[int(entry.name)] = int((entry / "schedstat").read_text().split()[1]) * _NANO
    return found


def _clocks() -> tuple[float, float]:
    return time.clock_gettime(time.CLOCK_MONOTONIC), time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def _pressure_us() -> float | None:
    """Microseconds that some task waited for a processor, since the machine began."""
    with suppress(OSError, ValueError, IndexError):
        first = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return float(first.split("total=")[1])
    return None


def _machine_ticks() -> dict[str, int] | None:
    """Processor time of the machine: in processes, taken by the hypervisor, and all of it."""
    with suppress(OSError, ValueError, IndexError):
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return {"busy": sum(ticks[:3]), "stolen": ticks[7], "all": sum(ticks[:8])}
    return None


def _own_ticks() -> int:
    """Processor time of all processes of this process's namespace, ended children included."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                # After the name in parentheses: state, parent, ...; utime is the 12th field.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                total += sum(int(each) for each in fields[11:15])
    return total


def _share(before: float | None, after: float | None, of: float) -> float | None:
    return None if before is None or after is None or of <= 0 else (after - before) / of
