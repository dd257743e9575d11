"""Duplicates another process's sockets (pidfd_getfd), to read or set their options from outside."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_SYS_PIDFD_GETFD = 438


def sockets_of(pid: int, family: int) -> Iterator[socket.socket]:
    """Duplicates of all sockets of an address family of process `pid`; the caller closes each."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if not str(entry.readlink()).startswith("socket:"):
                    continue
            except (FileNotFoundError, ProcessLookupError):  # closed since it was listed
                continue
            descriptor = libc.syscall(_SYS_PIDFD_GETFD, process, int(entry.name), 0)
            if descriptor < 0:
                number = ctypes.get_errno()
                if number in (errno.EBADF, errno.ESRCH):
                    continue
                raise OSError(number, f"sockets of process {pid}: {os.strerror(number)}")
            try:
                found = socket.socket(fileno=descriptor)
            except OSError:  # a kind without addresses, such as AF_XDP
                os.close(descriptor)
                continue
            if found.family == family:
                yield found
            else:
                found.close()
    finally:
        os.close(process)
