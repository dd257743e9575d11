"""Whose fault a failed run is: of the process that failed by itself, not of its peers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from testbed.run import supervisor, training_launcher
from testbed.run.training_launcher import HostTask
from testbed.shared import failure, messages, run_directory
from testbed.shared.run_directory import read_json


def forked(after_s, status, reason_file=None):
    """A process that leaves a reason and ends with a status, or by a signal below 0."""
    child = os.fork()
    if not child:
        time.sleep(after_s)
        if reason_file is not None:
            reason_file.write_text(f"{reason_file.stem}: words\n")
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status)
    return child


def reason_after(directory, children, *, outlive):
    """What is said after the wait for these children, of which one at least failed."""
    forks = list(children)
    assert training_launcher.wait_for(children, directory, outlive=outlive) == 1
    for fork in forks:  # those that it killed are left to their parent, which ends
        with contextlib.suppress(ChildProcessError):
            os.waitpid(fork, 0)
    return training_launcher.reason_of(directory, "training").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="a child enters a network namespace: needs root")
def test_workers_have_nothing_that_is_the_servers_alone(tmp_path):
    (tmp_path / "logs").mkdir()
    alone, other = socket.socketpair()
    descriptor, gate = alone.fileno(), os.pipe()

    def work(sockets):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)

    def task(run: Any) -> HostTask:
        no_sockets: Any = list
        return HostTask(host_pid=os.getpid(), open_sockets=no_sockets, run=run)

    children = training_launcher.fork_all(
        task(lambda sockets: os.write(descriptor, b"served")),
        {"worker-1": {"worker-1": task(work)}},
        tmp_path,
        gate,
        servers_alone=[alone],
    )
    for end in gate:
        os.close(end)
    assert training_launcher.wait_for(children, tmp_path, outlive=False) == 0
    assert other.recv(9) == b"served"
    other.close()


@pytest.mark.parametrize(
    ("after_s", "status", "patience_s", "reason"),
    [
        (0.3, training_launcher.OWN_FAULT, 20.0, "worker-1: words"),
        (60, 0, 0.5, "server: words"),  # nobody else is at fault
        (0.2, training_launcher.ANOTHERS_FAULT, 2.0, "server: words"),  # all of it is waited for
    ],
)
def test_a_process_that_lost_its_peer_is_not_the_cause_if_the_peer_failed(
    tmp_path, monkeypatch, after_s, status, patience_s, reason
):
    (logs := tmp_path / "logs").mkdir()
    monkeypatch.setattr(training_launcher, "_CULPRIT_PATIENCE_S", patience_s)
    monkeypatch.setattr(failure, "where", lambda pid, log: "")
    server = forked(0.0, training_launcher.ANOTHERS_FAULT, logs / "server.reason")
    worker = forked(after_s, status, logs / "worker-1.reason")
    children = {server: "server", worker: "worker-1"}
    assert reason_after(tmp_path, children, outlive=False).strip() == reason


@pytest.mark.parametrize(
    ("status", "words"), [(-signal.SIGKILL, "killed by SIGKILL"), (1, "ended with status 1")]
)
def test_where_lost_workers_are_outlived_a_server_that_dies_beside_one_is_the_cause(
    tmp_path, status, words
):
    (tmp_path / "logs").mkdir()
    run_directory.write_json(tmp_path / "config.json", {"impairments": []})
    children = {forked(0.0, status): "server", forked(0.0, -signal.SIGKILL): "worker-2"}
    for pid in children:  # whoever was first
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert reason_after(tmp_path, children, outlive=True) == f"server: {words}\n"


def test_what_the_supervisor_did_not_expect_is_in_the_status_with_type_and_words(
    tmp_path, monkeypatch
):
    (tmp_path / "logs").mkdir()

    def execute(directory, progress):
        raise KeyError("queue-7")

    monkeypatch.setattr(supervisor, "execute", execute)
    supervisor.in_sandbox({"directory": str(tmp_path)}, messages.pair()[0])
    status = read_json(tmp_path / "status.json")
    assert status["verdict"] == "failed"
    assert status["reason"].startswith("KeyError: 'queue-7' (tests/run/test_culprit.py: line ")
    assert status["reason"].endswith("; see logs/supervisor.log")


def test_a_controller_that_fails_leaves_its_words_and_ends(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def begin():\n    return {}['port']\n")
    program = (
        "from pathlib import Path; from controllers import framework;"
        "from testbed.shared import own_code;"
        f"own_code.expect({{{str(path)!r}: own_code.fingerprint({str(path)!r})}});"
        f"framework._or_end(own_code._from_file(Path({str(path)!r})).begin)()"
    )
    reason = tmp_path / "controller.reason"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {failure.REASON_FILE: str(reason)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert reason.read_text() == f"controller: {path}: line 2: KeyError: 'port'\n"
    assert b"Traceback" in done.stderr
