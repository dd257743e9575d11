"""Measures whether the emulator had the processor when it wanted it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from testbed.lab.helpers.process import run_at_once
from testbed.lab.kernel import process_status
from testbed.verdict.gate import Finding, worst

# What keeps a real-time thread waiting is the hypervisor, work that the kernel does not interrupt,
# or a machine that is asleep. What runs on that processor stood still then, too, and no counter of
# the scheduler says so. Seen on 2 cores of a virtual machine: up to 0.9 ms idle, up to 8 ms beside
# other programs, 35 to 45 ms while another lab's namespaces were removed.
LOOK_EVERY_S = 0.004
# A look costs about 50 microseconds: with more processors each is looked at less often.
_MOST_LOOKS_PER_S = 500


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The longest time that one processor stood still.

    Attributes:
        processor: its number.
        longest_s: beyond the rhythm of the looks.
        at_s: when it began, after the begin of the watch.
        looks: how often the clock was looked at.
        real_time: whether the watch had real-time priority; without it, other programs may have
            kept it waiting.
    """

    processor: int
    longest_s: float
    at_s: float
    looks: int
    real_time: bool


class CoreTicks:
    """Looks at the clock on every processor, from `start` until `finish`."""

    def start(self) -> CoreTicks:
        self._began_s = now_s()
        self._done = False
        self._stalls: dict[int, Stall] = {}
        processors = sorted(os.sched_getaffinity(0))
        self._every_s = max(LOOK_EVERY_S, len(processors) / _MOST_LOOKS_PER_S)
        self._threads = [
            threading.Thread(target=self._look, args=(each,), daemon=True) for each in processors
        ]
        for thread in self._threads:
            thread.start()
        return self

    def finish(self) -> list[Stall]:
        """Stop looking; returns what was seen, by processor."""
        self._done = True
        for thread in self._threads:
            thread.join()
        return [self._stalls[each] for each in sorted(self._stalls)]

    def _look(self, processor: int) -> None:
        number = threading.get_native_id()
        try:
            os.sched_setaffinity(number, {processor})
        except OSError:  # taken away meanwhile: then there is nothing to see of it
            return
        real_time = prefer(number)
        every_s, longest_s, at_s, looks = self._every_s, 0.0, 0.0, 0
        last_s = now_s()
        while not self._done:
            time.sleep(every_s)  # cheaper than waiting for an event
            look_s = now_s()
            if look_s - last_s - every_s > longest_s:
                longest_s, at_s = look_s - last_s - every_s, last_s - self._began_s
            last_s = look_s
            looks += 1
        self._stalls[processor] = Stall(
            processor=processor, longest_s=longest_s, at_s=at_s, looks=looks, real_time=real_time
        )


def prefer(thread: int) -> bool:
    """Give a thread real-time priority, or the best that is allowed; returns whether it has it."""
    if run_at_once(thread):
        return True
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, -20)
    return False


def now_s() -> float:
    """Seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# The mean wait is what a packet waits for the switch, beside what it waits in queues; an average
# over a run would hide a second in which the switch hardly ran. Seen on 2 cores in the training of
# `quick`: 39 to 62 us in the worst second; beside programs that took a third to two thirds of the
# processors 130 to 340; beside four busy sessions 1430.
WINDOW_S = 1.0
# A mean is taken over at least so many waits: one long wait of a thread that hardly runs delays
# little. One that ran less often, in this second and in the one before, carries no packets:
# kernel 6.18 counts the sleep of such a thread as waiting now and then.
_LEAST_WAITS, _FEWEST_RUNS = 500, 20
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
    """Reads how long processes wait for a processor, from `start` until `finish`."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._began_s = self._read_s = time.monotonic()
        self._last = {name: run_delays(pid) for name, pid in self._processes.items()}
        self._ran: dict[str, dict[int, int]] = {name: {} for name in self._processes}
        self._worst = {name: Wait() for name in self._processes}
        self._longest_window_s = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> WaitWatch:
        self._thread.start()
        return self

    def finish(self) -> tuple[dict[str, Wait | None], float]:
        """Stop; returns the worst second of each process, and the longest between two readings."""
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
    """Thread -> seconds that it was ready and did not run, and how often it began to run."""
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):
                _, waited, runs = (entry / "schedstat").read_text().split()
                found[int(entry.name)] = int(waited) * _NANO, int(runs)
    return found


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """Shares and times over one phase.

    Attributes:
        duration_s: of the phase.
        waited: process name -> its worst second; None: the kernel does not count it, or the process
            is gone.
        longest_window_s: the longest time between two readings of `waited`, to be a second.
        stalls: of each processor.
        others: share of the machine's processor time that processes outside the lab used; None: the
            kernel counted no time.
        pressure: share of the time in which some task waited for a processor (PSI); None: the
            kernel does not say.
    """

    duration_s: float
    waited: dict[str, Wait | None]
    longest_window_s: float
    stalls: list[Stall]
    others: float | None
    pressure: float | None

    @property
    def contended(self) -> float | None:
        """The share of processor time that others took while somebody waited."""
        # A fair scheduler protects threads that run little and often, so a starved training shows
        # in no wait of the switch. Seen on 2 cores with 4 training processes: alone up to 0.13;
        # beside four busy processes with a session each over 0.25.
        if self.others is None or self.pressure is None:
            return self.others
        return min(self.others, self.pressure)


