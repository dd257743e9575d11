"""What /proc/stat says of all processors."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from testbed.lab.kernel import machine_ticks, process_status
from testbed.lab.kernel.machine_ticks import MachineTicks

LINE = "cpu  100 10 40 700 50 3 7 90 20 5\ncpu0 1 2 3\n"


def test_what_is_stolen_or_an_interrupt_is_nobody_s(monkeypatch):
    monkeypatch.setattr(machine_ticks.Path, "read_text", lambda path: LINE)
    ticks = machine_ticks.read()
    assert ticks == MachineTicks(programs=150, idle=750, stolen=90, all=1000)
    assert ticks.since(MachineTicks(50, 350, 90, 500)) == MachineTicks(100, 400, 0, 500)
    assert ticks.others(50) == pytest.approx(0.1)
    assert ticks.others(151) == 0.0


def test_a_program_that_has_ended_counts_with_its_parent():
    before, began = machine_ticks.read(), process_status.ticks_of_all()[os.getpid()]
    busy = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    time.sleep(0.05)
    gained = machine_ticks.read().since(before)
    spent = process_status.ticks_of_all()[os.getpid()] - began
    assert spent >= 0.25 * os.sysconf("SC_CLK_TCK")
    assert gained.all >= gained.programs >= 0.25 * os.sysconf("SC_CLK_TCK")
