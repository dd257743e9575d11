"""Duplicates another process's sockets (pidfd_getfd), to read or set their options from outside."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_SYS_PIDFD_GETFD = 438


def sockets_of(pid: int, family: int) -> Iterator[socket.socket]:
    """Duplicates of all sockets of one address family of process `pid`, one after another.

    A duplicate is the same socket, so an option set here holds there. The caller closes each.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not str(entry.readlink()).startswith("socket:"):
                    continue
            except OSError:  # closed between listing and looking
                continue
            descriptor = libc.syscall(_SYS_PIDFD_GETFD, process, int(entry.name), 0)
            if descriptor < 0:
                continue
            found = socket.socket(fileno=descriptor)
            if found.family == family:
                yield found
            else:
                found.close()
    finally:
        os.close(process)
