"""Shares of the processors through real control groups; what a killed command leaves is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.lab import host_shares
from testbed.lab.kernel import cgroups
from testbed.machine import capabilities

ROOT = Path(__file__).resolve().parents[2]

# Inside a sandbox: a host with a share, two busy programs in it, and what they used.
INSIDE = """
import json, os, sys, time
from testbed.lab import host_shares, sandbox
from testbed.lab.kernel import cgroups

sandbox.end_with_lifeline()
sandbox.prepare()
groups = host_shares.make({"busy": 0.3, "idle": 0.5})
for _ in range(2):
    if not os.fork():
        cgroups.join(groups["busy"])
        while True:
            pass
time.sleep(0.1)
first_s, began_s = cgroups.used_s(groups["busy"]), time.monotonic()
time.sleep(0.7)
used = (cgroups.used_s(groups["busy"]) - first_s) / (time.monotonic() - began_s)
print(json.dumps({"used": used, "idle": cgroups.used_s(groups["idle"])}), flush=True)
time.sleep(float(sys.argv[1]))
os._exit(0)
"""

OUTSIDE = """
import json, subprocess, sys
from testbed.lab import sandbox
process = sandbox.start("inside_shares", sys.argv[1], stdout=subprocess.PIPE)
assert process.stdout is not None
print(process.stdout.readline().decode(), end="", flush=True)
process.wait()
sandbox.stop(process)
"""


@pytest.fixture
def command(tmp_path):
    """A command that starts a sandbox with shares, which then lasts for so many seconds."""
    # Not here: with version 2 all processes that this one sees move into the group.
    found = capabilities.probe()["host-cpu"]
    if not found.available:
        pytest.skip(f"needs capability host-cpu: {found.reason}")
    (tmp_path / "inside_shares.py").write_text(INSIDE)
    started = []

    def start(lasts_s: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", OUTSIDE, str(lasts_s)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for each in started:
        each.kill()
        each.wait()


def of(process: subprocess.Popen[str]) -> list[str]:
    return cgroups.names(f"lab-{process.pid}-")


def test_a_host_uses_no_more_than_its_share_and_its_group_goes_with_the_lab(command):
    process = command(0)
    output, _ = process.communicate(timeout=30)
    found = json.loads(output)
    assert found["idle"] == 0
    assert 0.1 < found["used"] < 0.3 * 1.1
    assert of(process) == []


def test_what_a_killed_command_leaves_is_known_and_removed(command):
    process = command(60)
    assert process.stdout is not None
    assert process.stdout.readline()
    [group] = of(process)
    assert group not in host_shares.left_over()
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline_s = time.monotonic() + 5
    while group not in host_shares.left_over() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert group in host_shares.left_over()
    host_shares.remove(group)
    assert of(process) == []


def test_without_groups_the_reason_is_one_line(monkeypatch):
    monkeypatch.setenv(host_shares.NAME_VARIABLE, "no/such/folder")
    with pytest.raises(host_shares.MissingCapabilityError, match=r"^host-cpu: [^\n]+$"):
        host_shares.make({"a": 0.5})