class Watch:
    """Measures the headroom of processes, from `start` until `finish`."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = processes

    def start(self) -> Watch:
        self._before = self._look()
        self._waits = WaitWatch(self._processes).start()
        self._cores = CoreTicks().start()
        return self

    def finish(self) -> Headroom:
        waited, longest_window_s = self._waits.finish()
        stalls = self._cores.finish()
        began_s, ticks_before, own_before, pressure_before_us = self._before
        ended_s, ticks, own, pressure_us = self._look()
        gained = ticks.since(ticks_before)
        pressure = None
        if pressure_before_us is not None and pressure_us is not None:
            pressure = (pressure_us - pressure_before_us) / ((ended_s - began_s) * 1e6)
        return Headroom(
            duration_s=ended_s - began_s,
            waited=waited,
            longest_window_s=longest_window_s,
            stalls=stalls,
            others=gained.others(own - own_before) if gained.all else None,
            pressure=pressure,
        )

    def _look(self) -> tuple[float, process_status.MachineTicks, int, float | None]:
        own = sum(process_status.ticks_of_all().values())
        return time.monotonic(), process_status.machine_ticks(), own, _pressure_us()


def _pressure_us() -> float | None:
    """Microseconds that some task waited for a processor, since the machine began."""
    with suppress(OSError, ValueError, IndexError):
        first = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return float(first.split("total=")[1])
    return None


def waits(headroom: Headroom) -> Finding:
    gone = [process for process, wait in headroom.waited.items() if wait is None]
    missing = [f"no scheduling statistics of {', '.join(gone)}"] if gone else []
    if headroom.longest_window_s > 2 * WINDOW_S:
        missing.append(f"{headroom.longest_window_s:.1f} s were read as one")
    means_s = [
        (wait.mean_s, _when(process, wait.at_s))
        for process, wait in headroom.waited.items()
        if wait is not None
    ]
    if not means_s:
        return Finding(missing="; ".join(missing) or "no process was watched")
    mean_s, where = worst(means_s)
    return Finding(value=mean_s, where=where, missing="; ".join(missing))


def others(headroom: Headroom) -> Finding:
    missing = "" if headroom.others is not None else "the kernel counted no processor time"
    return Finding(value=headroom.contended, missing=missing)


def stalls(headroom: Headroom) -> Finding:
    watched = [stall for stall in headroom.stalls if stall.looks]
    if not watched:
        return Finding(missing="no processor was watched")
    blind = [str(stall.processor) for stall in headroom.stalls if not stall.looks]
    ordinary = any(not stall.real_time for stall in headroom.stalls)
    value, where = worst(
        (stall.longest_s, _when(f"processor {stall.processor}", stall.at_s)) for stall in watched
    )
    return Finding(
        value=value,
        where=where,
        note="watched without real-time priority, which root alone may give" if ordinary else "",
        missing=f"the watch of processor {', '.join(blind)} never ran" if blind else "",
    )


def _when(what: str, at_s: float) -> str:
    return f"{what}, {at_s:.1f} s after the begin"
