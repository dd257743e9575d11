"""Coordinates the processes of a case: they begin every transfer together, until enough are done.

A process sends JSON: {"ready": true} when it is open, {"figures": ...} after every transfer,
{"error": "words", "at_s": ...} when it cannot go on. It receives a byte before each transfer.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import sub
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.run.processes import how_ended

Figures = list[dict[str, Any]]  # of one process, a dictionary for each measured transfer

# Opening takes imports and touching memory, which another machine's load may slow down.
OPEN_LIMIT_S = 60.0
_CARRIED = ("carried_bytes", "wire_bytes")  # what a host's link brought it, and took from it
_GRACE_S = 1.0  # when one has failed, for the words of whoever failed first
_PIPE_BYTES, _OUTPUT_BYTES, _ERROR_LENGTH = 1 << 16, 4096, 500
_MESSAGE_BYTES, _SHOWN_BYTES = 100_000, 80  # of a message; of what is none


class _Message(BaseModel):
    """A message of a process; what shares the process could send there, too."""

    model_config = ConfigDict(extra="forbid", strict=True)
    ready: bool = False
    figures: dict[str, int | float] | None = None
    error: str | None = None
    at_s: float = 0.0


class Participant:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def ready(self) -> None:
        self._send({"ready": True})

    def next_transfer(self) -> bool:
        """Wait for the others; return whether there is another transfer."""
        return self._connection.recv(1) != b""

    def report(self, figures: Mapping[str, Any]) -> None:
        self._send({"figures": figures})

    def fail(self, words: str) -> None:
        self._send({"error": " ".join(words.split())[:_ERROR_LENGTH], "at_s": time.monotonic()})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._connection.send(json.dumps(message).encode())


@dataclass
class Process:
    pid: int
    connection: socket.socket
    output: int  # a pipe with what it prints
    last_output: bytes = b""
    ready: bool = False
    figures: Figures = field(default_factory=list)
    error: str | None = None
    failed_s: float = 0.0
    abrupt: bool = False  # it ended without saying why

    def receive(self) -> bool:
        """Take a message; return False at the end of all."""
        try:
            data = self.connection.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # it ended before it took the byte of a transfer
            data = b""
        if data:
            self._take(data)
        elif self.error is None:
            self.abrupt = True
            self._fail("", time.monotonic())
        return bool(data)

    def read_output(self) -> bool:
        """Keep the end of what it has printed; return False at the end of all."""
        data = os.read(self.output, _PIPE_BYTES)
        self.last_output = (self.last_output + data)[-_OUTPUT_BYTES:]
        return bool(data)

    def _take(self, data: bytes) -> None:
        try:
            message = _Message.model_validate_json(data)
        except ValidationError:
            shown = repr(data[:_SHOWN_BYTES])[1:] + " ..." * (len(data) > _SHOWN_BYTES)
            self._fail(f"sent what is no message: {shown}", time.monotonic())
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
        """Kill it, and what it has started in its session."""
        for kill in (os.killpg, os.kill):  # before it has made a session, it is no group
            try:
                kill(self.pid, signal.SIGKILL)
                break
            except ProcessLookupError:
                continue
        _, status = os.waitpid(self.pid, 0)
        if self.abrupt:
            self.error = f"{how_ended(os.waitstatus_to_exitcode(status))}{self._last_line()}"
        self.connection.close()
        os.close(self.output)

    def _last_line(self) -> str:
        os.set_blocking(self.output, False)
        with contextlib.suppress(BlockingIOError):  # another process may hold the pipe's other end
            self.read_output()
        printed = self.last_output.decode(errors="replace")
        lines = [" ".join(line.split()) for line in printed.split("\n")]
        return next((f": {line}" for line in reversed(lines) if line), "")


def start(begin: Callable[[Participant], None]) -> Process:
    """Fork a process that does `begin`; what that raises is what the process fails with."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, printing = os.pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        os.close(printing)
        return Process(pid, ours, output)
    status = 1
    try:
        os.setsid()
        ours.close()
        os.close(output)
        for standard in (1, 2):
            os.dup2(printing, standard)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        participant = Participant(theirs)
        try:
            begin(participant)
            status = 0
        except Exception as error:
            participant.fail(f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def coordinate(
    processes: Mapping[str, Process],
    *,
    warm_ups: int,
    limit_s: float,
    finished: Callable[[Mapping[str, Figures]], bool],
) -> tuple[str, dict[str, Figures]]:
    """Have processes transfer until it is finished, and end them; return status and figures."""
    measured: dict[str, Figures] = {name: [] for name in processes}
    status, transfers = "ok", 0

    def has_reported(process: Process) -> bool:
        return len(process.figures) == transfers

    try:
        with selectors.DefaultSelector() as selector:
            for process in processes.values():
                selector.register(process.connection, selectors.EVENT_READ, process.receive)
                selector.register(process.output, selectors.EVENT_READ, process.read_output)
            if not _wait(selector, processes, OPEN_LIMIT_S, lambda process: process.ready):
                late = next((name for name, process in processes.items() if not process.ready), "")
                status = f"failed: {late}: not open within {OPEN_LIMIT_S:g} s"
            while status == "ok" and not _failed(processes):
                transfers += 1
                before = {name: _through_link(process.pid) for name, process in processes.items()}
                for process in processes.values():
                    with contextlib.suppress(OSError):  # its end is seen where it is read
                        process.connection.send(b"g")
                if not _wait(selector, processes, limit_s, has_reported):
                    status = "timeout"
                elif transfers > warm_ups and not _failed(processes):
                    # Now, since a sender may be done before its link is.
                    for name, process in processes.items():
                        now = _through_link(process.pid)
                        carried = dict(zip(_CARRIED, map(sub, now, before[name]), strict=True))
                        measured[name].append(process.figures[-1] | carried)
                    if finished(measured):
                        break
            if _failed(processes):
                _wait(selector, processes, _GRACE_S, lambda process: process.error is not None)
    finally:
        for process in processes.values():
            process.end()
    if _failed(processes):
        status = f"failed: {_cause(processes)}"
    return status, measured


def _through_link(pid: int) -> tuple[int, int]:
    """Return the bytes of frames that `eth0` of a process has received and sent; else zeros."""
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
    """Read from all until each is done, or another one has failed; return False when late."""
    until_s = time.monotonic() + limit_s
    had_failed = _failed(processes)
    while not all(done(process) for process in processes.values()):
        if _failed(processes) and not had_failed:
            return True
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not selector.get_map():
            return False
        for key, _ in selector.select(left_s):
            if not key.data():
                selector.unregister(key.fileobj)
    return True


def _failed(processes: Mapping[str, Process]) -> bool:
    return any(process.error is not None for process in processes.values())


def _cause(processes: Mapping[str, Process]) -> str:
    """Name whose failure it was: an abrupt end took the others along, who could still say so."""
    failed = [
        (not process.abrupt, process.failed_s, f"{name}: {process.error}")
        for name, process in processes.items()
        if process.error is not None
    ]
    return min(failed)[-1]
