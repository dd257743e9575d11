"""A busy process of the tests is not left behind by tests that are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

TESTS = """
import sys
from tests.busy import busy_process
with busy_process("print('busy', flush=True)", stdout=sys.stdout) as process:
    print(process.pid, flush=True)
    sys.stdin.read()
"""


def runs(pid: str) -> bool:
    """Whether a process is there, and not only its status, which somebody is to take."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_busy_process_dies_with_tests_that_are_killed():
    with subprocess.Popen(
        [sys.executable, "-c", TESTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        (pid,) = {tests.stdout.readline().strip() for _ in range(2)} - {"busy"}
        assert runs(pid)
        tests.kill()
        deadline_s = time.monotonic() + 10
        while runs(pid) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not runs(pid)
