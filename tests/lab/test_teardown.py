"""A lab leaves nothing behind, however it ends; two of them do not meet."""

import datetime
import json
import os
import random
import signal
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest

from testbed.lab import sandbox
from tests.lab.conftest import (
    SMALL,
    Results,
    executed,
    find_process,
    is_alive,
    training_has_begun,
    wait_for,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

LONG: dict[str, Any] = {"rounds": 100_000}


def begun(process, tmp_path):
    wait_for(lambda: training_has_begun(tmp_path / "out"))
    return process


def in_the_sandbox(process):
    return psutil.Process(process.pid).children(recursive=True)


def all_dead(processes):
    return not any(is_alive(process) for process in processes)


def test_a_lab_is_up_within_seconds_and_ends_with_a_killed_command_without_a_result(
    command, tmp_path
):
    began_s = time.monotonic()
    process = begun(command(**LONG), tmp_path)
    assert time.monotonic() - began_s < 12
    inside = in_the_sandbox(process)
    assert len(inside) > 5
    process.kill()
    process.wait()
    wait_for(partial(all_dead, inside), timeout_s=10)
    assert not list((tmp_path / "out").rglob("status.json"))
    # Files of samples are whole or none.
    (folder,) = (tmp_path / "out").rglob("samples")
    left = [path for path in folder.rglob("*") if not path.name.startswith(".")]
    assert not [path for path in left if path.suffix == ".parquet"]
    assert all(len(np.load(path)) for path in left if path.suffix == ".npy")
    assert json.loads((folder.parent / "live.json").read_text())["run"]["arm"] == "dblp"


SLEEPING = {
    "arms": {"mine": {"congestion_control": "reno"}},
    "workload": {"kind": "programs", "programs": [{"host": "worker-1", "run": "sleep 1000"}]},
}


@pytest.mark.long
@pytest.mark.parametrize("workload", ["training", "programs"])
def test_a_command_that_is_killed_at_any_moment_leaves_nothing(
    command, tmp_path, monkeypatch, workload
):
    if workload == "programs":
        for key in ("rounds", "training", "transport", "arms"):
            monkeypatch.delitem(SMALL, key)
    moments = random.Random(workload)
    for number in range(5):
        process = command(folder=f"out{number}", **(LONG if workload == "training" else SLEEPING))
        time.sleep(moments.uniform(0.3, 8))
        assert process.poll() is None, process.stdout.read()
        inside = in_the_sandbox(process)
        process.kill()
        process.wait()
        wait_for(partial(all_dead, inside), timeout_s=10)
        assert not list((tmp_path / f"out{number}").rglob("status.json"))


@pytest.mark.beside
def test_a_contradiction_of_impairments_that_only_shows_during_the_run_fails_it_at_once(run_small):
    """The controller ends, and its own words are the reason."""
    hold = {"kind": "loss", "name": "always", "q": 0.1, "leg": "round", "rounds": {"every": 1}}
    clash = {"kind": "loss", "name": "late", "q": 0.1, "at_s": [0.05], "duration_s": 0.1}
    results = run_small(rounds=200, impairments=[hold, clash])
    assert results.status == 1
    status = results.verdict()
    assert status["verdict"] == "failed"
    begins = "controller: impairment late (loss) begins while always (loss)"
    assert status["reason"].startswith(begins)
    assert status["reason"].endswith("; see logs/controller.log")
    log = results.run() / "logs" / "controller.log"
    ended_s = datetime.datetime.fromisoformat(status["ended_at"]).timestamp()
    assert ended_s - log.stat().st_mtime < 5


# A controller that fails: above; a worker that is killed: the impairment `crash`; a supervisor that
# is: tests/run/test_runner.py.
@pytest.mark.beside
def test_killing_the_switch_fails_the_run_and_says_so(tmp_path):
    process = executed(tmp_path / "out", **LONG)
    try:
        inside = in_the_sandbox(begun(process, tmp_path))
        find_process(process, "ovs-vswitchd")[0].kill()
        process.join(40)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == 1
    assert not [pid for pid in inside if is_alive(pid)]
    status = Results(1, tmp_path / "out").verdict()
    assert status["verdict"] == "failed"
    assert "ovs-vswitchd: killed by SIGKILL" in status["reason"]


# That the same command goes on with the others: tests/run/test_full_disk.py and test_runner.py.
@pytest.mark.beside
def test_an_interrupted_command_says_how_to_go_on_and_leaves_nothing(command, tmp_path):
    process = begun(command(**LONG), tmp_path)
    inside = in_the_sandbox(process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT, output
    assert "interrupted; this continues: ./lab run " in output
    assert not [pid for pid in inside if is_alive(pid)]
    assert Results(process.returncode, tmp_path / "out").verdict()["verdict"] == "interrupted"


def in_sandbox(request, messages):
    """More than a pipe holds beside the answer; or never one."""
    sys.stderr.write("x" * 1_000_000)
    sys.stderr.write("\nthe last word\n\n")
    if request["do"] == "sleep":
        time.sleep(100)
    if request["do"] == "end":
        os._exit(3)
    return {"did": request["do"]}


@pytest.mark.beside
def test_a_sandbox_answers_or_says_why_not():
    assert sandbox.result_of(__name__, {"do": "answer"}) == {"did": "answer"}
    began_s = time.monotonic()
    with pytest.raises(sandbox.SandboxError, match=r"^tests.lab.test_teardown: not done within 1 "):
        sandbox.result_of(__name__, {"do": "sleep"}, timeout_s=1)
    assert time.monotonic() - began_s < 20
    with pytest.raises(sandbox.EndedError, match=r"^the last word$"):
        sandbox.result_of(__name__, {"do": "end"})
    with pytest.raises(sandbox.SandboxError, match=r"^KeyError: .do. .tests.lab.test_te"):
        sandbox.result_of(__name__, {})
