"""`./lab clean` after a command was killed and its lab still stands."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
import yaml

from testbed.lab import leftovers
from tests.lab.conftest import SMALL, find_process, finished, is_alive, training_has_begun, wait_for

pytestmark = [pytest.mark.beside, pytest.mark.usefixtures("unchanged_host")]

# The kernel forgets the signal that ends a sandbox with its command when a user namespace is
# entered; here it is left out. What is left is the lifeline, and a stopped process does not see it.
RUN = """
import subprocess, sys
from testbed.lab import sandbox

class Forgetful(subprocess.Popen):
    def __init__(self, argv, **options):
        super().__init__(argv[3:] if argv[0] == "setpriv" else argv, **options)

sandbox.subprocess.Popen = Forgetful
from testbed.__main__ import main
main()
"""


def test_a_stopped_lab_of_a_killed_command_is_ended_and_a_live_one_is_not(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "rounds": 100_000}))
    out = tmp_path / "out"
    command = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", str(path), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        wait_for(lambda: training_has_begun(out))
        inside = psutil.Process(command.pid).children(recursive=True)
        assert len(inside) > 5
        assert not {process.pid for process in leftovers.find()} & {
            process.pid for process in inside
        }
        supervisor = find_process(command, "testbed.run.supervisor")[-1]
        os.kill(supervisor.pid, signal.SIGSTOP)
    finally:
        command.kill()
        command.wait()
    assert is_alive(supervisor)

    [partial] = out.glob("small/*.partial")
    done = finished("clean", "--out", str(out), "--yes")
    assert done.returncode == 0, done
    assert f"{supervisor.pid}  " in done.stdout
    assert "ovs-vswitchd" in done.stdout
    assert str(partial) in done.stdout
    assert not [process for process in inside if is_alive(process)]
    assert not partial.exists()
