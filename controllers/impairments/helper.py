"""Programs that carry out impairments on hosts, driven without blocking the controller."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from controllers.impairments.base import LabAccess
from testbed.lab.helpers.command_lines import run_at_once
from testbed.lab.kernel.shaping import inside

_READ_BYTES = 1 << 16


class HelperError(RuntimeError):
    """A program that carries out an impairment ended, or does not answer."""


class Program:
    """A running program in a host's network namespace. What it prints is read without waiting.

    Args:
        argv: its arguments; errors that it prints go to the controller's log.
        pid: a process in the network namespace that it is to run in; None for the controller's.
        lab: lets the controller do other work while it waits.
        ordinary: whether it runs without the controller's own precedence, as other hosts' programs.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        pid: int | None,
        lab: LabAccess,
        ordinary: bool = False,
    ) -> None:
        self._lab = lab
        # A Python program is its module, not the interpreter.
        self.name = argv[2] if argv[1] == "-m" else argv[0]
        self._process = subprocess.Popen(
            [*_precedence(ordinary), *inside(pid), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._text = b""
        self._silent = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended; its last words can still be heard."""
        return self._process.poll() is not None

    def tell(self, *words: object) -> None:
        """Write one line of words to its standard input.

        Raises:
            HelperError: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise HelperError(f"{self.name}: ended with status {self._process.wait()}") from error

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next JSON object that it prints as one line.

        Raises:
            HelperError: none came within the time, or it has ended.
        """
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._text:
            self._read_until(deadline_s)
            if self._silent:
                raise HelperError(f"{self.name}: ended with status {self._process.wait()}")
        line, self._text = self._text.split(b"\n", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def last_words(self, timeout_s: float) -> bytes:
        """All that it prints until it ends; it is killed when that takes longer than the time."""
        deadline_s = time.monotonic() + timeout_s
        try:
            while not self._silent:
                self._read_until(deadline_s)
        except HelperError:
            self._process.kill()
        self._process.wait()
        return self._text

    def signal(self, number: int) -> None:
        """Send it a signal; nothing when it has ended."""
        self._process.send_signal(number)

    def hurry(self) -> None:
        """Let it run before others, where that is allowed."""
        run_at_once(self.pid)

    def close(self) -> None:
        """End it and forget it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read_until(self, deadline_s: float) -> None:
        """Read once; at the end of its output it is silent for ever."""
        if not self._lab.readable(self._output, max(0.0, deadline_s - time.monotonic())):
            raise HelperError(f"{self.name}: no answer in time")
        more = os.read(self._output, _READ_BYTES)
        self._silent = not more
        self._text += more


def _precedence(ordinary: bool) -> list[str]:
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return ["nice", "-n", str(-niceness)] if ordinary and niceness < 0 else []


def training_process(lab: LabAccess, host: str) -> int:
    """The process that trains on `host`.

    Raises:
        HelperError: there is none, because nothing trains there, or not yet.
    """
    pid = lab.processes.get(host)
    if pid is None:
        known = ", ".join(lab.processes) or "none yet"
        raise HelperError(f"no training process on {host!r}; there are: {known}")
    return pid
