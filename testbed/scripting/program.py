"""A program that runs in a host, for the script that has started it: as `subprocess.Popen` is."""

from __future__ import annotations

import array
import fcntl
import os
import select
import selectors
import shlex
import signal
import subprocess
import termios
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from testbed.shared.messages import wait_for

_READ_BYTES = 1 << 16
_PIPES = ("stdin", "stdout", "stderr")
SendSignal = Callable[[int], None]
_POLL_S = 0.01


class Program:
    """Made by `Host.popen`. Its methods and attributes are those of `subprocess.Popen`.

    Four things differ. `wait_until_listening` is its own. Signals go to the program's session: to
    it and to what it has started, also once it has ended itself. `communicate` does not wait for
    what it leaves running. And it cannot outlive its lab: then its `returncode` is -9.

    Attributes:
        args: the program and its arguments.
        pid: its process id outside the lab, where the script runs.
        stdin, stdout, stderr: this side of a pipe, or None.
        returncode: the exit status, negative for a signal; None while it runs or nobody has looked.
    """

    def __init__(
        self,
        args: Sequence[str],
        pid: int,
        *,
        pipes: Sequence[int | None],
        status: int,
        send_signal: SendSignal,
        listens: Callable[[], bool],
        text: bool,
    ) -> None:
        """`pipes` are this side's ends, and the steward writes the exit status to `status`."""
        self.args = list(args)
        self.pid = pid
        self.returncode: int | None = None
        self._text = text
        streams = [_opened(file, name, text) for file, name in zip(pipes, _PIPES, strict=True)]
        self.stdin, self.stdout, self.stderr = streams
        self._status = status
        self._send_signal = send_signal
        self._listens = listens
        self._lock = threading.Lock()
        self._unsent: memoryview | None = None
        self._outputs = {stream: bytearray() for stream in streams[1:] if stream is not None}
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended; or subprocess.TimeoutExpired, and it goes on."""
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return found

    def wait_until_listening(self, timeout: float | None = 10.0) -> None:
        """Return when it waits for connections (TCP), or has a socket that is bound (UDP).

        subprocess.TimeoutExpired: it does not within `timeout` seconds. ProcessLookupError: it has
        ended, with which status, and its last words if they went to a pipe.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._listens():
            if self.poll() is not None:
                raise ProcessLookupError(self._end_in_words())
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_POLL_S)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input`, read stdout and stderr until the program has ended; returns both.

        What it leaves running is not waited for. subprocess.TimeoutExpired: it takes longer than
        `timeout` seconds, and goes on; another call returns all of its output.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with selectors.PollSelector() as waiting:
            waiting.register(self._status, selectors.EVENT_READ)
            for stream in self._outputs:
                if not stream.closed:
                    waiting.register(stream, selectors.EVENT_READ)
            if self._has_input(input):
                waiting.register(self.stdin, selectors.EVENT_WRITE)  # type: ignore[arg-type]
            while self.poll() is None:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                ready = waiting.select(left_s)
                if left_s is not None and left_s <= 0:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0, *self._read_so_far())
                for key, _ in ready:
                    stream = key.fileobj  # type: ignore[assignment]
                    if stream is self.stdin:
                        going_on = self._feed()
                    else:
                        going_on = key.fd == self._status or self._collect(stream)
                    if not going_on:
                        waiting.unregister(stream)
                        _close(stream)
        self._drain()
        for each in (self.stdin, *self._outputs):
            if each is not None:
                _close(each)
        return self._read_so_far()

    def send_signal(self, sig: int) -> None:
        """Send a signal to what is left of the program's session, if anything is."""
        try:
            self._send_signal(sig)
        except RuntimeError:  # the lab has ended, and so has all that was in it
            if self.poll() is None:
                raise

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        """Close this side's ends and wait, as `subprocess.Popen` does."""
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                _close(stream)
        self.wait()

    def __repr__(self) -> str:
        return f"<Program {self.args[0]!r} pid={self.pid} returncode={self.returncode}>"

    def _look(self, timeout_s: float | None) -> int | None:
        """The exit status, which the steward has sent or sends within a time (None: any)."""
        if self.returncode is None and wait_for(self._status, timeout_s):
            with self._lock:
                if self.returncode is None:
                    sent = os.read(self._status, 32)
                    self.returncode = int(sent) if sent else -signal.SIGKILL
        return self.returncode

    def _has_input(self, given: Any) -> bool:
        """Whether something is left to be written; takes what was given with the first call."""
        if self.stdin is None or self.stdin.closed:
            return False
        if self._unsent is None:
            self._unsent = memoryview(given.encode() if isinstance(given, str) else given or b"")
            with suppress(BrokenPipeError):  # it reads no more
                self.stdin.flush()
        if not self._unsent:
            _close(self.stdin)
        return bool(self._unsent)

    def _feed(self) -> bool:
        """Write some input, which does not wait; returns whether there is more."""
        assert self.stdin is not None and self._unsent is not None
        try:
            sent = os.write(self.stdin.fileno(), self._unsent[: select.PIPE_BUF])
        except BrokenPipeError:  # it reads no more
            return False
        self._unsent = self._unsent[sent:]
        return bool(self._unsent)

    def _collect(self, stream: IO[Any], most_bytes: int = _READ_BYTES) -> bool:
        """Read some output; returns whether there may be more."""
        data = os.read(stream.fileno(), most_bytes)
        self._outputs[stream] += data
        return bool(data)

    def _drain(self) -> None:
        """Read what a program that has ended has left in its pipes."""
        for stream in self._outputs:
            if not stream.closed:
                waits = array.array("i", [0])  # once: what others write meanwhile has no end
                fcntl.ioctl(stream, termios.FIONREAD, waits)
                if waits[0] > 0:
                    self._collect(stream, waits[0])

    def _end_in_words(self) -> str:
        """How the program has ended, and the last line that it printed to a pipe."""
        status = self.wait()
        how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        self._drain()
        printed = [bytes(output) for output in self._outputs.values() if output.strip()]
        lines = printed[-1].decode(errors="replace").strip().splitlines() if printed else []
        said = f": {lines[-1].strip()}" if lines else ""
        return f"{shlex.join(self.args)} has ended with {how}{said}"

    def _read_so_far(self) -> tuple[Any, Any]:
        return self._read(self.stdout), self._read(self.stderr)

    def _read(self, stream: IO[Any] | None) -> str | bytes | None:
        if stream is None:
            return None
        data = bytes(self._outputs[stream])
        if not self._text:
            return data
        return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _opened(file: int | None, name: str, text: bool) -> IO[Any] | None:
    if file is None:
        return None
    mode = "w" if name == "stdin" else "r"
    if text:
        return os.fdopen(file, mode, encoding="utf-8", errors="replace")
    return os.fdopen(file, f"{mode}b")


def _close(stream: IO[Any]) -> None:
    with suppress(OSError):  # what was buffered finds no reader
        stream.close()
