"""Headroom: what the kernel counts for threads that were ready and did not run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.verdict.processor_headroom import Watch

BUSY = "import os; os.sched_setaffinity(0, {int(os.sys.argv[1])})\nwhile True: pass"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs capability schedstat")
def test_a_thread_that_shares_its_processor_waits_and_one_that_sleeps_does_not():
    processor = str(max(os.sched_getaffinity(0)))
    busy = [subprocess.Popen([sys.executable, "-c", BUSY, processor]) for _ in range(3)]
    idle = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        time.sleep(0.3)
        watch = Watch({"busy": busy[0].pid, "idle": idle.pid})
        time.sleep(0.7)
        found = watch.finish()
    finally:
        for each in (*busy, idle):
            each.kill()
            each.wait()
    busy_waited, idle_waited = found.waited["busy"], found.waited["idle"]
    assert busy_waited is not None
    assert idle_waited is not None
    assert busy_waited > 0.4  # two thirds of the time the other two ran
    assert idle_waited < 0.2
    assert 0.6 < found.duration_s < 30
    assert found.drift < 0.01


def test_a_process_that_is_gone_has_no_value():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert Watch({"gone": ended.pid}).finish().waited == {"gone": None}
