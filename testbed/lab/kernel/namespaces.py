"""Enters the namespaces of an emulated host, for a moment or for good."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_CLONE_FS = 0x00000200
_LIBC = ctypes.CDLL(None, use_errno=True)  # Python 3.11 has neither os.setns nor os.unshare


def _setns(descriptor: int, kind: int = CLONE_NEWNET) -> None:
    if _LIBC.setns(descriptor, kind) != 0:
        number = ctypes.get_errno()
        word = "mount" if kind == _CLONE_NEWNS else "network"
        raise OSError(number, f"cannot enter a {word} namespace: {os.strerror(number)}")


def enter(pid: int) -> None:
    """Move the calling thread into the network namespace of process `pid`."""
    with Path(f"/proc/{pid}/ns/net").open("rb") as namespace:
        _setns(namespace.fileno())


def settle(pid: int) -> None:
    """Move the calling thread into the network and mount namespaces of process `pid` for good.

    In the mount namespace of a host, /sys shows the host's own interfaces. Afterwards the thread
    has a root and a current folder of its own, so it can go back to no other mount namespace: it
    is to end soon.
    """
    with (
        Path(f"/proc/{pid}/ns/net").open("rb") as net,
        Path(f"/proc/{pid}/ns/mnt").open("rb") as mounts,
    ):
        if _LIBC.unshare(_CLONE_FS) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot leave the shared folder: {os.strerror(number)}")
        _setns(net.fileno())
        _setns(mounts.fileno(), _CLONE_NEWNS)


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
