"""The lab reads other processes' and processors' states, sockets, owners and ticks."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from testbed.lab import leftovers
from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_status import MachineTicks, sockets_of
from tests import open_files

_AF_XDP = 44
# Spaces, parentheses and bytes that are no text, as prctl(PR_SET_NAME) takes them.
NAME = b") Z (\xff\xfe"
RENAMED = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
print(flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def started(code: str, *arguments: str | bytes, **options: object) -> Iterator[int]:
    argv = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, **options) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"\n"
        yield process.pid
        process.kill()


def test_a_process_of_any_name_is_read():
    with started(RENAMED, NAME.hex()) as pid:
        name, fields = process_status.read(pid)
        assert name == NAME
        assert int(fields[process_status.PARENT]) == os.getpid()
        assert process_status.lives(pid)


def test_a_process_that_nobody_has_waited_for_has_ended():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_status.has_ended(process_status.read(process.pid)[1])
    assert not process_status.lives(process.pid)
    process.wait()
    assert not process_status.lives(process.pid)
    with pytest.raises(OSError, match=str(process.pid)):
        process_status.read(process.pid)


def test_leftovers_are_found_beside_processes_whose_words_are_no_text():
    ended = subprocess.Popen(["true"])
    ended.wait()
    owner = f"{ended.pid} 1 {leftovers.owner_of_now().split()[2]}"
    strange = {leftovers.OWNER_VARIABLE.encode(): b"\xff\xfe 1 2", b"\xff": b"\xfe"}
    left = {leftovers.OWNER_VARIABLE: owner}
    with (
        started(RENAMED, NAME.hex(), b"\xff", env=strange) as strange_pid,
        started(RENAMED, NAME.hex(), b"\xff", env=left) as left_pid,
    ):
        result = {process.pid for process in leftovers.find()}
    assert left_pid in result
    assert strange_pid not in result


def test_sockets_of_other_kinds_leave_no_descriptor_behind():
    try:
        socket.socket(_AF_XDP, socket.SOCK_RAW, 0).close()
    except OSError:
        pytest.skip("needs AF_XDP")
    code = f"""
import socket, time
kept = [socket.socket({_AF_XDP}, socket.SOCK_RAW, 0), socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_INET), socket.socket({_AF_XDP}, socket.SOCK_RAW, 0)]
print(flush=True)
time.sleep(60)
"""
    with started(code) as pid:
        before = open_files.now()
        result = list(sockets_of(pid, socket.AF_INET))
        assert [entry.family for entry in result] == [socket.AF_INET]
        for entry in result:
            entry.close()
        open_files.assert_none_since(before)


LINE = "cpu  100 10 40 700 50 3 7 90 20 5\ncpu0 1 2 3\n"


def test_what_is_stolen_or_an_interrupt_is_nobody_s(monkeypatch):
    monkeypatch.setattr(process_status.Path, "read_text", lambda path: LINE)
    ticks = process_status.machine_ticks()
    assert ticks == MachineTicks(programs=150, stolen=90, all=1000)
    assert ticks.since(MachineTicks(50, 90, 500)) == MachineTicks(100, 0, 500)
    assert ticks.others(50) == pytest.approx(0.1)
    assert ticks.others(151) == 0.0


def test_a_program_that_has_ended_counts_with_its_parent():
    before, began = process_status.machine_ticks(), process_status.ticks_of_all()[os.getpid()]
    busy = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    time.sleep(0.05)
    gained = process_status.machine_ticks().since(before)
    spent = process_status.ticks_of_all()[os.getpid()] - began
    assert spent >= 0.25 * os.sysconf("SC_CLK_TCK")
    assert gained.all >= gained.programs >= 0.25 * os.sysconf("SC_CLK_TCK")
