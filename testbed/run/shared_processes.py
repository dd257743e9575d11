"""Runs several workers in one process, each in a thread inside its own host's network namespace.

A worker that computes nothing mostly waits for packets, so many fit into one process. An impairment
that acts on one worker's process would hit its companions too: then each has a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, NoReturn

from controllers.impairments import parameters_of
from testbed.lab.kernel import namespaces, privileges
from testbed.shared import own_code
from testbed.transport.net.carriers import DataSockets

# A thread that computes is asked for the interpreter by the others after this time.
_SWITCH_INTERVAL_S = 0.0005
_MANY_WORKERS, _TOGETHER = 16, 32


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """What one of the training's hosts does, in a process or thread of its own."""

    host_pid: int  # of a process or thread in the host's network namespace
    open_sockets: Callable[[], DataSockets]  # with root's powers: runs nothing of the user's own
    run: Callable[[DataSockets], None]  # without them

    def prepare(self) -> Callable[[], None]:
        """Settle the calling thread in the host, without root's powers; returns what is to run."""
        namespaces.enter(self.host_pid)
        sockets = self.open_sockets()
        privileges.give_up()
        return functools.partial(self.run, sockets)


def groups(config: Mapping[str, Any], workers: Sequence[str]) -> list[list[str]]:
    """Which workers of a run share a process, in rank order."""
    pace = config["training"]["pace"]
    size = pace.get("workers_per_process")
    if pace["kind"] != "payload-only" or any(map(_acts_on_process, config["impairments"])):
        size = 1
    elif size is None:
        size = _TOGETHER if len(workers) > _MANY_WORKERS else 1
    return [list(workers[first : first + size]) for first in range(0, len(workers), size)]


def name_of(group: Sequence[str]) -> str:
    """What to call the process of a group of workers: for one worker, its own name."""
    return group[0] if len(group) == 1 else f"{group[0]}-to-{group[-1].rpartition('-')[2]}"


def run(tasks: Mapping[str, HostTask], give_up: Callable[[BaseException, str], NoReturn]) -> None:
    """Run the tasks of hosts side by side, and return when all are done."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    done: SimpleQueue[tuple[BaseException | None, str]] = SimpleQueue()
    # What is the user's own reaches all threads of its process: none may have root's powers then.
    prepared = threading.Barrier(len(tasks) + 1)

    def live(name: str, task: HostTask) -> None:
        error: BaseException | None = None
        try:
            work = task.prepare()
            prepared.wait()
            work()
        except BaseException as found:  # SystemExit too: own code may call for it
            error = found
        done.put((error, name))
        if error is not None:
            prepared.abort()

    for name, task in tasks.items():
        threading.Thread(target=live, args=(name, task), name=name, daemon=True).start()
    privileges.give_up()
    privileges.die_with_parent()
    with contextlib.suppress(threading.BrokenBarrierError):
        prepared.wait()
    for _ in tasks:
        error, name = done.get()
        if error is not None:
            give_up(error, name)


def _acts_on_process(impairment: Mapping[str, Any]) -> bool:
    kind = str(impairment["kind"])
    return own_code.is_own(kind) or parameters_of(kind).acts_on_process
