"""It notes when this machine's processors stood still, which no test and no lab can help.

A hypervisor may take a processor for 20 ms and say nothing. Nothing that is measured then in real
time holds. A witness of its own process sleeps for 2 ms again and again on each processor, ahead of
all ordinary programs, and writes down each time that it woke up too late.

    python -m tests.stalls > FILE
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

_NAP_S = 0.002
# The strictest limit of a gate on time that one stall can fail: a relay's lateness. Quiet machines
# wake the witness within 1 ms even while a lab fills both processors.
STALL_S = 0.003
_AHEAD_OF_LABS = 50  # the priority of first-in-first-out scheduling; relays of labs have 1


class Witness:
    """Watches from now on, until its process ends with this one."""

    def __init__(self) -> None:
        self._record = Path(tempfile.mkstemp(prefix="stalls-")[1])
        with self._record.open("w") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.stalls", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=written,
                cwd=Path(__file__).parents[1],
            )

    def longest_s(self, since_s: float) -> float:
        """The longest stall since a time of `time.monotonic()`; 0: none of `STALL_S` and more."""
        # Whoever is watched asks just after the moment; the witness itself stood still, too.
        time.sleep(2 * _NAP_S)
        lines = self._record.read_text().splitlines()
        stalls = (line.split() for line in lines)
        return max((float(late_s) for at_s, late_s in stalls if float(at_s) >= since_s), default=0)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._record.unlink()


def _watch(processor: int) -> None:
    with contextlib.suppress(OSError):  # of an ordinary user: as late as all others
        os.sched_setaffinity(0, {processor})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_AHEAD_OF_LABS))
    while True:
        began_s = time.monotonic()
        time.sleep(_NAP_S)
        ended_s = time.monotonic()
        late_s = ended_s - began_s - _NAP_S
        if late_s >= STALL_S:
            os.write(1, f"{ended_s:.6f} {late_s:.6f}\n".encode())  # at once and whole


if __name__ == "__main__":
    for processor in os.sched_getaffinity(0):
        threading.Thread(target=_watch, args=(processor,), daemon=True).start()
    while os.getppid() == int(sys.argv[1]):
        time.sleep(1.0)
