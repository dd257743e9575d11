"""Checks that the emulator had the processor when it needed it, and that no part stood still."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.lab.helpers.process import run_at_once
from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_status import STATE
from testbed.verdict.gates import Finding, worst

# What keeps a real-time thread waiting is the hypervisor, work that the kernel does not interrupt,
# or a machine that is asleep. What runs on that processor stood still then, too, and no counter of
# the scheduler says so. Seen on 2 cores of a virtual machine: up to 0.9 ms idle, up to 8 ms beside
# other programs, 35 to 45 ms while another lab's namespaces were removed.
_READ_EVERY_S = 0.004
# A reading costs about 50 microseconds: with more processors the clock is read less often on each.
_MOST_READINGS_PER_S = 500


@dataclass(frozen=True, kw_only=True)
class Stall:
    """The longest time that one processor stood still.

    Attributes:
        processor: its number.
        longest_s: beyond the rhythm of the readings.
        at_s: when it began, after the begin of the watch.
        looks: how often the clock was read.
        real_time: whether the watch had real-time priority; without it, other programs may have
            kept it waiting.
    """

    processor: int
    longest_s: float
    at_s: float
    looks: int
    real_time: bool


class CoreTicks:
    """Reads the clock on every processor, from its making until `finish`."""

    def __init__(self) -> None:
        self._began_s = now_s()
        self._done = False
        self._stalls: dict[int, Stall] = {}
        processors = sorted(os.sched_getaffinity(0))
        self._every_s = max(_READ_EVERY_S, len(processors) / _MOST_READINGS_PER_S)
        self._threads = [
            threading.Thread(target=self._watch, args=(processor,), daemon=True)
            for processor in processors
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> list[Stall]:
        self._done = True
        for thread in self._threads:
            thread.join()
        return [self._stalls[processor] for processor in sorted(self._stalls)]

    def _watch(self, processor: int) -> None:
        number = threading.get_native_id()
        try:
            os.sched_setaffinity(number, {processor})
        except OSError:  # taken away meanwhile: then there is nothing to see of it
            return
        real_time = prefer(number)
        every_s, longest_s, at_s, readings = self._every_s, 0.0, 0.0, 0
        last_s = now_s()
        while not self._done:
            time.sleep(every_s)  # cheaper than waiting for an event
            read_s = now_s()
            if read_s - last_s - every_s > longest_s:
                longest_s, at_s = read_s - last_s - every_s, last_s - self._began_s
            last_s = read_s
            readings += 1
        self._stalls[processor] = Stall(
            processor=processor, longest_s=longest_s, at_s=at_s, looks=readings, real_time=real_time
        )


def prefer(thread: int) -> bool:
    """Give a thread real-time priority, or the best that is allowed; return if it has the first."""
    if run_at_once(thread):
        return True
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, -20)
    return False


def now_s() -> float:
    """Read a clock that goes on while the machine sleeps."""
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
        mean_s: a thread's wait over its runs, or over 500 where it had fewer, in its worst second.
        at_s: when that second began, after the begin of the watch.
    """

    mean_s: float = 0.0
    at_s: float = 0.0


class WaitWatch:
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
        """Stop; return the worst second of each process, and the longest between two readings."""
        self._done.set()
        self._thread.join()
        waits = {name: self._worst[name] if last else None for name, last in self._last.items()}
        return waits, self._longest_window_s

    def _watch(self) -> None:
        prefer(threading.get_native_id())
        while not self._done.wait(WINDOW_S):
            self.read()
        self.read()  # what is left of a second

    def read(self) -> None:
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
    """Read of each thread the seconds that it was ready and did not run, and how often it ran."""
    delays = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):
                _, waited, runs = (entry / "schedstat").read_text().split()
                delays[int(entry.name)] = int(waited) * _NANO, int(runs)
    return delays


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
        # A starved training shows in no wait of the switch, since a fair scheduler protects threads
        # that run little and often. Seen on 2 cores with 4 training processes: alone up to 0.13;
        # beside four busy processes with a session each over 0.25.
        if self.others is None or self.pressure is None:
            return self.others
        return min(self.others, self.pressure)


class Watch:
    def __init__(self, processes: Mapping[str, int]) -> None:
        self._before = self._read()
        self._waits = WaitWatch(processes)
        self._cores = CoreTicks()

    def finish(self) -> Headroom:
        waited, longest_window_s = self._waits.finish()
        stalls = self._cores.finish()
        began_s, ticks_before, own_before, pressure_before_us = self._before
        ended_s, ticks, own, pressure_us = self._read()
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

    def _read(self) -> tuple[float, process_status.MachineTicks, int, float | None]:
        own = sum(process_status.ticks_of_all().values())
        return time.monotonic(), process_status.machine_ticks(), own, _pressure_us()


