"""Forks server and workers from one process that has imported torch, each into its host.

Started early by the supervisor; waits on standard input for one JSON line that says where the
hosts are. Importing once and forking makes a worker ready in about 50 ms and shares its memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from testbed import rundir
from testbed.lab import netns
from testbed.progress import ProgressWriter
from testbed.training import coordination, server, worker
from testbed.training.setting import Setting

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """`python -m testbed.training.launcher RUN_DIRECTORY`, with the order on standard input."""
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)  # before the fork, and before any operation starts threads
    torch.use_deterministic_algorithms(True)
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)
    order = json.loads(line)
    setting = _setting(order, directory)
    listener = coordination.listen(setting.coordination_socket)
    progress = ProgressWriter(order["progress_descriptor"])

    children: dict[int, str] = {}
    for name, host in order["hosts"].items():
        if name == "server":
            task: Callable[[], None] = lambda: server.run(setting, listener, progress)  # noqa: E731
        else:
            task = lambda name=name: worker.run(setting, name)  # type: ignore[misc]  # noqa: E731
        children[_fork(name, host["pid"], task, directory)] = name
    listener.close()
    sys.exit(_await(children, directory))


def _setting(order: dict[str, Any], directory: Path) -> Setting:
    hosts = order["hosts"]
    return Setting(
        config=rundir.read_json(directory / "config.json"),
        directory=directory,
        addresses={name: host["address"] for name, host in hosts.items()},
        link_rates_bps={name: host["rate_bps"] for name, host in hosts.items()},
        controller_socket=Path(order["controller_socket"]),
        coordination_socket=Path(order["coordination_socket"]),
        session=secrets.randbits(32),
    )


def _fork(name: str, host_pid: int, task: Callable[[], None], directory: Path) -> int:
    """Run `task` in a child process inside the network namespace of `host_pid`."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(directory / "logs" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(log, standard)
        netns.enter(host_pid)
        task()
        status = 0
    except Exception as error:
        traceback.print_exc()
        _explain(directory, name, str(error) or type(error).__name__)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _await(children: dict[int, str], directory: Path) -> int:
    """Wait for all children; when one fails, name the cause, end the others and return 1."""
    while children:
        pid, status = os.wait()
        name = children.pop(pid)
        if status == 0:
            continue
        failed = [(name, os.waitstatus_to_exitcode(status)), *_already_dead(children)]
        # Peers of a killed process fail too, soon after: the signal is the cause.
        name, code = min(failed, key=lambda each: each[1])
        if code < 0:
            _explain(directory, name, f"killed by {signal.Signals(-code).name}")
        words = directory / "logs" / f"{name}.reason"
        words.rename(words.with_name("training.reason"))
        for other in children:
            os.kill(other, signal.SIGKILL)
        return 1
    return 0


def _already_dead(children: dict[int, str]) -> list[tuple[str, int]]:
    dead = []
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            dead.append((children.pop(pid), os.waitstatus_to_exitcode(status)))
    return dead


def _explain(directory: Path, name: str, reason: str) -> None:
    """Leave a process's last words where the status can quote them."""
    words = directory / "logs" / f"{name}.reason"
    words.write_text(f"{name}: {' '.join(reason.split())}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
