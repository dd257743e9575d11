"""Forks the server and the workers into their hosts, from one process that has imported torch.

It waits for one message, which names the hosts. A forked worker is ready in about 50 ms.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import secrets
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from controllers.controller_socket import ControllerClient
from controllers.impairments import parameters_of
from testbed.lab.helpers.process import Requests
from testbed.lab.kernel import namespaces, privileges
from testbed.run.processes import how_ended, killed_by
from testbed.shared import failure, own_code, python_module, run_directory
from testbed.shared.messages import Messages, ProgressWriter
from testbed.transport import PeerLost
from testbed.transport.net.carriers import DataSockets

if TYPE_CHECKING:
    from testbed.training.state import ModelAndData, RunContext

# numpy imports these on first use; without this, each process would do so in its first round.
_USED_LATER = ("numpy.ma", "numpy.random")
OWN_FAULT, ANOTHERS_FAULT = 1, 3  # exit statuses of server and workers
# An endpoint that closes lingers for a second, and its peers notice at once.
_CULPRIT_TIMEOUT_S = 3.0
_SERVER = "server"
# A worker that computes nothing mostly waits for packets: many share a process, each in a thread
# inside its own host's network namespace.
_MANY_WORKERS, _TOGETHER = 16, 32
# A thread that computes is asked for the interpreter by the others after this time.
_SWITCH_INTERVAL_S = 0.0005
_FAULTS_OF_OTHERS = (PeerLost, ConnectionError, TimeoutError)


def main() -> None:
    """Run `python -m testbed.run.training_launcher RUN_DIRECTORY`, which receives its order."""
    directory = Path(sys.argv[1])
    with python_module.large_imports():
        import torch

        from testbed.training import barriers, server, worker
        from testbed.training.state import ModelAndData

        for module in _USED_LATER:
            importlib.import_module(module)
    privileges.drop()  # own code is loaded here
    torch.set_num_threads(1)  # before the fork, and before any operation starts threads
    torch.use_deterministic_algorithms(True)
    # The network is built meanwhile; the order arrives when it is ready.
    model_and_data = ModelAndData(run_directory.read_json(directory / "config.json"))
    try:
        own_code.expect(model_and_data.config.get("code", {}))
        model_and_data.load()
    except BaseException as error:  # a model or data set of the user's own may raise anything
        _fail_to_load(error)
    (directory / "logs" / run_directory.LOADED).touch()
    order = Requests().wait()
    if order is None:
        sys.exit(1)
    context = _context(order, directory, model_and_data)
    try:
        context.write_facts()
    except BaseException as error:
        _fail_to_load(error)
    with privileges.regained():
        listener = barriers.listen(context.coordination_socket)
        privileges.hand_over(context.coordination_socket)
    controller = _connect_to_controller(context)
    controller.announce_only()
    descriptor = socket.socket(fileno=order["progress_descriptor"])
    progress = ProgressWriter(Messages(descriptor))

    vectors = context.new_vectors()
    # The children wait until the controller knows them, because it may act in the first round.
    gate = os.pipe()

    def task(name: str, run: Callable[[DataSockets], None]) -> HostTask:
        host = order["hosts"][name]
        opening = functools.partial(context.open_sockets, name)
        return HostTask(host_pid=int(host["pid"]), open_sockets=opening, run=run)

    serve = functools.partial(server.run, context, listener, controller, progress, vectors)
    tasks = {
        name_of(group): {
            name: task(name, functools.partial(worker.run, context, name, vectors))
            for name in group
        }
        for group in groups(context.config, context.workers)
    }
    # It must not outlive the server, and no worker may speak to the controller or the command.
    servers_alone = (listener, controller, descriptor)
    children = fork_all(task(_SERVER, serve), tasks, directory, gate, servers_alone=servers_alone)
    pids = {name: pid for pid, group in children.items() for name in tasks.get(group, {_SERVER})}
    with contextlib.closing(_connect_to_controller(context)) as client:
        client.processes(pids)
    for end in gate:
        os.close(end)
    status = wait_for(children, directory, outlive=context.survives_workers)
    sys.stderr.flush()
    os._exit(status)  # skips torch's clean-up, which takes most of a second


def _fail_to_load(error: BaseException) -> NoReturn:
    failure.record(error, "training")
    sys.exit(1)


def _context(order: dict[str, Any], directory: Path, model_and_data: ModelAndData) -> RunContext:
    from testbed.training.state import RunContext

    return RunContext(
        directory=directory,
        addresses={name: host["address"] for name, host in order["hosts"].items()},
        fair_shares_bps=order["fair_shares_bps"],
        fair_queues_bytes=order["fair_queues_bytes"],
        controller_socket=Path(order["controller_socket"]),
        coordination_socket=Path(order["coordination_socket"]),
        session=secrets.randbits(32),
        model_and_data=model_and_data,
    )


@dataclass(frozen=True, kw_only=True)
class HostTask:
    """The work of one of the training's hosts, in a process or thread of its own."""

    host_pid: int  # of a process or thread in the host's network namespace
    open_sockets: Callable[[], DataSockets]  # with root's powers: runs nothing of the user's own
    run: Callable[[DataSockets], None]  # without them

    def prepare(self) -> Callable[[], None]:
        """Move the calling thread into the host, without root's powers; return what is to run."""
        namespaces.enter(self.host_pid)
        sockets = self.open_sockets()
        privileges.abandon()
        return functools.partial(self.run, sockets)


