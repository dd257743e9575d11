"""A host of a running lab, and the programs that a script starts in it."""

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from testbed.shared.messages import wait_for

Ask = Callable[..., tuple[dict[str, Any], list[int]]]
Stream = int | IO[Any] | None
_READ_BYTES = 1 << 16
_PIPES = ("stdin", "stdout", "stderr")
_POLL_S = 0.01
_AFTER_KILL_S = 2.0


class Program:
    """Made by `Host.popen`. Its methods and attributes are those of `subprocess.Popen`.

    But signals go to all of its session, also once it has ended itself, `communicate` does not
    wait for what it leaves running, and its `returncode` is -9 if it ends with its lab. `pid` is
    that outside the lab, where the script runs; -1 if it has ended at once.
    """

    def __init__(
        self,
        args: Sequence[str],
        pid: int,
        ask: Callable[[str, dict[str, Any]], dict[str, Any]],
        *,
        pipes: Sequence[int | None],
        status: int,
        text: bool,
    ) -> None:
        self.args = list(args)
        self.pid = pid
        self.returncode: int | None = None
        self._text = text
        streams = [_opened(file, name, text) for file, name in zip(pipes, _PIPES, strict=True)]
        self.stdin, self.stdout, self.stderr = streams
        self._status = status
        self._ask = ask
        self._lock = threading.Lock()
        self._unsent: memoryview | None = None
        self._outputs = {stream: bytearray() for stream in streams[1:] if stream is not None}
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended; subprocess.TimeoutExpired: it goes on."""
        status = self._read_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def wait_until_listening(self, timeout: float | None = 10.0) -> None:
        """Return when it waits for connections (TCP), or has a socket that is bound (UDP).

        subprocess.TimeoutExpired: it does not within `timeout` seconds. ProcessLookupError: it has
        ended, with which status, and its last words if they went to a pipe.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._ask("listens", {})["listens"]:
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
        for pipe in (self.stdin, *self._outputs):
            if pipe is not None:
                _close(pipe)
        return self._read_so_far()

    def send_signal(self, sig: int) -> None:
        """Send a signal to what is left of the program's session, if anything is."""
        try:
            self._ask("signal", {"signal": int(signal.Signals(sig))})
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
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                _close(stream)
        self.wait()

    def __repr__(self) -> str:
        return f"<Program {self.args[0]!r} pid={self.pid} returncode={self.returncode}>"

    def _read_status(self, timeout_s: float | None) -> int | None:
        """Read the exit status, which the server sends, within a time (None: any)."""
        if self.returncode is None and wait_for(self._status, timeout_s):
            with self._lock:
                if self.returncode is None:
                    text = os.read(self._status, 32)
                    self.returncode = int(text) if text else -signal.SIGKILL
        return self.returncode

    def _has_input(self, data: Any) -> bool:
        """Tell whether input is left to be written; that of the first call is taken."""
        if self.stdin is None or self.stdin.closed:
            return False
        if self._unsent is None:
            self._unsent = memoryview(data.encode() if isinstance(data, str) else data or b"")
            with suppress(BrokenPipeError):  # it reads no more
                self.stdin.flush()  # what the script wrote before comes first
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
        """Say how the program has ended, and the last line that it printed to a pipe."""
        status = self.wait()
        how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        self._drain()
        printed = [bytes(output) for output in self._outputs.values() if output.strip()]
        lines = printed[-1].decode(errors="replace").strip().splitlines() if printed else []
        last = f": {lines[-1].strip()}" if lines else ""
        return f"{shlex.join(self.args)} has ended with {how}{last}"

    def _read_so_far(self) -> tuple[Any, Any]:
        return self._read(self.stdout), self._read(self.stderr)

    def _read(self, stream: IO[Any] | None) -> str | bytes | None:
        if stream is None:
            return None
        data = bytes(self._outputs[stream])
        if not self._text:
            return data
        return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


class Host:
    """One emulated host; programs of the lab resolve its `name` to its IPv4 `address`."""

    def __init__(self, name: str, address: str, ask: Ask) -> None:
        self.name = name
        self.address = address
        self._ask = ask

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    def popen(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> Program:
        """Start a program in this host, and return while it runs.

        Arguments are those of `subprocess.Popen`; no shell reads `args`. With `text` pipes carry
        UTF-8, else bytes. LabError: there is no such program, or the lab has ended.
        """
        if isinstance(args, str):
            raise TypeError("a program is a list of texts, such as ['ping', 'server']")
        if subprocess.STDOUT in (stdin, stdout):
            raise ValueError("STDOUT can only be used for stderr")
        ours: list[int | None] = []
        argv = [os.fspath(arg) for arg in args]
        with ExitStack() as to_close, ExitStack() as undo:
            theirs: list[int] = []
            for descriptor, stream in enumerate((stdin, stdout, stderr)):
                if stream == subprocess.STDOUT:
                    file, own = theirs[1], None
                else:
                    file, own = _ends(descriptor, stream, to_close)
                theirs.append(file)
                ours.append(own)
                if own is not None:
                    undo.callback(os.close, own)
            status, status_writer = os.pipe()
            undo.callback(os.close, status)
            to_close.callback(os.close, status_writer)
            request = {
                "do": "start",
                "host": self.name,
                "argv": argv,
                "env": dict(os.environ if env is None else env),
                "cwd": str(Path.cwd() if cwd is None else Path(cwd).absolute()),
            }
            answer, (pidfd,) = self._ask(request, [*theirs, status_writer])
            undo.pop_all()
        number = answer["number"]

        def ask(what: str, details: dict[str, Any]) -> dict[str, Any]:
            return self._ask({"do": what, "number": number, **details})[0]

        return Program(argv, _outer_pid(pidfd), ask, pipes=ours, status=status, text=text)

    def run(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        input: str | bytes | None = None,
        timeout: float | None = None,
        check: bool = False,
        text: bool = True,
        stdout: Stream = subprocess.PIPE,
        stderr: Stream = subprocess.PIPE,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program in this host to its end; returns and raises as `subprocess.run` does.

        After `timeout` seconds it is killed, with all that it has started (its session). What it
        leaves running goes on, until the lab ends, and is not waited for. LabError: as of `popen`.
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        program = self.popen(
            args, stdin=stdin, stdout=stdout, stderr=stderr, text=text, env=env, cwd=cwd
        )
        try:
            output, errors = program.communicate(input, timeout)
        except BaseException:
            with suppress(RuntimeError, subprocess.TimeoutExpired):  # or the lab has ended
                program.kill()
                program.communicate(timeout=_AFTER_KILL_S)
            raise
        status = program.wait()
        if check and status != 0:
            raise subprocess.CalledProcessError(status, program.args, output, errors)
        return subprocess.CompletedProcess(program.args, status, output, errors)


def _ends(number: int, stream: Stream, to_close: ExitStack) -> tuple[int, int | None]:
    """Return the program's end of a file, which `to_close` closes, and ours of a pipe."""
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        theirs, ours = (reading, writing) if number == 0 else (writing, reading)
        to_close.callback(os.close, theirs)
        return theirs, ours
    if stream == subprocess.DEVNULL:
        nothing = os.open(os.devnull, os.O_RDWR)
        to_close.callback(os.close, nothing)
        return nothing, None
    if stream is None:
        return number, None
    return stream if isinstance(stream, int) else stream.fileno(), None


def _outer_pid(pidfd: int) -> int:
    """Return a process's id outside its PID namespace; -1 once it has ended."""
    fields = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    os.close(pidfd)
    return int(fields.partition("\nPid:")[2].split()[0])


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
