"""Finds processors that stood still: a thread on each looks at the clock every few milliseconds."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from testbed.lab.helpers.process import run_at_once

# What keeps a real-time thread waiting is the hypervisor, work that the kernel does not interrupt,
# or a machine that is asleep. A relay or a switch on that processor stood still then, too, and no
# counter of the scheduler says so. Seen on 2 cores of a virtual machine: 0.2 to 0.9 ms while
# nothing else ran, up to 8 ms beside other programs, 35 to 45 ms while another lab's namespaces
# were removed.

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
        real_time: whether the thread had real-time priority; without it, other programs may have
            kept it waiting.
    """

    processor: int
    longest_s: float
    at_s: float
    looks: int
    real_time: bool


class CoreTicks:
    """Looks from now on until `finish`."""

    def __init__(self) -> None:
        self._began_s = _now_s()
        self._done = False
        self._stalls: dict[int, Stall] = {}
        processors = sorted(os.sched_getaffinity(0))
        self._every_s = max(LOOK_EVERY_S, len(processors) / _MOST_LOOKS_PER_S)
        self._threads = [
            threading.Thread(target=self._look, args=(each,), daemon=True) for each in processors
        ]
        for thread in self._threads:
            thread.start()

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
        last_s = _now_s()
        while not self._done:
            time.sleep(every_s)  # cheaper than waiting for an event
            now_s = _now_s()
            if now_s - last_s - every_s > longest_s:
                longest_s, at_s = now_s - last_s - every_s, last_s - self._began_s
            last_s = now_s
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


def _now_s() -> float:
    """Seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
