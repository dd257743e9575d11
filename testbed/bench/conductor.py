"""Leads the processes of a case: they begin every transfer together, until enough is done.

A process writes lines of JSON: {"ready": true} when it is open, {"figures": ...} after every
transfer, {"error": "words", "at_s": ...} when it cannot go on. It reads one byte before every
transfer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import sub
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.run.processes import how_ended

Figures = list[dict[str, Any]]
"""One process's account: a dictionary per measured transfer."""

# Opening takes imports and touching memory, which another machine's load may slow down.
OPEN_LIMIT_S = 60.0
_CARRIED = ("carried_bytes", "wire_bytes")  # what a host's link brought it, and took from it
_GRACE_S = 1.0  # when one has failed, for the words of whoever failed first
_WORDS_BYTES, _LONGEST = 4096, 500
_LINE_BYTES, _SHOWN_BYTES = 100_000, 80  # of a message; of what is none


class _Message(BaseModel):
    """A line of a process; what shares the process with a player could write there, too."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ready: bool = False
    figures: dict[str, int | float] | None = None
    error: str | None = None
    at_s: float = 0.0


class Player:
    """The side of a process that is led: `open` once, then a `turn` before each transfer."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def ready(self) -> None:
        """Everything is open."""
        self._say({"ready": True})

    def turn(self) -> bool:
        """Wait for the others; return whether there is another transfer."""
        return os.read(self._reading, 1) != b""

    def tell(self, figures: Mapping[str, Any]) -> None:
        """What the transfer took."""
        self._say({"figures": figures})

    def fail(self, words: str) -> None:
        """It cannot go on; the words become one line."""
        self._say({"error": " ".join(words.split())[:_LONGEST], "at_s": time.monotonic()})

    def _say(self, message: Mapping[str, Any]) -> None:
        left = json.dumps(message).encode() + b"\n"
        while left:
            left = left[os.write(self._writing, left) :]


@dataclass
class Process:
    """A process that is led, and what it has said so far."""

    pid: int
    reading: int
    writing: int
    printed: int | None = None
    ready: bool = False
    figures: Figures = field(default_factory=list)
    error: str | None = None
    failed_s: float = 0.0
    abrupt: bool = False
    turns: int = 0
    _unread: bytes = b""
    _words: bytes = b""

    def hear(self, descriptor: int) -> bool:
        """Take what has come; return False at its end."""
        data = os.read(descriptor, 1 << 16)
        if descriptor == self.printed:
            self._words = (self._words + data)[-_WORDS_BYTES:]
            return bool(data)
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LINE_BYTES:
            lines, self._unread = [*lines, self._unread], b""
        for line in lines:
            self._take(line)
        if not data and self.error is None:
            self.abrupt = True
            self._fail("", time.monotonic())
        return bool(data)

    def _take(self, line: bytes) -> None:
        try:
            message = _Message.model_validate_json(line)
        except ValidationError:
            shown = repr(line[:_SHOWN_BYTES])[1:] + " ..." * (len(line) > _SHOWN_BYTES)
            self._fail(f"wrote what is no message: {shown}", time.monotonic())
            return
        self.ready = self.ready or message.ready
        if message.figures is not None:
            self.figures.append(message.figures)
        if message.error is not None:
            self._fail(message.error, message.at_s)

    def _fail(self, words: str, at_s: float) -> None:
        if self.error is None:
            self.error, self.failed_s = words, at_s

    def end(self) -> None:
        """End it, and what it has started in its session."""
        for kill in (os.killpg, os.kill):  # before it has made a session, it is no group
            try:
                kill(self.pid, signal.SIGKILL)
                break
            except ProcessLookupError:
                continue
        _, status = os.waitpid(self.pid, 0)
        if self.abrupt:
            self.error = f"{how_ended(os.waitstatus_to_exitcode(status))}{self._last_line()}"
        for descriptor in (self.reading, self.writing, self.printed):
            if descriptor is not None:
                os.close(descriptor)

    def _last_line(self) -> str:
        if self.printed is not None:
            os.set_blocking(self.printed, False)
            with contextlib.suppress(BlockingIOError):  # a program of its own holds the other end
                while self.hear(self.printed):
                    pass
        lines = self._words.decode(errors="replace").split("\n")
        last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
        return f": {last}" if last else ""


