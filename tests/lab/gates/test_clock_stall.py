"""A processor stands still now and then, as if the hypervisor had given it to another machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.lab.gates.harness import RunningLab, WrongLab, assert_invalid

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give real-time priority"),
]

# Nothing else runs on the processor for 30 ms, five times: a share of the time that no other gate
# minds.
STANDING = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
for _ in range(5):
    until_s = time.monotonic() + 0.03
    while time.monotonic() < until_s:
        pass
    time.sleep(0.2)
"""


def test_a_processor_that_stands_still_for_30_ms_is_found(wrong_lab: WrongLab):
    processor = max(os.sched_getaffinity(0))

    def stand(lab: RunningLab) -> None:
        subprocess.run([sys.executable, "-c", STANDING, str(processor)], check=True, timeout=10)

    results = wrong_lab.run(meanwhile=stand, rounds=26)
    gate = assert_invalid(results, "clock_stall_s", where=f"processor {processor},")
    assert 0.025 < gate["value"] < 0.1
