"""The emulator hardly gets a processor: the switch waits for what the lab's own processes take."""

from __future__ import annotations

import os

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="root alone may give real-time priority"),
]

# From the begin of the training on, two processes of the lab take three quarters of each processor,
# 9 ms at a time. They end with the lab.
SPINNING = '''
_SPIN = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while True:
    until_s = time.monotonic() + 0.009
    while time.monotonic() < until_s:
        pass
    time.sleep(0.003)
"""
_right_begin = Observation.begin

def _begin(self):
    import os, subprocess, sys
    _right_begin(self)
    for processor in os.sched_getaffinity(0):
        subprocess.Popen([sys.executable, "-c", _SPIN, str(processor)])

Observation.begin = _begin
'''


def test_a_starved_switch_is_found(wrong_lab: WrongLab):
    results = wrong_lab.run(altered_by={"testbed.verdict.run_observer": SPINNING}, rounds=10)
    assert_invalid(results, "cpu_wait_s", where="ovs-vswitchd")