def _pressure_us() -> float | None:
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


# Standstills

_PART_EVERY_S = 0.01
ALL = "the supervisor or the whole sandbox"
SHARE_OF_ROUND = 4  # a pause of less than a quarter of a round hardly changes what is measured
# A part that has not run since the last reading stands still in one of these states; one that
# sleeps waits for work. Readings that lie farther apart mean that the whole sandbox stood still, or
# the machine.
_STATES = {
    b"T": "stopped",
    b"t": "stopped by a debugger",
    b"D": "waited for a lock or a disk",
    b"R": "waited for a processor",
}
_LONGEST_BYTES = 64
Rounds = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """The longest time that one part stood still.

    Attributes:
        part: its name.
        longest_s: how long, within the 10 ms between two readings; None: it could not be watched.
        at_s: when it began (CLOCK_MONOTONIC).
        state: what it was in, in words.
    """

    part: str
    longest_s: float | None = 0.0
    at_s: float = 0.0
    state: str = ""


class _Part:
    def __init__(self, name: str, pid: int) -> None:
        self.longest = Standstill(part=name)
        self._ran = b""
        self._since: tuple[float, str] | None = None  # and the state that it was in then
        self._files: list[int] = []
        try:
            for file in ("schedstat", "stat"):
                self._files.append(os.open(f"/proc/{pid}/{file}", os.O_RDONLY))
        except OSError:
            self.longest = Standstill(part=name, longest_s=None)
            self.close()

    def read(self, now_s: float) -> None:
        if not self._files:
            return
        try:
            ran = os.pread(self._files[0], _LONGEST_BYTES, 0)
            state = _STATES.get(process_status.read_again(self._files[1])[1][STATE])
        except (OSError, IndexError):
            self.close()
            return
        if ran != self._ran or state is None:
            self._ran, self._since = ran, None
            return
        self._since = since_s, state = self._since or (now_s, state)
        if now_s - since_s > (self.longest.longest_s or 0.0):
            part, lasted_s = self.longest.part, now_s - since_s
            self.longest = Standstill(part=part, longest_s=lasted_s, at_s=since_s, state=state)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


class StandstillWatch:
    def __init__(self, parts: Mapping[str, int]) -> None:
        self._processes = dict(parts)
        self._parts: list[_Part] = []
        self._all = Standstill(part=ALL)
        self._done = False
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def finish(self) -> list[Standstill]:
        self._done = True
        self._thread.join()
        for part in self._parts:
            part.close()
        return [*(part.longest for part in self._parts), self._all]

    def _watch(self) -> None:
        prefer(threading.get_native_id())
        # An ordinary thread that is kept from its processor while it holds Python's lock would hold
        # up this one.
        self._parts = [_Part(name, pid) for name, pid in self._processes.items()]
        last_s = now_s()
        while not self._done:
            time.sleep(_PART_EVERY_S)
            read_s, at_s = now_s(), time.monotonic()
            gap_s = read_s - last_s - _PART_EVERY_S
            if gap_s > (self._all.longest_s or 0.0):
                self._all = Standstill(part=ALL, longest_s=gap_s, at_s=at_s - gap_s)
            last_s = read_s
            for part in self._parts:
                part.read(at_s)


def standstill(
    standstills: Sequence[Standstill], rounds: Rounds, limits: Mapping[str, Any]
) -> Finding:
    # A quarter of the median round passes if that is more.
    lengths_s = [one["ended_s"] - one["began_s"] for one in rounds if "began_s" in one]
    median_s = statistics.median(lengths_s) if lengths_s else 0.0
    limit_s = max(limits["standstill_s"], median_s / SHARE_OF_ROUND)
    lost = [part.part for part in standstills if part.longest_s is None]
    missing = f"no scheduling statistics of {', '.join(lost)}" if lost else ""
    lengths = [
        (part.longest_s, f"{part.part} {part.state}".strip() + in_round(part.at_s, rounds))
        for part in standstills
        if part.longest_s is not None
    ]
    if not lengths:
        return Finding(limit=limit_s, missing=missing or "no process was watched")
    value, where = worst(lengths)
    return Finding(value=value, limit=limit_s, where=where, missing=missing)


def in_round(at_s: float, rounds: Rounds) -> str:
    """Name the round that goes on at a time, or is the next; empty where there is none."""
    number = next((one["round"] for one in rounds if one["ended_s"] > at_s), None)
    return "" if number is None else f" in round {number}"
