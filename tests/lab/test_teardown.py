"""A lab leaves nothing behind, however it ends; two of them do not meet."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest
import yaml

from tests.lab.conftest import (
    SMALL,
    Results,
    find_process,
    is_alive,
    training_has_begun,
    wait_for,
)

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("unchanged_host")]

LONG = {"rounds": 100_000}


def begin(start, tmp_path):
    process = start(**LONG)
    wait_for(lambda: training_has_begun(tmp_path / "out"))
    return process


def in_the_sandbox(process):
    return psutil.Process(process.pid).children(recursive=True)


def all_dead(processes):
    return not any(is_alive(each) for each in processes)


@pytest.mark.long  # Ctrl-C: test_training.py
def test_a_request_to_end_ends_the_lab_and_keeps_the_run_as_interrupted(command, tmp_path):
    process = begin(command, tmp_path)
    inside = in_the_sandbox(process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "interrupted; this continues: ./lab run " in output
    assert not [each for each in inside if is_alive(each)]
    results = Results(process.returncode, output, tmp_path / "out")
    assert results.verdict()["verdict"] == "interrupted"


def test_a_lab_is_up_within_seconds_and_ends_with_a_killed_command_without_a_result(
    command, tmp_path
):
    began_s = time.monotonic()
    process = begin(command, tmp_path)
    assert time.monotonic() - began_s < 12
    inside = in_the_sandbox(process)
    assert len(inside) > 5
    process.kill()
    process.wait()
    wait_for(partial(all_dead, inside), timeout_s=10)
    assert not list((tmp_path / "out").rglob("status.json"))


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


@pytest.mark.parametrize(
    ("words", "which", "reason"),
    [
        pytest.param(
            *(("testbed.run.supervisor",), -1, "the supervisor ended with status"), id="supervisor"
        ),
        # A controller that fails: test_controller_dies.py. A worker that is killed: the impairment
        # `crash`.
        pytest.param(
            *(("controllers",), 0, "controller: killed by SIGKILL"),
            id="controller",
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(("testbed.run.training_launcher",), 2, "worker-1: killed by SIGKILL"),
            id="worker",
            marks=pytest.mark.long,
        ),
        pytest.param(*(("ovs-vswitchd",), 0, "ovs-vswitchd: killed by SIGKILL"), id="switch"),
    ],
)
def test_killing_a_part_fails_the_run_and_says_which(unreported, tmp_path, words, which, reason):
    process = begin(unreported, tmp_path)
    inside = in_the_sandbox(process)
    find_process(process, *words)[which].kill()
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 1, output
    assert not [each for each in inside if is_alive(each)]
    status = Results(1, output, tmp_path / "out").verdict()
    assert status["verdict"] == "failed"
    assert reason in status["reason"]
    assert reason in output


@pytest.mark.long  # two at a time: test_scripting.py
def test_two_labs_side_by_side_do_not_disturb_each_other(unreported, tmp_path):
    processes = {name: unreported(folder=name) for name in ("left", "right")}
    for name, process in processes.items():
        output, _ = process.communicate(timeout=100)
        Results(process.returncode, output, tmp_path / name).assert_trained()


@pytest.mark.long  # that of one run: test_training.py
def test_run_goes_on_where_it_stopped_and_leaves_what_is_done_as_it_is(command, tmp_path):
    process = command(seeds=[1, 2])
    # Not while it is still named .partial: that run would be interrupted.
    wait_for(lambda: list((tmp_path / "out").glob("small/dblp-s1-??????????/status.json")))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    first = next((tmp_path / "out").glob("small/dblp-s1-*"))
    written = (first / "status.json").stat().st_mtime_ns

    path, out = str(tmp_path / "out.yaml"), str(tmp_path / "out")
    resumed = run_lab("run", path, "--out", out)
    printed = resumed.stdout + resumed.stderr
    Results(resumed.returncode, printed, tmp_path / "out").assert_trained()
    assert (first / "status.json").stat().st_mtime_ns == written
    finished = [each for each in (tmp_path / "out").glob("small/dblp-s*") if not each.suffix]
    assert len(finished) == 2

    again = run_lab("run", path, "--out", out)
    assert again.returncode == 0
    assert "nothing is left to do; --anew executes what is ok again" in again.stdout


@pytest.mark.long  # without a lab: tests/run/test_full_disk.py
def test_a_disk_without_room_for_a_run_is_told_in_one_line_and_no_run_begins(tmp_path):
    """The results lie on a file system of 64 kB, mounted in a namespace of the test's own."""
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **LONG}))
    out = tmp_path / "out"
    out.mkdir()
    script = (
        'mount -t tmpfs -o size=64k tmpfs "$1" && "$2" -m testbed run "$3" --out "$1"; '
        'status=$?; find "$1" -name status.json -exec cat {} +; exit $status'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(out), sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert "the disk is full: " in line and "the next run of small may take" in line
    assert "Traceback" not in done.stdout
    assert '"verdict"' not in done.stdout  # no run was begun


def run_lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
