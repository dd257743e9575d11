"""Helper processes: programs that are told what to do in JSON lines and answer in JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_READ_BYTES = 1 << 16
# A helper starts Python and what it imports first: seconds on a busy machine.
_ANSWER_TIMEOUT_S = 20.0
_TELL_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 5.0
_LONGEST_QUOTE = 80


class HelperError(RuntimeError):
    """A helper ended, or does not answer in time; the message names it and says which."""


# The parent's side


def wait_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until a descriptor is readable; False when that took longer than the time."""
    return _wait_for(descriptor, select.POLLIN, timeout_s)


def _wait_for(descriptor: int, event: int, timeout_s: float) -> bool:
    waiter = select.poll()  # `select` refuses descriptors above 1023
    waiter.register(descriptor, event)
    return bool(waiter.poll(max(0.0, timeout_s) * 1000))


class HelperProcess:
    """A running helper."""

    # `readable` waits as `wait_readable` does: nothing may block the controller's green threads.

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        readable: Callable[[int, float], bool] = wait_readable,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.process = subprocess.Popen(
            list(argv),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        os.set_blocking(self._input.fileno(), False)
        self._readable = readable
        self._text = b""
        self._silent = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended; what it printed can still be read."""
        return self.process.poll() is not None

    def tell(self, **request: object) -> None:
        """Send it one request."""
        left = memoryview(json.dumps(request).encode() + b"\n")
        deadline_s = time.monotonic() + _TELL_TIMEOUT_S
        descriptor = self._input.fileno()
        try:
            while left:
                if not _wait_for(descriptor, select.POLLOUT, deadline_s - time.monotonic()):
                    raise HelperError(f"{self.name}: took no request in {_TELL_TIMEOUT_S:g} s")
                with contextlib.suppress(BlockingIOError):
                    left = left[os.write(descriptor, left) :]
        except BrokenPipeError as error:
            raise self._ended() from error

    def hear(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """Its next answer."""
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._text:
            self._read_until(deadline_s)
            if self._silent:
                raise self._ended()
        line, self._text = self._text.split(b"\n", 1)
        try:
            return dict(json.loads(line))
        except (TypeError, ValueError):
            quoted = line[:_LONGEST_QUOTE].decode(errors="replace")
            raise HelperError(f"{self.name}: answered {quoted!r}") from None

    def read_to_end(self, timeout_s: float) -> bytes:
        """All that it prints until it ends; it is killed when that takes longer than the time."""
        deadline_s = time.monotonic() + timeout_s
        with contextlib.suppress(HelperError):  # too late: it is killed
            while not self._silent:
                self._read_until(deadline_s)
        self._end_by(deadline_s)
        return self._text

    def finish(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        """Close its input and wait until it has ended; it is killed after the time."""
        self._input.close()
        self._end_by(time.monotonic() + timeout_s)
        self._output.close()

    def close(self) -> None:
        """Kill it and forget it."""
        self.process.kill()
        self.finish()

    def _read_until(self, deadline_s: float) -> None:
        """Read once; at the end of its output it is silent for ever."""
        if not self._readable(self._output.fileno(), max(0.0, deadline_s - time.monotonic())):
            raise HelperError(f"{self.name}: no answer in time")
        more = os.read(self._output.fileno(), _READ_BYTES)
        self._silent = not more
        self._text += more

    def _end_by(self, deadline_s: float) -> None:
        """Wait until it has ended; kill it after that instant of the monotonic clock."""
        try:
            self.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._wait_briefly()

    def _wait_briefly(self) -> int | None:
        """Its status; None when it goes on, which after a kill only the kernel can be to blame."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(_END_TIMEOUT_S)
        return None

    def _ended(self) -> HelperError:
        status = self._wait_briefly()
        if status is None:
            return HelperError(f"{self.name}: closed its pipe and runs on")
        return HelperError(f"{self.name}: ended with status {status}")


# The helper's side


class Requests:
    """JSON lines on a file descriptor, read without waiting."""

    def __init__(self, descriptor: int = 0) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._rest = b""
        self._lines: list[bytes] = []

    def take(self) -> dict[str, Any] | None:
        """The next request that has come, if any."""
        return dict(json.loads(self._lines.pop(0))) if self._lines else None

    def read(self) -> None:
        """Read what has come; call it when the descriptor is readable."""
        text = os.read(self.descriptor, _READ_BYTES)
        self.ended = self.ended or not text
        *lines, self._rest = (self._rest + text).split(b"\n")
        self._lines += lines

    def wait(self) -> dict[str, Any] | None:
        """The next request, however long it takes; None when there will be none."""
        while True:
            request = self.take()
            if request is not None or self.ended:
                return request
            self.read()


def say(record: Mapping[str, object]) -> None:
    """Answer with one JSON line, at once."""
    print(json.dumps(dict(record)), flush=True)


def run_at_once(pid: int = 0) -> bool:
    """Let a process run before all others when it has work; False: that is not allowed."""
    # Only for programs that hardly ever run: even with the best niceness a busy processor lets a
    # program wait for the next tick of 4 ms now and then.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
        return True
    return False


def run_as_others(niceness: int) -> None:
    """Take this process's turn among the others, with this niceness where it is allowed."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
