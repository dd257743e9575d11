"""Starts and watches a lab's processes by name, and says why one of them ended."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.shared import failure, jsonl, messages, own_code, run_directory
from testbed.shared.messages import MessageError, Messages

_LAST_LINES, _LAST_BYTES = 3, 2000
_LOG_TIMEOUT_S = 1.0


class ProcessError(RuntimeError):
    """A process ended, or did not get ready; the message is the reason in the run's status."""


class Processes:
    """Starts processes with their output in `logs`, and watches all of them."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._reported: set[str] = set()  # whose end `wait` has returned
        self._connections: dict[str, Messages] = {}

    def adopt(self, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
        self._running |= processes

    def spawn(
        self, name: str, argv: Sequence[str], *, receives: bool = False, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process, which may receive messages; `options` go to `subprocess.Popen`."""
        with run_directory.open_file(self._logs / f"{name}.log", "ab") as log:
            theirs = None
            if receives:
                self._connections[name], theirs = messages.pair()
            options.setdefault("stdin", theirs or subprocess.DEVNULL)
            # Ctrl-C at the prompt of a shell must not reach the lab itself.
            options.setdefault("start_new_session", True)
            options.setdefault("env", dict(os.environ))
            options["env"][failure.REASON_FILE] = str(self._logs / f"{name}.reason")
            process: subprocess.Popen[bytes]
            process = subprocess.Popen(list(argv), stdout=log, stderr=log, **options)
            if theirs is not None:
                theirs.close()
        self._running[name] = process
        return process

    def send(self, name: str, message: Mapping[str, Any]) -> None:
        """Send a message to a process's standard input, unless it has ended."""
        with contextlib.suppress(MessageError):
            self._connections[name].send(message)

    def statuses(self) -> dict[str, int | None]:
        return {name: process.poll() for name, process in self._running.items()}

    def first_ended(self) -> str:
        """Say why the first process that has ended did; empty while all run."""
        ended = (name for name, status in self.statuses().items() if status is not None)
        name = next(ended, None)
        return "" if name is None else self.reason(name)

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._running.items()}

    def wait_for(self, path: Path, name: str, timeout_s: float) -> None:
        """Return when process `name` has made `path`."""
        deadline_s = time.monotonic() + timeout_s
        while not path.exists():
            if self._running[name].poll() is not None:
                raise ProcessError(self.reason(name))
            if time.monotonic() > deadline_s:
                raise ProcessError(f"{name}: not ready within {timeout_s:g} s")
            time.sleep(0.005)

    def wait(self, timeout_s: float, also: Iterable[int] = ()) -> tuple[list[str], list[int]]:
        """Wait until a process ends, or one of other descriptors becomes readable."""
        left = {
            name: process for name, process in self._running.items() if name not in self._reported
        }
        # One that was polled before has no process id any more.
        ended = [name for name, process in left.items() if process.returncode is not None]
        with contextlib.ExitStack() as opened:
            selector = opened.enter_context(selectors.DefaultSelector())
            for descriptor in also:
                selector.register(descriptor, selectors.EVENT_READ)
            for name in left.keys() - ended:
                descriptor = os.pidfd_open(left[name].pid)
                opened.callback(os.close, descriptor)
                selector.register(descriptor, selectors.EVENT_READ, name)
            ready = [key for key, _ in selector.select(0 if ended else timeout_s)]
        ended += [key.data for key in ready if key.data is not None]
        self._reported.update(ended)
        return ended, [key.fd for key in ready if key.data is None]

    def wait_until_done(self, awaited: str, timeout_s: float) -> None:
        """Return when process `awaited` has ended well."""
        ended, _ = self.wait(timeout_s)
        if not ended:
            raise ProcessError(f"not finished after {timeout_s:g} s (limits.run_timeout_s)")
        first = min(ended, key=lambda name: (name == awaited, name))
        if first != awaited or self._running[awaited].wait() != 0:
            raise ProcessError(self.reason(first))

    def reason(self, name: str) -> str:
        """Say why a process ended: what it wrote, else its signal or status and its log's end."""
        self._running[name].wait()
        words = self._logs / f"{name}.reason"
        if words.exists() and (text := words.read_text(encoding="utf-8").strip()):
            # The launcher hands on the words of a process that it started.
            log = text.partition(":")[0]
            log = log if (self._logs / f"{log}.log").exists() else name
            return f"{text}; see logs/{log}.log"
        return f"{name}: {how_ended(self._running[name].wait())}; {self.end_of_log(name)}"

    def end_of_log(self, name: str) -> str:
        return end_of(self._logs / f"{name}.log", f"logs/{name}.log")


def how_ended(status: int) -> str:
    """Describe an exit status, which is below 0 for a signal."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def end_of(path: Path, name: str) -> str:
    """Quote the last lines of a file, in one line that gives it this name."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _LAST_BYTES))
        lines = stream.read().decode(errors="replace").splitlines()
        last = [" ".join(line.split()) for line in lines if line.strip()][-_LAST_LINES:]
        if last:
            return f"{name} ends: {' | '.join(last)}"
    return f"{name} is empty"


def killed_by(host: str, directory: Path) -> str:
    """Return ` by impairment NAME (kind crash)`, or nothing when no impairment did it."""
    # The controller logs it after the fact: the process may be found dead a moment earlier.
    planned = run_directory.read_json(directory / "config.json")["impairments"]
    crashes = (
        entry for entry in planned if entry["kind"] == "crash" or own_code.is_own(entry["kind"])
    )
    if not any(entry["host"] == host for entry in crashes):
        return ""
    log = directory / "events" / "impairments.jsonl"
    deadline_s = time.monotonic() + _LOG_TIMEOUT_S
    while time.monotonic() < deadline_s:
        for record in jsonl.read(log):
            if (record["counts_as"], record["action"], record["host"]) == ("crash", "begin", host):
                return f" by impairment {record['name']} (kind {own_code.short(record['kind'])})"
        time.sleep(0.01)
    return ""