def start(begin: Callable[[Player], None], *, heard: bool = False) -> Process:
    """Fork a process that does `begin`; what that raises is what the process fails with."""
    reading, telling = os.pipe()
    turns, writing = os.pipe()
    printed, printing = os.pipe() if heard else (None, None)
    pid = os.fork()
    if pid:
        for descriptor in (telling, turns, printing):
            if descriptor is not None:
                os.close(descriptor)
        return Process(pid, reading, writing, printed)
    status = 1
    try:
        os.setsid()
        for descriptor in (reading, writing, printed):
            if descriptor is not None:
                os.close(descriptor)
        if printing is not None:
            os.dup2(printing, 1)
            os.dup2(printing, 2)
            sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        player = Player(turns, telling)
        try:
            begin(player)
            status = 0
        except Exception as error:
            player.fail(f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def lead(
    processes: Mapping[str, Process],
    *,
    warm_ups: int,
    limit_s: float,
    enough: Callable[[Mapping[str, Figures]], bool],
) -> tuple[str, dict[str, Figures]]:
    """Lead processes, and end them."""
    measured: dict[str, Figures] = {name: [] for name in processes}
    status = "ok"
    try:
        with selectors.DefaultSelector() as selector:
            for name, process in processes.items():
                for descriptor in (process.reading, process.printed):
                    if descriptor is not None:
                        selector.register(descriptor, selectors.EVENT_READ, name)
            if not _wait(selector, processes, OPEN_LIMIT_S, lambda each: each.ready):
                late = next((name for name, each in processes.items() if not each.ready), "")
                status = f"failed: {late}: not open within {OPEN_LIMIT_S:g} s"
            number = 0
            while status == "ok" and not _failed(processes):
                number += 1
                before = {name: _through_link(each.pid) for name, each in processes.items()}
                for process in processes.values():
                    process.turns += 1
                    with contextlib.suppress(BrokenPipeError):  # its end is seen where it is read
                        os.write(process.writing, b"g")
                if not _wait(selector, processes, limit_s, lambda p: len(p.figures) == p.turns):
                    status = "timeout"
                elif number > warm_ups and not _failed(processes):
                    # Now, since a sender may be done before its link is.
                    for name, process in processes.items():
                        now = _through_link(process.pid)
                        carried = dict(zip(_CARRIED, map(sub, now, before[name]), strict=True))
                        measured[name].append(process.figures[-1] | carried)
                    if enough(measured):
                        break
            if _failed(processes):
                _wait(selector, processes, _GRACE_S, lambda each: each.error is not None)
    finally:
        for process in processes.values():
            process.end()
    if _failed(processes):
        status = f"failed: {_cause(processes)}"
    return status, measured


def _through_link(pid: int) -> tuple[int, int]:
    """Bytes of frames that have come in and gone out of `eth0` where a process is; else zeros."""
    with contextlib.suppress(OSError):  # the process has ended
        for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == "eth0":
                values = counters.split()
                return int(values[0]), int(values[8])
    return 0, 0


def _wait(
    selector: selectors.DefaultSelector,
    processes: Mapping[str, Process],
    limit_s: float,
    done: Callable[[Process], bool],
) -> bool:
    """Hear all until each is done (or, unless that is waited for, one has failed); False: late."""
    until_s = time.monotonic() + limit_s
    had_failed = _failed(processes)
    while not all(done(process) for process in processes.values()):
        if _failed(processes) and not had_failed:
            return True
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not selector.get_map():
            return False
        for key, _ in selector.select(left_s):
            if not processes[key.data].hear(key.fd):
                selector.unregister(key.fd)
    return True


def _failed(processes: Mapping[str, Process]) -> bool:
    return any(process.error is not None for process in processes.values())


def _cause(processes: Mapping[str, Process]) -> str:
    """Whose failure it was: one that ended of itself took the others along, who could still say."""
    failed = [
        (not process.abrupt, process.failed_s, f"{name}: {process.error}")
        for name, process in processes.items()
        if process.error is not None
    ]
    return min(failed)[-1]
