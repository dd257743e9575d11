"""Measures whether the emulator had the processor when it wanted it.

Three measures over the training. `processor_waits` finds the worst second of each part of the
emulator, `core_ticks` the longest time that a processor stood still. A fair scheduler protects
threads that run little and often, so the switch is served well even when the hosts' training
starves. So the third is the share of the machine's processor time that processes outside the lab
used, or the share of time in which some task waited for a processor (PSI), whichever is smaller.

Measured on 2 cores with 4 training processes: alone, others took 0.0 to 0.13. Beside 64 busy
processes of one session, impairments were punctual, but the training took twice as long. Four busy
processes with a session each (and so a share of the processors each) take over 0.25; the limit's
lab test uses them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.lab.kernel import machine_ticks, process_status
from testbed.lab.kernel.machine_ticks import MachineTicks
from testbed.verdict.core_ticks import CoreTicks, Stall
from testbed.verdict.processor_waits import Wait, WaitWatch


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """Shares and times over one phase.

    Attributes:
        duration_s: of the phase.
        waited: process name -> its worst second; None: the kernel does not count it, or the process
            is gone.
        longest_window_s: the longest time between two readings of `waited`, which is to be a
            second.
        stalls: of each processor.
        others: share of the machine's processor time that processes outside the lab used, as
            `MachineTicks.others` has it; None: unknown.
        pressure: share of the time in which some task of the machine waited for a processor (PSI).
        stolen: share of the machine's processor time that its hypervisor took.
    """

    duration_s: float
    waited: dict[str, Wait | None]
    longest_window_s: float
    stalls: list[Stall]
    others: float | None
    pressure: float | None
    stolen: float | None

    @property
    def contended(self) -> float | None:
        """The share of processor time that others took while somebody waited; None: unknown."""
        known = [each for each in (self.others, self.pressure) if each is not None]
        return None if self.others is None else min(known)

    def as_json(self) -> dict[str, Any]:
        """`headroom` in `conservation.json`."""
        return asdict(self)


class Watch:
    """Watches from now on until `finish`.

    Args:
        processes: name -> process id, of the emulator's own processes.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._pressure = _pressure_us()
        self._ticks = _machine_ticks()
        self._own_ticks = sum(process_status.ticks_of_all().values())
        self._began_s = time.monotonic()
        self._waits = WaitWatch(processes)
        self._cores = CoreTicks()

    def finish(self) -> Headroom:
        """Stop watching; returns what was seen."""
        waited, longest_window_s = self._waits.finish()
        stalls = self._cores.finish()
        duration_s = time.monotonic() - self._began_s
        gained = self._gained()
        own_ticks = sum(process_status.ticks_of_all().values()) - self._own_ticks
        return Headroom(
            duration_s=duration_s,
            waited=waited,
            longest_window_s=longest_window_s,
            stalls=stalls,
            others=gained.others(own_ticks) if gained else None,
            pressure=_share(self._pressure, _pressure_us(), duration_s * 1e6),
            stolen=gained.stolen / gained.all if gained else None,
        )

    def _gained(self) -> MachineTicks | None:
        before, after = self._ticks, _machine_ticks()
        if before is None or after is None:
            return None
        gained = after.since(before)
        return gained if gained.all > 0 else None


def _pressure_us() -> float | None:
    """Microseconds that some task waited for a processor, since the machine began."""
    with suppress(OSError, ValueError, IndexError):
        first = Path("/proc/pressure/cpu").read_text().splitlines()[0]
        return float(first.split("total=")[1])
    return None


def _machine_ticks() -> MachineTicks | None:
    with suppress(OSError, ValueError):
        return machine_ticks.read()
    return None


def _share(before: float | None, after: float | None, of: float) -> float | None:
    return None if before is None or after is None or of <= 0 else (after - before) / of