def groups(config: Mapping[str, Any], workers: Sequence[str]) -> list[list[str]]:
    """Group the workers that share a process, in rank order."""
    pace = config["training"]["pace"]
    size = pace.get("workers_per_process")
    kinds = (str(impairment["kind"]) for impairment in config["impairments"])
    if pace["kind"] != "payload-only" or any(
        own_code.is_own(kind) or parameters_of(kind).acts_on_process for kind in kinds
    ):
        size = 1
    elif size is None:
        size = _TOGETHER if len(workers) > _MANY_WORKERS else 1
    return [list(workers[first : first + size]) for first in range(0, len(workers), size)]


def name_of(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]}-to-{group[-1].rpartition('-')[2]}"


def run_together(
    tasks: Mapping[str, HostTask], fail: Callable[[BaseException, str], NoReturn]
) -> None:
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
        except BaseException as raised:  # SystemExit too: own code may call for it
            error = raised
        done.put((error, name))
        if error is not None:
            prepared.abort()

    for name, task in tasks.items():
        threading.Thread(target=live, args=(name, task), name=name, daemon=True).start()
    privileges.abandon()
    privileges.die_with_parent()
    with contextlib.suppress(threading.BrokenBarrierError):
        prepared.wait()
    for _ in tasks:
        error, name = done.get()
        if error is not None:
            fail(error, name)


def fork_all(
    server: HostTask,
    workers: Mapping[str, Mapping[str, HostTask]],
    directory: Path,
    gate: tuple[int, int],
    *,
    servers_alone: Iterable[socket.socket | ControllerClient],
) -> dict[int, str]:
    """Fork the server, then the workers' processes, which do not inherit what is its alone."""
    children = {_fork(_SERVER, {_SERVER: server}, directory, gate): _SERVER}
    for connection in servers_alone:
        connection.close()
    for process, tasks in workers.items():
        children[_fork(process, tasks, directory, gate)] = process
    return children


def _fork(name: str, tasks: Mapping[str, HostTask], directory: Path, gate: tuple[int, int]) -> int:
    """Run the tasks of hosts in a child, once all others have closed the `gate` for writing."""
    child = os.fork()
    if child:
        return child
    try:
        os.environ[failure.REASON_FILE] = str(reason_of(directory, name))
        log = os.open(directory / "logs" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(log, standard)
        privileges.regain()
        if len(tasks) == 1:
            work = tasks[name].prepare()
            privileges.die_with_parent()
        else:
            work = functools.partial(
                run_together, tasks, lambda error, of: _end(error, f"{name}: {of}")
            )
        reading, writing = gate
        os.close(writing)
        os.read(reading, 1)
        work()
    except BaseException as error:  # SystemExit too: own code may call for it
        _end(error, name)
    os._exit(0)


def _connect_to_controller(context: RunContext) -> ControllerClient:
    """Connect with root's powers: the socket is closed to what this process forks."""
    privileges.regain()
    try:
        return ControllerClient(context.controller_socket)
    finally:
        privileges.drop()


def _end(error: BaseException, name: str) -> NoReturn:
    try:
        failure.record(error, name)
    finally:
        others = isinstance(error, _FAULTS_OF_OTHERS)
        os._exit(ANOTHERS_FAULT if others else OWN_FAULT)


def wait_for(children: dict[int, str], directory: Path, *, outlive: bool) -> int:
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
    """Wait for the next that ends, the server first; return its name and status."""
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
    reason = words.read_text(encoding="utf-8").strip() if words.exists() else ""
    reason = reason or f"{name}: {how_ended(code)}"
    reason_of(directory, "training").write_text(reason + "\n", encoding="utf-8")
    for other in children:
        os.kill(other, signal.SIGKILL)


def _culprit(first: tuple[str, int], children: dict[int, str]) -> tuple[str, int]:
    """Return the process that failed by itself, by a signal or its own fault, and its code."""
    # Peers fail soon after a process that fails, and sometimes before it has ended.
    failed = [first, *_already_dead(children)]
    deadline_s = time.monotonic() + _CULPRIT_TIMEOUT_S
    while {code for _, code in failed} <= {0, ANOTHERS_FAULT} and time.monotonic() < deadline_s:
        time.sleep(0.01)
        failed += _already_dead(children)
    return min((name_and_code for name_and_code in failed if name_and_code[1]), key=itemgetter(1))


def _cause(name: str, number: int, directory: Path) -> str:
    by = killed_by(name, directory) if number == signal.SIGKILL else ""
    return f"{how_ended(-number)}{by}"


def _already_dead(children: dict[int, str]) -> list[tuple[str, int]]:
    dead = []
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            dead.append((children.pop(pid), os.waitstatus_to_exitcode(status)))
    return dead


def reason_of(directory: Path, name: str) -> Path:
    return directory / "logs" / f"{name}.reason"


if __name__ == "__main__":
    main()
