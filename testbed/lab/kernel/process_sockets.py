"""Other processes' sockets: duplicates (pidfd_getfd), to read or set options, and who listens."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.lab.kernel import process_status

# /proc/PID/net/tcp and udp (proc_pid_net(5)): the fields of a line, and states in them.
_LOCAL, _STATE, _INODE = 1, 3, 9
_LISTEN, _UNCONNECTED = "0A", "07"
_STATES = {"tcp": _LISTEN, "tcp6": _LISTEN, "udp": _UNCONNECTED, "udp6": _UNCONNECTED}
_SOCKET = "socket:["
_SYS_PIDFD_GETFD = 438


def sockets_of(pid: int, family: int) -> Iterator[socket.socket]:
    """Duplicate all sockets of an address family of process `pid`; the caller closes them."""
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
                duplicate = socket.socket(fileno=descriptor)
            except OSError:  # a kind without addresses, such as AF_XDP
                os.close(descriptor)
                continue
            if duplicate.family == family:
                yield duplicate
            else:
                duplicate.close()
    finally:
        os.close(process)


def listens(pid: int) -> bool:
    """Tell whether a process, or its session, listens on TCP or has a bound UDP socket."""
    listening = set(_listening(pid))
    members = process_status.session(pid) if listening else ()
    return any(not listening.isdisjoint(_inodes(member)) for member in members)


def _listening(pid: int) -> Iterator[str]:
    """Yield the inodes of all listening sockets of a process's network namespace."""
    for name, state in _STATES.items():
        with suppress(OSError):  # gone, or a kernel without IPv6
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[_STATE] == state and not fields[_LOCAL].endswith(":0000"):
                    yield fields[_INODE]


def _inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed since it was listed
                target = str(entry.readlink())
                if target.startswith(_SOCKET):
                    yield target[len(_SOCKET) : -1]
