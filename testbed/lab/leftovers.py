"""Finds and ends processes of sandboxes whose command is gone.

Every process of a sandbox carries in its environment who started the sandbox: process id, start
time and PID namespace. The kernel removes interfaces, mounts and namespaces with the last process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.lab.kernel import privileges, process_status

OWNER_VARIABLE = "LAB_SANDBOX_OWNER"
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """One process that outlived its command."""

    pid: int
    started: int  # clock ticks since boot: with the pid it names one process for ever
    command: str


def owner_of_now() -> str:
    """This process, as a value of `OWNER_VARIABLE`."""
    return f"{os.getpid()} {_started(os.getpid())} {_pid_namespace()}"


def find() -> list[Leftover]:
    """This user's processes whose sandbox has lost its command, oldest first."""
    with privileges.regained():
        return sorted(_find(), key=lambda each: (each.started, each.pid))


def _find() -> Iterator[Leftover]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if entry.stat().st_uid != os.geteuid():
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            started = _started(int(entry.name))
        except OSError:  # it has ended meanwhile, or is not ours to look at
            continue
        named = dict(each.partition(b"=")[::2] for each in environment)
        owner = named.get(OWNER_VARIABLE.encode(), b"").decode(errors="replace")
        if command and _is_gone(owner):
            yield Leftover(pid=int(entry.name), started=started, command=command.strip())


def end(leftovers: list[Leftover]) -> list[Leftover]:
    """Kill them; returns those that are still there after five seconds."""
    # Each process is opened before its start time is checked again, so a new one of its id never
    # dies.
    for leftover in leftovers:
        try:
            descriptor = os.pidfd_open(leftover.pid)
        except ProcessLookupError:
            continue
        try:
            if _lives(leftover):
                with privileges.regained():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        finally:
            os.close(descriptor)
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while (remaining := [leftover for leftover in leftovers if _lives(leftover)]) and (
        time.monotonic() < deadline_s
    ):
        time.sleep(0.02)
    return remaining


def _is_gone(owner: str) -> bool:
    """Whether a value of `OWNER_VARIABLE` names a process that no longer lives."""
    try:
        pid, started, namespace = owner.split(" ")
        if namespace != _pid_namespace():
            return False  # its number means nothing here
        return _started(int(pid)) != int(started)
    except ValueError:
        return False
    except OSError:
        return True


def _lives(process: Leftover) -> bool:
    try:
        return _started(process.pid) == process.started
    except OSError:
        return False


def _started(pid: int) -> int:
    """When a process started, in clock ticks since boot; OSError when none of this id lives."""
    _, fields = process_status.read(pid)
    if process_status.has_ended(fields):
        raise ProcessLookupError(pid)
    return int(fields[process_status.START_TICKS])


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink()).replace(" ", "")
