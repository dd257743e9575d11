"""Starts a program in an emulated host, from inside the sandbox.

A thread of its own enters the host's namespaces and starts the program, which inherits them.
Nothing runs between the fork and the program, so this is safe in a process of many threads.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from testbed.lab.kernel import namespaces, privileges
from testbed.lab.kernel.commands import CommandError
from testbed.lab.network import HostInfo

_THREAD_POLL_S = 0.001
Stream = int | None  # a file descriptor, or one of subprocess's constants


class ProgramError(CommandError):
    """A program cannot be started in a host; the message is one line that names both."""


def start(
    host: HostInfo,
    argv: Sequence[str],
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = subprocess.DEVNULL,
    stderr: Stream = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a host, in a session of its own, without root's privileges.

    To the kernel its parent is a thread, which has ended on return: only then may the program ask
    for a signal at its parent's death.
    """
    if not argv or not argv[0]:
        raise ProgramError(f"{host.name}: no program is given")
    place = f"{host.name}: {argv[0]}"
    folder = str(cwd or Path.cwd())  # entering the host's namespaces changes the latter

    thread: list[int] = []

    def begin() -> subprocess.Popen[bytes]:
        thread.append(threading.get_native_id())
        namespaces.settle(host.pid)
        # The program inherits what is done to this thread.
        privileges.abandon()
        return subprocess.Popen(
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=folder,
            start_new_session=True,
        )

    try:
        with ThreadPoolExecutor(1, "host-program") as own_thread:
            program = own_thread.submit(begin).result()
        while Path(f"/proc/self/task/{thread[0]}").exists():  # it ends later than Python says
            time.sleep(_THREAD_POLL_S)
        return program
    except FileNotFoundError as error:
        missing = "there is no such program"
        if error.filename != argv[0]:  # the folder, or the host
            missing = f"cannot be started: there is no {error.filename}"
        raise ProgramError(f"{place}: {missing}") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in an argument
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise ProgramError(f"{place}: cannot be started: {words}") from None
