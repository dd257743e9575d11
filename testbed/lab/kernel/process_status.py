"""Reads /proc of processes (proc_pid_stat(5)) and of all processors together (proc_stat(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# Places of the fields after the name.
STATE, PARENT, SESSION = 0, 1, 3
USER_TICKS, SYSTEM_TICKS, START_TICKS, RESIDENT_PAGES = 11, 12, 19, 21
_ALL_TICKS = slice(USER_TICKS, 15)  # those of children that ended included
_LONGEST_BYTES = 1024
_DEAD = (b"Z", b"X")  # a process that has ended, and for which nobody has waited yet


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
    """Tell whether a process has ended, although it still has a number."""
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


class MachineTicks(NamedTuple):
    """Processor time in clock ticks: since the machine began, or of a span of time."""

    programs: int
    stolen: int
    all: int

    def since(self, earlier: MachineTicks) -> MachineTicks:
        """Return the difference of two readings."""
        return MachineTicks(*(late - early for late, early in zip(self, earlier, strict=True)))

    def others(self, own: float) -> float:
        """Return the share of all time that other programs took than those of `own`."""
        return max(0.0, self.programs - own) / self.all


def machine_ticks() -> MachineTicks:
    """Read the ticks since the machine began."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, idle, disk, irq, softirq, stolen = map(int, first.split()[1:9])
    return MachineTicks(
        programs=user + nice + system,
        stolen=stolen,
        all=user + nice + system + idle + disk + irq + softirq + stolen,
    )
