"""How a helper program is told what to do, in words on its standard input, answered in JSON lines,
and how it gets a processor when it has something to do.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping


class Commands:
    """Lines on a file descriptor, read without waiting."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""
        self._lines: list[list[str]] = []

    def take(self) -> list[str] | None:
        """The words of the next line that has come, if any."""
        return self._lines.pop(0) if self._lines else None

    def read(self) -> None:
        """Read what has come; call it when the descriptor is readable."""
        text = os.read(self.descriptor, 4096)
        self.ended = self.ended or not text
        *lines, self._rest = (self._rest + text).split(b"\n")
        self._lines += [line.decode(errors="replace").split() for line in lines]

    def wait(self) -> list[str] | None:
        """The next line's words, however long it takes; None when there will be none."""
        while True:
            words = self.take()
            if words is not None or self.ended:
                return words
            self.read()


def say(record: Mapping[str, object]) -> None:
    """Print one JSON line at once."""
    print(json.dumps(dict(record)), flush=True)


def run_at_once(pid: int = 0) -> None:
    """Let a process (by default this one) run before all others as soon as it has something to do.

    Where that is not allowed nothing changes. Only for programs that hardly ever run: even with
    the best niceness a busy processor lets a program wait for the next tick of 4 ms now and then.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


def run_as_others(niceness: int) -> None:
    """Take this process's turn among the others, with this niceness where it is allowed."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
