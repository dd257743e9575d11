"""Waits for the training's processes: ends all when one fails."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from testbed.run.processes import killed_by
from testbed.shared import failure, run_directory

OWN_FAULT, ANOTHERS_FAULT = 1, 3  # exit statuses of server and workers
# An endpoint that closes lingers for a second, and its peers notice at once.
_CULPRIT_PATIENCE_S = 3.0
_SERVER = "server"


def wait(children: dict[int, str], directory: Path, *, outlive: bool) -> int:
    """Wait for all children; when one fails, name the cause, end the others and return 1."""
    while children:
        name, status = _next(children)
        if not status:
            continue
        if not (outlive and name != _SERVER and os.WIFSIGNALED(status)):
            _fail(name, status, children, directory, outlive=outlive)
            return 1
        why = _cause(name, os.WTERMSIG(status), directory)
        with (directory / "logs" / run_directory.LOST_WORKERS).open("a", encoding="utf-8") as file:
            file.write(f"{name}: {why}\n")
    return 0


def _next(children: dict[int, str]) -> tuple[str, int]:
    """The next that ends, and its status, the server first."""
    while True:
        with contextlib.ExitStack() as opened:
            poll = select.poll()
            for pid in children:
                descriptor = os.pidfd_open(pid)
                opened.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
            poll.poll()
        for pid in children:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return children.pop(pid), status


def _fail(
    name: str, status: int, children: dict[int, str], directory: Path, *, outlive: bool
) -> None:
    """Say why the run fails, of all who failed by now; end the others."""
    code = os.waitstatus_to_exitcode(status)
    # A server that outlives its workers did not fail of one that died in the same moment.
    if not (outlive and name == _SERVER and code != ANOTHERS_FAULT):
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
    by = killed_by(name, directory) if number == signal.SIGKILL else ""
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
