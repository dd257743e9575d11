"""Workers of one machine have their labs one after another."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.cluster import turn

HOLDER = """
import sys
from testbed.cluster import turn
with turn.taken(sys.argv[1]):
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


@pytest.mark.parametrize("ending", ["ends", "is killed"])
def test_the_second_waits_until_the_first_has_ended(tmp_path: Path, ending: str) -> None:
    first = holder(tmp_path)
    assert has_it(first)
    second = holder(tmp_path)
    assert second.stdout is not None
    says, _, _ = select.select([second.stdout], [], [], 1.0)
    assert not says
    if ending == "ends":
        first.communicate()
    else:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert has_it(second)
    second.communicate()
    with turn.taken(str(tmp_path)):  # nobody has it any more
        pass
