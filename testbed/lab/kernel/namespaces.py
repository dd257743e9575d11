"""Enters the network namespace of an emulated host, for a moment or for good."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000


def _setns(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # Python 3.11 has no os.setns
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot enter a network namespace: {os.strerror(number)}")


def enter(pid: int) -> None:
    """Move the calling thread into the network namespace of process `pid`."""
    with Path(f"/proc/{pid}/ns/net").open("rb") as namespace:
        _setns(namespace.fileno())


@contextmanager
def entered(pid: int | None) -> Iterator[None]:
    """Run the body inside the network namespace of process `pid` (None: where we are), come back.

    A socket keeps the namespace it was made in, so one process can hold sockets of many hosts.
    """
    if pid is None:
        yield
        return
    with Path("/proc/thread-self/ns/net").open("rb") as home:
        enter(pid)
        try:
            yield
        finally:
            _setns(home.fileno())


def socket_in(pid: int | None, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """A new socket in the network namespace of process `pid` (None: where we are)."""
    with entered(pid):
        return socket.socket(family, kind, protocol)
