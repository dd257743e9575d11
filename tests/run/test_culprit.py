"""Whose fault a failed run is: of the process that failed by itself, not of its peers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from testbed.run import supervisor, training_children
from testbed.shared import failure, run_directory
from testbed.shared.run_directory import read_json


def forked(directory, name, after_s, status):
    """A process that leaves a reason and ends with a status."""
    child = os.fork()
    if not child:
        time.sleep(after_s)
        (directory / "logs" / f"{name}.reason").write_text(f"{name}: words\n")
        os._exit(status)
    return child


def ending(status):
    """A process that ends with a status, or by a signal below 0."""
    child = os.fork()
    if not child:
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status)
    return child


@pytest.mark.parametrize(
    ("worker", "patience_s", "reason"),
    [
        ((0.3, training_children.OWN_FAULT), 20.0, "worker-1: words"),
        ((60, 0), 0.5, "server: words"),  # nobody else is at fault
        ((0.2, training_children.ANOTHERS_FAULT), 2.0, "server: words"),  # all of it is waited for
    ],
)
def test_a_process_that_lost_its_peer_is_not_the_cause_if_the_peer_failed(
    tmp_path, monkeypatch, worker, patience_s, reason
):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(training_children, "_CULPRIT_PATIENCE_S", patience_s)
    monkeypatch.setattr(failure, "where", lambda pid, log: "")
    children = {
        forked(tmp_path, "server", 0.0, training_children.ANOTHERS_FAULT): "server",
        forked(tmp_path, "worker-1", *worker): "worker-1",
    }
    forks = list(children)
    assert training_children.wait(children, tmp_path, outlive=False) == 1
    for each in forks:  # those that it killed are left to their parent, which ends
        with contextlib.suppress(ChildProcessError):
            os.waitpid(each, 0)
    assert (tmp_path / "logs" / "training.reason").read_text().strip() == reason


@pytest.mark.parametrize(
    ("status", "words"), [(-signal.SIGKILL, "killed by SIGKILL"), (1, "ended with status 1")]
)
def test_where_lost_workers_are_outlived_a_server_that_dies_beside_one_is_the_cause(
    tmp_path, status, words
):
    (tmp_path / "logs").mkdir()
    run_directory.write_json(tmp_path / "config.json", {"impairments": []})
    children = {ending(status): "server", ending(-signal.SIGKILL): "worker-2"}
    for pid in children:  # whoever was first
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    forks = list(children)
    assert training_children.wait(children, tmp_path, outlive=True) == 1
    for each in forks:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(each, 0)
    said = training_children.reason_of(tmp_path, "training").read_text()
    assert said == f"server: {words}\n"


def test_what_the_supervisor_did_not_expect_is_in_the_status_with_type_and_words(
    tmp_path, monkeypatch
):
    (tmp_path / "logs").mkdir()

    def execute(directory, progress):
        raise KeyError("queue-7")

    ended: list[int] = []
    monkeypatch.setattr(supervisor, "execute", execute)
    monkeypatch.setattr(supervisor.sandbox, "end_with_lifeline", lambda: None)
    monkeypatch.setattr(supervisor.os, "_exit", ended.append)
    monkeypatch.setattr(
        "sys.argv", ["supervisor", str(tmp_path), f"--progress-descriptor={os.dup(1)}"]
    )
    supervisor.main()
    status = read_json(tmp_path / "status.json")
    assert ended == [0]
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
