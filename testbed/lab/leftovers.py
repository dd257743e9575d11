"""Finds and ends processes of sandboxes whose command is gone.

Every process of a sandbox carries in its environment who started the sandbox: process id, start
time and PID namespace. The kernel removes interfaces, mounts and namespaces with the last process.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

from testbed.lab.kernel import privileges, process_status

OWNER_VARIABLE = "LAB_SANDBOX_OWNER"
_END_TIMEOUT_S = 5.0


def owner_of_now() -> str:
    """Return this process, as a value of `OWNER_VARIABLE`."""
    return f"{os.getpid()} {_started(os.getpid())} {_pid_namespace()}"


def find() -> list[psutil.Process]:
    """Find this user's processes whose sandbox has lost its command, oldest first."""
    with privileges.regained():
        leftovers = [process for process in psutil.process_iter() if _is_left(process)]
    return sorted(leftovers, key=lambda process: (process.create_time(), process.pid))


def _is_left(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended meanwhile, or is not ours to look at
        if process.uids().effective == os.geteuid() and process.cmdline():
            return _is_gone(process.environ().get(OWNER_VARIABLE, ""))
    return False


def end(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Kill processes, never new ones of the same ids; return those that live after 5 seconds."""
    for process in processes:
        with privileges.regained(), suppress(psutil.Error):
            process.kill()
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    remaining = processes
    while remaining and time.monotonic() < deadline_s:
        time.sleep(0.02)
        remaining = [it for it in remaining if it.is_running() and process_status.lives(it.pid)]
    return remaining


def _is_gone(owner: str) -> bool:
    """Tell whether a value of `OWNER_VARIABLE` names a process that no longer lives."""
    try:
        pid, started, namespace = owner.split(" ")
        if namespace != _pid_namespace():
            return False  # its number means nothing here
        return _started(int(pid)) != int(started)
    except ValueError:
        return False
    except OSError:
        return True


def _started(pid: int) -> int:
    _, fields = process_status.read(pid)
    if process_status.has_ended(fields):
        raise ProcessLookupError(pid)
    return int(fields[process_status.START_TICKS])


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink()).replace(" ", "")
