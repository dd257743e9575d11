"""Tells whether a program listens: a socket of it waits for connections, or for datagrams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from testbed.lab.kernel import process_status

# /proc/PID/net/tcp and udp (proc_pid_net(5)): the fields of a line, and states in them.
_LOCAL, _STATE, _INODE = 1, 3, 9
_LISTEN, _UNCONNECTED = "0A", "07"
_WAITING = {"tcp": _LISTEN, "tcp6": _LISTEN, "udp": _UNCONNECTED, "udp6": _UNCONNECTED}
_SOCKET = "socket:["


def listens(pid: int) -> bool:
    """Whether a process, or one of its session, listens on TCP, or has a bound socket of UDP."""
    waiting = set(_waiting(pid))
    members = process_status.session(pid) if waiting else ()
    return any(not waiting.isdisjoint(_sockets(each)) for each in members)


def _waiting(pid: int) -> Iterator[str]:
    """The inodes of all listening sockets of a process's network namespace."""
    for name, state in _WAITING.items():
        with suppress(OSError):  # gone, or a kernel without IPv6
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[_STATE] == state and not fields[_LOCAL].endswith(":0000"):
                    yield fields[_INODE]


def _sockets(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed since it was listed
                target = str(entry.readlink())
                if target.startswith(_SOCKET):
                    yield target[len(_SOCKET) : -1]
