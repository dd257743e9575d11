"""A helper that slows a process down: it runs for 1/factor of the time, else it is stopped.

    {"do": "slow", "pid": 7, "factor": 5}  ->  {"began_s": ...}
    {"do": "release"}                      ->  a record; the process runs as before

The process is never left stopped, not even when this helper or its parent is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

from testbed.lab.helpers.process import Requests, run_at_once

_PR_SET_TIMERSLACK = 29
_PERIOD_S = 0.005
# A run time shorter than this is beyond what a sleeping program can keep.
_SHORTEST_RUN_S = 0.00025


class Guard:
    """A child process, from `start` on, that lets a stopped process go when this one is gone."""

    def start(self) -> Guard:
        reading, self._writing = os.pipe()
        if not os.fork():
            os.close(self._writing)
            self._watch(reading)
        os.close(reading)
        return self

    def protect(self, pid: int) -> None:
        """Protect this process from now on, instead of any other; 0: none."""
        os.write(self._writing, f"{pid}\n".encode())

    @staticmethod
    def _watch(reading: int) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        protected = 0
        with os.fdopen(reading) as lines:
            for line in lines:
                protected = int(line)
        if protected:
            with contextlib.suppress(ProcessLookupError):
                os.kill(protected, signal.SIGCONT)
        os._exit(0)


def slow(pid: int, factor: float, requests: Requests, guard: Guard) -> dict[str, float]:
    """Let `pid` run for 1/`factor` of each few milliseconds, until `release` or end of input."""
    # The share is kept over the whole time: a stop that came late makes the next one longer.
    period_s = max(_PERIOD_S, factor * _SHORTEST_RUN_S)
    stopped_s, cycles = 0.0, 0
    began_s = time.monotonic()
    try:
        target = os.pidfd_open(pid)
    except ProcessLookupError:
        requests.say({"began_s": began_s})
        return {"began_s": began_s, "ended_s": began_s, "stopped_s": 0.0, "cycles": 0}
    guard.protect(pid)
    stopped_at_s = None
    try:
        running = True
        while running:
            signal.pidfd_send_signal(target, signal.SIGSTOP)
            stopped_at_s = time.monotonic()
            cycles += 1
            if cycles == 1:
                requests.say({"began_s": stopped_at_s})
            cycle_ends_s = stopped_at_s + period_s
            behind_s = (cycle_ends_s - began_s) * (1 - 1 / factor) - stopped_s
            running = _sleep(min(behind_s, period_s), requests)
            signal.pidfd_send_signal(target, signal.SIGCONT)
            stopped_s += time.monotonic() - stopped_at_s
            stopped_at_s = None
            running = running and _sleep(cycle_ends_s - time.monotonic(), requests)
    except ProcessLookupError:
        pass  # it has ended meanwhile
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(target, signal.SIGCONT)
        if stopped_at_s is not None:
            stopped_s += time.monotonic() - stopped_at_s
        os.close(target)
        guard.protect(0)
    ended_s = time.monotonic()
    return {"began_s": began_s, "ended_s": ended_s, "stopped_s": stopped_s, "cycles": cycles}


def _sleep(duration_s: float, requests: Requests) -> bool:
    """Wait for the time or a request; return whether to continue."""
    # `poll` knows whole milliseconds only; standard input's number suits `select`.
    ready, _, _ = select.select([requests.descriptor], [], [], max(0.0, duration_s))
    return not ready or requests.wait() not in (None, {"do": "release"})


def main() -> None:
    guard = Guard().start()
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    run_at_once()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    requests = Requests()
    while (request := requests.wait()) is not None:
        if request["do"] == "slow":
            requests.say(slow(request["pid"], request["factor"], requests, guard))


if __name__ == "__main__":
    main()
