"""Processes of a training: what they share, what they have, and whose fault a failed run is."""

import contextlib
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from testbed import experiment
from testbed.run import supervisor, training_launcher
from testbed.run.training_launcher import HostTask
from testbed.shared import failure, messages, run_directory
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import read_json
from tests.cli.test_verbs import python
from tests.experiment.small import write


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
    name = Path(f"/proc/self/fd/{descriptor}").readlink()

    def work(sockets):
        opened = Path("/proc/self/fd").iterdir()
        assert name not in {file.readlink() for file in opened if file.is_symlink()}

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
    monkeypatch.setattr(training_launcher, "_CULPRIT_TIMEOUT_S", patience_s)
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

    def execute(directory, progress, *, last):
        raise KeyError("queue-7")

    monkeypatch.setattr(supervisor, "execute", execute)
    supervisor.in_sandbox({"directory": str(tmp_path), "last": True}, messages.pair()[0])
    status = read_json(tmp_path / "status.json")
    assert status["verdict"] == "failed"
    place = r"\(tests/run/test_training_launcher\.py: line \d+.*\); see logs/supervisor\.log"
    assert re.fullmatch(f"KeyError: 'queue-7' {place}", status["reason"])


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
    done = python("-c", program, env=os.environ | {failure.REASON_FILE: str(reason)})
    assert done.returncode == 1
    assert reason.read_text() == f"controller: {path}: line 2: KeyError: 'port'\n"
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("workers", "kinds", "pace", "sizes", "last"),
    [
        (16, [], {}, [1] * 16, "worker-16"),  # few have a process each
        (17, [], {}, [17], "worker-1-to-17"),
        (127, [], {}, [32, 32, 32, 31], "worker-97-to-127"),
        (5, [], {"workers_per_process": 2}, [2, 2, 1], "worker-5"),
        (40, [], {"kind": "paced"}, [1] * 40, "worker-40"),  # they compute
        *((40, [kind], {}, [1] * 40, "worker-40") for kind in ("crash", "straggler", "./mine.py")),
        (40, ["loss"], {}, [32, 8], "worker-33-to-40"),  # acts on no process
    ],
)
def test_workers_share_processes_where_they_are_many_and_nothing_keeps_them_apart(
    workers, kinds, pace, sizes, last
):
    config = {
        "training": {"pace": {"kind": "payload-only", **pace}},
        "impairments": [{"kind": kind} for kind in kinds],
    }
    names = [f"worker-{rank}" for rank in range(1, workers + 1)]
    groups = training_launcher.groups(config, names)
    assert [len(group) for group in groups] == sizes
    assert [name for group in groups for name in group] == names
    assert training_launcher.name_of(groups[-1]) == last


def test_a_shared_process_and_a_crash_exclude_each_other_before_anything_runs(tmp_path):
    changes: Any = {
        "training": {"pace": {"kind": "payload-only", "workers_per_process": 2}},
        "impairments": [{"kind": "crash", "host": "worker-1", "rounds": [1]}],
    }
    with pytest.raises(InputError, match=r"workers_per_process: 2, but impairments\.0 \(crash\)"):
        experiment.load(write(tmp_path, **changes))


THREADS = """
import os, sys, threading, time
from pathlib import Path
from testbed.run import training_launcher
def end(error, name):
    print(name, type(error).__name__, flush=True)
    os._exit(3)
both = threading.Barrier(2)
def powers():
    for task in Path("/proc/self/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        (word,) = (line.split()[1] for line in lines if line.startswith("CapPrm"))
        yield bool(int(word, 16) >> 12 & 1)  # CAP_NET_ADMIN
def meet(sockets):
    assert sockets == ["a socket"] and not any(powers())
    both.wait(30)
def fail(sockets): both.wait(30); raise ConnectionError("gone")
def opened(): return ["a socket"]
def late(): time.sleep(0.2); assert any(powers()); return opened()
def refused(): raise PermissionError
def task(run, opens):
    return training_launcher.HostTask(host_pid=os.getpid(), open_sockets=opens, run=run)
if pid := os.fork():  # as the launcher does: libraries have threads of their own
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
two = globals()[sys.argv[1]]
tasks = {"one": task(meet, opened), "two": task(two if two is not refused else meet,
                                                refused if two is refused else late)}
training_launcher.run_together(tasks, end)
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a thread enters a network namespace: needs root")
@pytest.mark.parametrize(
    ("task", "status", "printed"),
    [
        ("meet", 0, "done"),
        ("fail", 3, "two ConnectionError"),
        ("refused", 3, "two PermissionError"),
    ],
)
def test_tasks_run_side_by_side_without_roots_powers_and_the_first_failure_ends_all(
    task, status, printed
):
    done = python("-c", THREADS, task)
    assert (done.returncode, done.stdout.strip()) == (status, printed), done.stderr
