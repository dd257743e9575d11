"""Helper processes: programs that take requests as messages, and answer by messages."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from testbed.lab.kernel import privileges
from testbed.shared import messages
from testbed.shared.messages import LateError, MessageError, Messages, wait_for

_READ_BYTES = 1 << 16
# A helper starts Python and what it imports first: seconds on a busy machine.
_ANSWER_TIMEOUT_S = 20.0
_SEND_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 5.0


class HelperError(RuntimeError):
    """A helper ended, or does not answer in time; the message names it and says which."""


# The parent's side


@dataclass(eq=False)
class HelperProcess:
    """A helper, which runs from `start` on."""

    argv: Sequence[str]
    _: KW_ONLY
    name: str
    # It waits as `wait_for` does: nothing may block the controller's green threads.
    readable: Callable[[int, float], bool] = wait_for
    stderr: Any = None
    env: Mapping[str, str] | None = None

    def start(self) -> HelperProcess:
        self._messages, theirs = messages.pair()
        with theirs:  # its standard input
            self.process = subprocess.Popen(
                self.argv,
                bufsize=0,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                env=self.env,
            )
        assert self.process.stdout is not None
        self._output = self.process.stdout
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, **request: object) -> None:
        try:
            self._messages.send(request, timeout_s=_SEND_TIMEOUT_S)
        except LateError:
            raise HelperError(f"{self.name}: took no request in {_SEND_TIMEOUT_S:g} s") from None
        except MessageError as error:
            raise self._ended() from error

    def receive(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> dict[str, Any]:
        if not self.readable(self._messages.fileno(), timeout_s):
            raise HelperError(f"{self.name}: no answer in time")
        try:
            return self._messages.receive(timeout_s)[0]
        except MessageError as error:
            raise self._ended() from error

    def ask(self, timeout_s: float, **request: object) -> dict[str, Any]:
        """Return its answer to a request; a late one to an earlier request is passed over."""
        try:
            return self._messages.ask(request, timeout_s=timeout_s)[0]
        except LateError:
            raise HelperError(f"{self.name}: no answer in time") from None
        except MessageError as error:
            raise self._ended() from error

    def read_to_end(self, timeout_s: float) -> bytes:
        """Read its output until it ends; it is killed when that takes longer than the time."""
        deadline_s, text, more = time.monotonic() + timeout_s, b"", b"."
        while more and self.readable(
            self._output.fileno(), max(0.0, deadline_s - time.monotonic())
        ):
            more = os.read(self._output.fileno(), _READ_BYTES)
            text += more
        self._end_by(deadline_s)
        return text

    def finish(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        """End the connection and wait until it has ended; it is killed after the time."""
        self._messages.close()
        self._end_by(time.monotonic() + timeout_s)
        self._output.close()

    def close(self) -> None:
        self.process.kill()
        self.finish()

    def _end_by(self, deadline_s: float) -> None:
        """Wait until it has ended; kill it after that instant of the monotonic clock."""
        try:
            self.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self._wait_briefly()

    def _wait_briefly(self) -> int | None:
        """Return its exit status; None when it goes on (after a kill: the kernel's fault)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(_END_TIMEOUT_S)
        return None

    def _ended(self) -> HelperError:
        status = self._wait_briefly()
        if status is None:
            return HelperError(f"{self.name}: closed its connection and runs on")
        return HelperError(f"{self.name}: ended with status {status}")


# The helper's side


class Requests:
    """The parent's requests, and answers to them."""

    def __init__(self) -> None:
        self.descriptor = 0
        self._messages = Messages(socket.socket(fileno=os.dup(self.descriptor)))

    def wait(self) -> dict[str, Any] | None:
        """Wait for the next request; None when there will be none."""
        try:
            return self._messages.receive()[0]
        except MessageError:
            return None

    def say(self, record: Mapping[str, object]) -> None:
        """Send a message that answers no request by number."""
        with contextlib.suppress(MessageError):
            self._messages.send(record)

    def answer(self, request: Mapping[str, Any], record: Mapping[str, object]) -> None:
        with contextlib.suppress(MessageError):
            self._messages.answer(request, record)


def run_at_once(pid: int = 0) -> bool:
    """Let a process run before all others when it has work; False: that is not allowed."""
    # Only for programs that hardly ever run: even with the best niceness a busy processor lets a
    # program wait for the next tick of 4 ms now and then.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
        return True
    return False


def main() -> None:
    """Wait for a request, then become another program: `... process PROGRAM ARGUMENTS`."""
    # The program knows nothing of a helper's input: the kernel ends it with its parent.
    privileges.die_with_parent()
    run_at_once()
    requests = Requests()
    if requests.wait() is None:
        return
    requests.say({"began_s": time.monotonic()})
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (an argument list, no shell)


if __name__ == "__main__":
    main()
