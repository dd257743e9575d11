"""Which processes are sampled, and by what name."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from testbed.sampling.processes import ProcessSampler


@pytest.fixture
def sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessSampler:
    """One host, whose namespace is the test's own; it scans at every sample."""
    for name in ("INTERVAL_S", "_SCAN_S", "_FIRST_SCANS_S"):
        monkeypatch.setattr(f"testbed.sampling.processes.{name}", 0.0)
    return ProcessSampler(tmp_path, {"h1": {"pid": os.getpid()}}, {})


def test_a_shell_is_sampled_from_when_it_becomes_another_program(sampler: ProcessSampler):
    shell = subprocess.Popen(
        ["sh", "-c", "read line; exec sleep 3600"], stdin=subprocess.PIPE, text=True
    )
    try:
        for _ in range(3):
            sampler.sample()
        before = {name for name in sampler.latest if name.startswith("h1:sleep")}
        assert shell.stdin is not None
        shell.stdin.write("\n")
        shell.stdin.close()
        words = Path(f"/proc/{shell.pid}/cmdline")
        deadline_s = time.monotonic() + 10
        while not words.read_bytes().startswith(b"sleep") and time.monotonic() < deadline_s:
            time.sleep(0.01)
        for _ in range(3):
            sampler.sample()
        after = {name for name in sampler.latest if name.startswith("h1:sleep")}
        assert len(after - before) == 1
    finally:
        shell.kill()
        shell.wait()
