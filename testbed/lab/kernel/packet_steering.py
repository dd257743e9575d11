"""Receive packet steering (RPS): one processor receives all frames of an interface, in order.

A veth pair queues each frame at the processor that sent it, and a shaped link sends from whichever
its timer fires on: when one processor is held up, a frame that waits at another overtakes.
"""

# Only root of the initial user namespace may set it. It costs processor time (at 180 Mbit/s two
# processors idled for 4 % instead of 12 %), so labs without netem do without: no packet was seen to
# overtake there.

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator

from testbed.lab.kernel.namespaces import entered

# Numbers of system calls, the same on all architectures (asm-generic/unistd.h).
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOSE_ON_EXEC = 1
_CREATE = 6


def set_rps(interfaces: Iterable[tuple[int | None, str]]) -> bool:
    """Give each interface (a process in its namespace, its name) one receiving processor."""
    # False where this user may not, or the kernel was built without RPS.
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) == 1:
        return True
    by_namespace: dict[int | None, list[tuple[str, int]]] = {}
    for number, (pid, name) in enumerate(interfaces):
        processor = processors[number % len(processors)]
        by_namespace.setdefault(pid, []).append((name, processor))
    try:
        for pid, members in by_namespace.items():
            with _sysfs(pid) as folder:
                for name, processor in members:
                    queue = f"class/net/{name}/queues/rx-0"
                    os.stat(queue, dir_fd=folder)
                    try:
                        _write(folder, f"{queue}/rps_cpus", _mask(processor))
                    except FileNotFoundError:
                        return False
    except PermissionError:
        return False
    return True


def _mask(processor: int) -> str:
    """A set of one processor as sysfs reads it: words of 32 bits in hexadecimal."""
    words = [0] * (processor // 32 + 1)
    words[0] = 1 << processor % 32
    return ",".join(f"{word:08x}" for word in words)


def _write(folder: int, path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY, dir_fd=folder)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


@contextlib.contextmanager
def _sysfs(pid: int | None) -> Iterator[int]:
    """A detached mount of a network namespace's sysfs: /sys shows the original namespace's."""
    with entered(pid):
        context = _called(_FSOPEN, b"sysfs", _CLOSE_ON_EXEC)
        try:
            _called(_FSCONFIG, context, _CREATE, None, None, 0)
            folder = _called(_FSMOUNT, context, _CLOSE_ON_EXEC, 0)
        finally:
            os.close(context)
    try:
        yield folder
    finally:
        os.close(folder)


def _called(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
