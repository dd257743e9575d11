"""Waits for the training's processes: ends all when one fails, or restarts workers that died."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.run import killed_by
from testbed.shared import failure, run_directory
from testbed.shared.jsonl import JsonLinesWriter

OWN_FAULT, ANOTHERS_FAULT = 1, 3  # exit statuses of server and workers
# An endpoint that closes lingers for a second, and its peers notice at once.
_CULPRIT_PATIENCE_S = 3.0
_SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How processes of workers are started again.

    Attributes:
        most: how often each.
        after_s: the pause before each.
        restart: starts the process of this name again; returns its number.
    """

    most: int
    after_s: float
    restart: Callable[[str], int]


def wait(
    children: dict[int, str],
    directory: Path,
    *,
    outlive: bool,
    restarts: Restarts | None = None,
) -> int:
    """Wait for all children; when one fails, name the cause, end the others and return 1.

    Args:
        children: process number -> name, the server first.
        directory: of the run.
        outlive: whether the run goes on without a worker that was killed.
        restarts: of workers that were killed, or that gave up the server while it lives.
    """
    return _Children(children, directory, outlive, restarts).wait()


class _Children:
    def __init__(
        self, children: dict[int, str], directory: Path, outlive: bool, restarts: Restarts | None
    ) -> None:
        self._children = children
        self._directory = directory
        self._outlive = outlive
        self._restarts = restarts
        self._restarted: Counter[str] = Counter()
        self._due: dict[str, tuple[float, float, str]] = {}  # when, when it ended, and why

    def wait(self) -> int:
        while self._children:
            ended = self._next()
            if ended is None:
                self._restart()
                continue
            name, status = ended
            if name == _SERVER:
                self._due.clear()  # there is nothing to come back to
            if status and not self._goes_on(name, status):
                self._fail(name, status)
                return 1
        return 0

    def _next(self) -> tuple[str, int] | None:
        """The next that ends, and its status, the server first; None once a restart is due."""
        left_s = None
        if self._due:
            left_s = max(0.0, min(self._due.values())[0] - time.monotonic())
        with contextlib.ExitStack() as opened:
            poll = select.poll()
            for pid in self._children:
                descriptor = os.pidfd_open(pid)
                opened.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
            poll.poll(None if left_s is None else math.ceil(left_s * 1000))
        for pid in self._children:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return self._children.pop(pid), status
        return None

    def _goes_on(self, name: str, status: int) -> bool:
        """Whether the run goes on without, or with a restart of, what ended with this status."""
        if name == _SERVER or not self._outlive:
            return False
        gave_up = os.waitstatus_to_exitcode(status) == ANOTHERS_FAULT
        if not (os.WIFSIGNALED(status) or (gave_up and self._restarts is not None)):
            return False
        serving = _SERVER in self._children.values()
        if gave_up and not serving:
            return True  # it came back too late: all rounds are over
        why = self._why(name, status)
        restarts = self._restarts
        if restarts is not None and serving and self._restarted[name] < restarts.most:
            now_s = time.monotonic()
            self._due[name] = now_s + restarts.after_s, now_s, why
            return True
        with (self._directory / "logs" / run_directory.LOST_WORKERS).open(
            "a", encoding="utf-8"
        ) as file:
            file.write(f"{name}: {why}\n")
        return True

    def _why(self, name: str, status: int) -> str:
        if os.WIFSIGNALED(status):
            return _cause(name, os.WTERMSIG(status), self._directory)
        path = reason_of(self._directory, name)
        said = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        return said.removeprefix(f"{name}: ") or f"ended with status {ANOTHERS_FAULT}"

    def _restart(self) -> None:
        """Start again the process that is due first."""
        assert self._restarts is not None
        name = min(self._due, key=lambda each: self._due[each])
        _, ended_s, why = self._due.pop(name)
        self._restarted[name] += 1
        reason_of(self._directory, name).unlink(missing_ok=True)
        pid = self._restarts.restart(name)
        self._children[pid] = name
        log = JsonLinesWriter(self._directory / "events" / run_directory.RESTARTS)
        log.write(
            {
                "process": name,
                "why": why,
                "ended_s": ended_s,
                "restarted_s": time.monotonic(),
                "restart": self._restarted[name],
                "pid": pid,
            }
        )
        log.close()

    def _fail(self, name: str, status: int) -> None:
        """Say why the run fails, of all who failed by now; end the others."""
        children, directory = self._children, self._directory
        code = os.waitstatus_to_exitcode(status)
        # A server that outlives its workers did not fail of one that died in the same moment.
        if not (self._outlive and name == _SERVER and code != ANOTHERS_FAULT):
            name, code = _culprit((name, code), children)
        words = reason_of(directory, name)
        if code < 0:
            words.write_text(f"{name}: {_cause(name, -code, directory)}\n", encoding="utf-8")
        said = words.read_text(encoding="utf-8").strip() if words.exists() else ""
        said = said or f"{name}: ended with status {code}"
        if code == ANOTHERS_FAULT:
            said += _whereabouts(children, directory)
        reason_of(directory, "training").write_text(said + "\n", encoding="utf-8")
        for other in children:
            os.kill(other, signal.SIGKILL)


def _culprit(first: tuple[str, int], children: dict[int, str]) -> tuple[str, int]:
    """Name and exit code of the process that failed by itself: a signal, its own fault, another's.

    Peers fail soon after a process that fails, and sometimes before it has ended.
    """
    failed = [first, *_already_dead(children)]
    deadline_s = time.monotonic() + _CULPRIT_PATIENCE_S
    while {code for _, code in failed} <= {0, ANOTHERS_FAULT} and time.monotonic() < deadline_s:
        time.sleep(0.01)
        failed += _already_dead(children)
    return min((each for each in failed if each[1]), key=lambda each: each[1])


def _whereabouts(children: Mapping[int, str], directory: Path) -> str:
    """Where those are that go on: one that is in own code has kept the others waiting."""
    said = []
    for pid, name in children.items():
        if words := failure.where(pid, directory / "logs" / f"{name}.log"):
            said.append(f"; {name} was in {words}, see logs/{name}.log")
    return "".join(said)


def _cause(name: str, number: int, directory: Path) -> str:
    """Describe the signal that ended a process, and the impairment that sent it."""
    by = killed_by.impairment(name, directory) if number == signal.SIGKILL else ""
    return f"killed by {signal.Signals(number).name}{by}"


def _already_dead(children: dict[int, str]) -> list[tuple[str, int]]:
    dead = []
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            dead.append((children.pop(pid), os.waitstatus_to_exitcode(status)))
    return dead


def reason_of(directory: Path, name: str) -> Path:
    """The file in which a process leaves its reason to end, for the status."""
    return directory / "logs" / f"{name}.reason"
