"""Workers of one machine: one lab at a time, and what killed ones leave behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from testbed.cluster import worker

HOLDER = """
import sys
from testbed.cluster import worker
with worker.turn(sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.read()
"""


def holder(place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def has_it(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "has it\n"


def test_the_second_waits_until_the_first_is_killed(tmp_path: Path) -> None:
    first = holder(tmp_path)
    assert has_it(first)
    second = holder(tmp_path)
    assert second.stdout is not None
    says, _, _ = select.select([second.stdout], [], [], 1.0)
    assert not says
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert has_it(second)
    second.communicate()
    with worker.turn(str(tmp_path)):  # nobody has it any more
        pass


def test_the_folders_of_killed_workers_are_removed_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"lab-block-{ended.pid}-x", f"lab-block-{os.getpid()}-y", "lab-block-mine-z"):
        (tmp_path / name).mkdir()
    worker.forget_dead(tmp_path)
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {f"lab-block-{os.getpid()}-y", "lab-block-mine-z"}
