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

from testbed.lab import host_shares, leftovers, sandbox
from testbed.lab.kernel import cgroups
from testbed.machine import capabilities, clean

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

# The kernel refuses a share, then the last process that is moved, whether or not this machine's
# hierarchy of version 2 has the controller.
REFUSED = """
import errno, os, subprocess, time
from testbed.lab import sandbox
from testbed.lab.kernel import cgroups

sandbox.end_with_lifeline()
top, _ = cgroups._mounted()[""]
cgroups.find = lambda: cgroups.Hierarchies(version=2, folders=(top,))
cgroups._words = lambda path: ["cpu"]
child = subprocess.Popen(["sleep", "60"])
name = os.environ["LAB_SANDBOX_GROUP"]
limit, move = cgroups._limit, cgroups._move_sandbox

def refuse(*_):
    raise OSError(errno.EINVAL, "Invalid argument", "the file")

def move_and_refuse(group):
    move(group)
    if group.name == name:
        print("moved:", f"/{name}" in open(f"/proc/{child.pid}/cgroup").read())
        refuse()

def trial():
    began_s = time.monotonic()
    try:
        cgroups.make(name, {"a": 0.5})
    except cgroups.CgroupError as error:
        print(error, time.monotonic() - began_s < 20, (top / name).exists())

cgroups._limit = refuse
trial()
cgroups._limit, cgroups._move_sandbox = lambda *_: None, move_and_refuse
trial()
print("left:", name in open(f"/proc/{child.pid}/cgroup").read(), flush=True)
os._exit(0)
"""


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """Runs a text in a sandbox of its own and returns what it printed, and its errors."""

    def run(text: str) -> tuple[str, str]:
        (tmp_path / "inside_this.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
        output, errors = sandbox.output_of("inside_this", timeout_s=30)
        return output.decode(), errors

    return run


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
    return list(cgroups.everywhere(f"lab-{process.pid}-"))


def test_a_host_uses_no_more_than_its_share_and_its_group_goes_with_the_lab(command):
    process = command(0)
    output, _ = process.communicate(timeout=30)
    found = json.loads(output)
    assert found["idle"] == 0
    assert 0.1 < found["used"] < 0.4  # one period of 0.1 s more or less fits into 0.7 s
    assert of(process) == []


def test_what_a_killed_command_leaves_is_known_and_removed(command):
    process = command(60)
    assert process.stdout is not None
    assert process.stdout.readline()
    [group] = of(process)
    assert group not in host_shares.left_over()
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline_s = time.monotonic() + 30
    while group not in host_shares.left_over() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert group in host_shares.left_over()
    host_shares.remove_left_over(host_shares.left_over()[group])
    assert of(process) == []


def test_without_groups_the_reason_is_one_line(monkeypatch):
    monkeypatch.setenv(host_shares.NAME_VARIABLE, "no/such/folder")
    with pytest.raises(host_shares.MissingCapabilityError, match=r"^host-cpu: [^\n]+$"):
        host_shares.make({"a": 0.5})


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may make groups at the top")
def test_groups_of_version_2_that_are_refused_leave_nothing_behind(inside):
    if "" not in cgroups._mounted():
        pytest.skip("no cgroups of version 2 are mounted")
    refused = "the file: Invalid argument True False"
    output, errors = inside(REFUSED)
    assert output.splitlines() == [refused, "moved: True", refused, "left: False"], errors


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may make groups at the top")
def test_clean_removes_groups_of_other_sessions_whose_command_is_gone(tmp_path, monkeypatch):
    mounted = cgroups._mounted()
    kinds = [each for each in ("cpu", "cpuacct", "") if each in mounted]
    if not kinds:
        pytest.skip("no cgroups are mounted")
    pid, started, namespace = leftovers.owner_of_now().split(" ")
    number = namespace.removeprefix("pid:[").removesuffix("]")
    gone, lives = f"lab-{pid}-1-{number}-0", f"lab-{pid}-{started}-{number}-0"
    stranger, elsewhere = "lab-of-somebody", f"lab-{pid}-1-1-0"  # the last: another PID namespace
    sessions = [Path(mounted[each][0], f"session-{pid}") for each in kinds]
    said: list[str] = []
    monkeypatch.setattr(leftovers, "find", list)
    try:
        for session in sessions:
            for name in (gone, lives, stranger, elsewhere):
                (session / name / "a-host").mkdir(parents=True)
        assert gone in host_shares.left_over()
        assert clean.clean_leftovers(tmp_path, said.append, lambda _: True)
        assert any(gone in line for line in said)
        for session in sessions:
            left = {each.name for each in session.iterdir() if each.is_dir()}
            assert left == {lives, stranger, elsewhere}
    finally:
        for session in sessions:
            for folder, _, _ in os.walk(session, topdown=False):
                Path(folder).rmdir()
