"""Workers that compute nothing share processes; each lives in its own host's network."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import yaml

from testbed import experiment
from testbed.run import shared_processes
from testbed.shared.input_error import InputError


def config(workers: int, impairments: list[dict[str, object]] | None = None, **pace: object):
    return {
        "training": {"pace": {"kind": "payload-only", **pace}},
        "impairments": impairments or [],
    }, [f"worker-{rank}" for rank in range(1, workers + 1)]


def sizes(*arguments: object, **pace: object) -> list[int]:
    return [len(each) for each in shared_processes.groups(*config(*arguments, **pace))]  # type: ignore[arg-type]


def test_few_workers_have_a_process_each_and_many_share():
    assert sizes(16) == [1] * 16
    assert sizes(17) == [17]
    assert sizes(127) == [32, 32, 32, 31]
    assert sizes(5, workers_per_process=2) == [2, 2, 1]


def test_workers_that_compute_have_a_process_each():
    assert sizes(40, kind="paced") == [1] * 40


@pytest.mark.parametrize("kind", ["crash", "straggler", "./mine.py"])
def test_what_acts_on_a_process_keeps_workers_apart(kind):
    assert sizes(40, [{"kind": kind}]) == [1] * 40
    assert sizes(40, [{"kind": "loss"}]) == [32, 8]


def test_every_worker_is_in_one_group_in_rank_order():
    found = shared_processes.groups(*config(70))
    assert [name for group in found for name in group] == config(70)[1]
    assert [shared_processes.name_of(each) for each in found] == [
        "worker-1-to-32",
        "worker-33-to-64",
        "worker-65-to-70",
    ]
    assert shared_processes.name_of(["worker-7"]) == "worker-7"


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
import os, sys, threading
from testbed.run import shared_processes
def end(error, name):
    print(name, type(error).__name__, flush=True)
    os._exit(3)
both = threading.Barrier(2)
def meet(): both.wait(5)
def fail(): both.wait(5); raise ConnectionError("gone")
tasks = {"one": (os.getpid(), meet), "two": (os.getpid(), globals()[sys.argv[1]])}
shared_processes.run(tasks, end, {})
print("done")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a thread enters a network namespace: needs root")
@pytest.mark.parametrize(
    ("task", "status", "said"), [("meet", 0, "done"), ("fail", 3, "two ConnectionError")]
)
def test_tasks_run_side_by_side_and_the_first_failure_ends_all(task, status, said):
    done = subprocess.run(
        [sys.executable, "-c", THREADS, task], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (status, said), done.stderr
