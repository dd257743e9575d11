"""A program that runs in a host, for the script that has started it: as `subprocess.Popen` is."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

_READ_BYTES = 1 << 16
_PIPES = ("stdin", "stdout", "stderr")
SendSignal = Callable[[int], None]
_POLL_S = 0.01


class Program:
    """Made by `Host.popen`. Its methods and attributes are those of `subprocess.Popen`.

    Three things differ. `wait_until_listening` is its own. Signals go to the program and to what it
    has started, which is its session. And it cannot outlive its lab: then its `returncode` is -9.

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
        self._transfers: list[threading.Thread] = []
        self._outputs: dict[IO[Any], bytearray] = {}
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs after `timeout` seconds; it goes on.
        """
        found = self._look(timeout)
        if found is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return found

    def wait_until_listening(self, timeout: float | None = 10.0) -> None:
        """Return when it waits for connections (TCP), or has a socket that is bound (UDP).

        Raises:
            subprocess.TimeoutExpired: it does not within `timeout` seconds.
            ProcessLookupError: it has ended.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._listens():
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_POLL_S)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input`, read stdout and stderr to their ends, wait for the end; returns both.

        Raises:
            subprocess.TimeoutExpired: it takes longer than `timeout` seconds; it goes on, and
                another call returns all of its output.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        self._begin_transfers(input)

        def left_s() -> float | None:
            return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())

        for thread in self._transfers:
            thread.join(left_s())
        if any(thread.is_alive() for thread in self._transfers) or self._look(left_s()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0, *self._read_so_far())
        return self._read_so_far()

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program's session; nothing happens once the program has ended."""
        if self.poll() is None:
            self._send_signal(sig)

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

    @property
    def _both(self) -> tuple[IO[Any] | None, IO[Any] | None]:
        return self.stdout, self.stderr

    def _look(self, timeout_s: float | None) -> int | None:
        """The exit status, which the steward has sent or sends within a time (None: any)."""
        if self.returncode is None and _readable(self._status, timeout_s):
            with self._lock:
                if self.returncode is None:
                    sent = os.read(self._status, 32)
                    self.returncode = int(sent) if sent else -signal.SIGKILL
        return self.returncode

    def _begin_transfers(self, given: Any) -> None:
        if self._transfers:
            return
        if self.stdin is not None:
            data = given.encode() if isinstance(given, str) else given or b""
            self._transfer(_write, self.stdin, data)
        for stream in self._both:
            if stream is not None:
                self._transfer(_collect, stream, self._outputs.setdefault(stream, bytearray()))

    def _transfer(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._transfers.append(thread)
        thread.start()

    def _read_so_far(self) -> tuple[Any, Any]:
        output, errors = (None if each is None else self._read(each) for each in self._both)
        return output, errors

    def _read(self, stream: IO[Any]) -> str | bytes:
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


def _readable(descriptor: int, timeout_s: float | None) -> bool:
    waiter = select.poll()
    waiter.register(descriptor, select.POLLIN)
    return bool(waiter.poll(None if timeout_s is None else timeout_s * 1000))


def _write(stream: IO[Any], data: bytes) -> None:
    with suppress(OSError):  # it reads no more
        stream.flush()
        left = memoryview(data)
        while left:
            left = left[os.write(stream.fileno(), left) :]
    _close(stream)


def _collect(stream: IO[Any], output: bytearray) -> None:
    while data := os.read(stream.fileno(), _READ_BYTES):
        output += data
    stream.close()


def _close(stream: IO[Any]) -> None:
    with suppress(OSError):  # what was buffered finds no reader
        stream.close()
