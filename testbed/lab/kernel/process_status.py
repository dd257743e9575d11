"""Reads /proc of processes and of all processors together, and duplicates processes' sockets."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# Places of the fields after the name (proc_pid_stat(5)).
STATE, PARENT, SESSION = 0, 1, 3
USER_TICKS, SYSTEM_TICKS, START_TICKS, RESIDENT_PAGES = 11, 12, 19, 21
_ALL_TICKS = slice(USER_TICKS, 15)  # those of children that ended included
_LONGEST_BYTES = 1024
_DEAD = (b"Z", b"X")  # a process that has ended, and for which nobody has waited yet
# /proc/PID/net/tcp and udp (proc_pid_net(5)): the fields of a line, and states in them.
_LOCAL, _STATE, _INODE = 1, 3, 9
_LISTEN, _UNCONNECTED = "0A", "07"
_STATES = {"tcp": _LISTEN, "tcp6": _LISTEN, "udp": _UNCONNECTED, "udp6": _UNCONNECTED}
_SOCKET = "socket:["
_SYS_PIDFD_GETFD = 438


def read(pid: int) -> tuple[bytes, list[bytes]]:
    """Read a process's name and the fields after it; OSError when there is none."""
    descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        return read_again(descriptor)
    finally:
        os.close(descriptor)


def read_again(descriptor: int) -> tuple[bytes, list[bytes]]:
    """Read the same from an open file, whose process may have ended: OSError."""
    text = os.pread(descriptor, _LONGEST_BYTES, 0)
    # The name in parentheses may hold anything: spaces, parentheses, bytes that are no text.
    front, _, rest = text.rpartition(b")")
    return front.partition(b"(")[2], rest.split()


def has_ended(fields: list[bytes]) -> bool:
    return not fields or fields[STATE] in _DEAD


def lives(pid: int) -> bool:
    """Tell whether there is a process of this number that has not ended."""
    try:
        return not has_ended(read(pid)[1])
    except OSError:
        return False


def session(number: int) -> Iterator[int]:
    """Yield the processes of a session that have not ended."""
    for entry in Path("/proc").glob("[1-9]*"):
        with suppress(OSError, ValueError):  # it has ended meanwhile
            _, fields = read(int(entry.name))
            if int(fields[SESSION]) == number and not has_ended(fields):
                yield int(entry.name)


def ticks_of_all() -> dict[int, int]:
    """Read the clock ticks of each process of this namespace and its ended children."""
    ticks = {}
    for entry in Path("/proc").glob("[1-9]*"):
        with suppress(OSError, ValueError):  # it has ended meanwhile
            ticks[int(entry.name)] = sum(map(int, read(int(entry.name))[1][_ALL_TICKS]))
    return ticks


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
    members = session(pid) if listening else ()
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


class MachineTicks(NamedTuple):
    """Processor time in clock ticks: since the machine began, or of a span of time."""

    programs: int
    stolen: int
    all: int

    def since(self, earlier: MachineTicks) -> MachineTicks:
        return MachineTicks(*(late - early for late, early in zip(self, earlier, strict=True)))

    def others(self, own: float) -> float:
        """Return the share of all time that other programs took than those of `own`."""
        return max(0.0, self.programs - own) / self.all


def machine_ticks() -> MachineTicks:
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, idle, disk, irq, softirq, stolen = map(int, first.split()[1:9])
    return MachineTicks(
        programs=user + nice + system,
        stolen=stolen,
        all=user + nice + system + idle + disk + irq + softirq + stolen,
    )
