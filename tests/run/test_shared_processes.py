"""Workers that compute nothing share processes; each lives in its own host's network."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml

from testbed import experiment
from testbed.run import training_launcher
from testbed.shared.input_error import InputError


def config(workers: int, impairments: list[dict[str, object]] | None = None, **pace: object):
    return {
        "training": {"pace": {"kind": "payload-only", **pace}},
        "impairments": impairments or [],
    }, [f"worker-{rank}" for rank in range(1, workers + 1)]


@pytest.mark.parametrize(
    ("workers", "impairments", "pace", "expected"),
    [
        (16, [], {}, [1] * 16),  # few have a process each
        (17, [], {}, [17]),
        (127, [], {}, [32, 32, 32, 31]),
        (5, [], {"workers_per_process": 2}, [2, 2, 1]),
        (40, [], {"kind": "paced"}, [1] * 40),  # they compute
        *((40, [{"kind": kind}], {}, [1] * 40) for kind in ("crash", "straggler", "./mine.py")),
        (40, [{"kind": "loss"}], {}, [32, 8]),  # acts on no process
    ],
)
def test_workers_share_processes_where_they_are_many_and_nothing_keeps_them_apart(
    workers, impairments, pace, expected
):
    groups = training_launcher.groups(*config(workers, impairments, **pace))
    assert [len(group) for group in groups] == expected


def test_every_worker_is_in_one_group_in_rank_order():
    groups = training_launcher.groups(*config(70))
    assert [name for group in groups for name in group] == config(70)[1]
    names = [training_launcher.name_of(group) for group in [*groups, ["worker-7"]]]
    assert names == ["worker-1-to-32", "worker-33-to-64", "worker-65-to-70", "worker-7"]


def test_a_shared_process_and_a_crash_exclude_each_other_before_anything_runs(tmp_path):
    path = tmp_path / "mine.yaml"
    document = {
        "name": "mine",
        "rounds": 2,
        "seeds": [1],
        "topology": {"name": "star", "workers": 4},
        "training": {"pace": {"kind": "payload-only", "workers_per_process": 2}},
        "arms": {"dblp": {"protocol": "dblp"}},
        "impairments": [{"kind": "crash", "host": "worker-1", "rounds": [1]}],
    }
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match=r"workers_per_process: 2, but impairments\.0 \(crash\)"):
        experiment.load(str(path))


THREADS = """
import os, sys, threading, time
from pathlib import Path
from testbed.run import training_launcher
def end(error, name):
    print(name, type(error).__name__, flush=True)
    os._exit(3)
both = threading.Barrier(2)
def powers():
    for each in Path("/proc/self/task").iterdir():
        lines = (each / "status").read_text().splitlines()
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
    ("task", "status", "said"),
    [
        ("meet", 0, "done"),
        ("fail", 3, "two ConnectionError"),
        ("refused", 3, "two PermissionError"),
    ],
)
def test_tasks_run_side_by_side_without_roots_powers_and_the_first_failure_ends_all(
    task, status, said
):
    done = subprocess.run(
        [sys.executable, "-c", THREADS, task], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (status, said), done.stderr
