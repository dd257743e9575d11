"""Simulated runs on all processors: each in its own process, with the results that it has alone."""

import os
import signal
from typing import Any

import pytest

from testbed.cli.options import Selection
from testbed.run import runner, simulating
from testbed.shared.run_directory import InUseError

EXPERIMENT = """
name: small
rounds: 2
seeds: [1, 2]
topology: { name: star, workers: 2, rate_bps: 100_000_000, queue_bytes: 150_000 }
training:
  model: efficientnet-b0
  pace: { kind: payload-only, scale: 0.002, compute_s: 0.1 }
phases: { detector: schedule, critical_rounds: [[0, 0]] }
arms: { dblp: { protocol: dblp }, reliable: { protocol: none } }
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT)
    return [run.in_virtual_time() for run in Selection(name=str(path)).loaded()]


def execute(runs, folder):
    """What happened, in order: who began, and who ended how; and what each run told."""
    happened: list[tuple[str, str]] = []
    progress: dict[str, list[dict[str, Any]]] = {}

    def begin(run):
        happened.append(("begin", run.key))
        return progress.setdefault(run.key, []).append

    for outcome in runner.simulate_side_by_side(folder, runs, begin):
        happened.append((outcome.verdict, outcome.run.key))
    return happened, progress


def test_two_go_on_at_a_time_with_the_results_that_each_has_alone(runs, tmp_path):
    happened, progress = execute(runs, tmp_path / "out")
    begun = [key for what, key in happened if what == "begin"]
    assert begun == [run.key for run in runs]
    assert [what for what, _ in happened[:3]] == ["begin", "begin", "ok"]
    assert sorted(key for what, key in happened if what == "ok") == sorted(begun)
    assert all({"round": 2, "rounds": 2} in records for records in progress.values())
    for run in runs[:2]:
        alone = simulating.execute(tmp_path / "alone", run, lambda record: None).directory
        there = tmp_path / "out" / "small" / run.key
        for path in (alone / "events").iterdir():
            assert path.read_bytes() == (there / "events" / path.name).read_bytes()
    again, _ = execute(runs, tmp_path / "out")
    assert again == [(what, run.key) for run in runs for what in ("begin", "ok")]


def test_one_that_is_killed_is_told_and_the_others_go_on(runs, tmp_path, monkeypatch):
    real = simulating.execute

    def kill_itself(results, run, on_progress):
        if run.key == runs[0].key:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(results, run, on_progress)

    monkeypatch.setattr(simulating, "execute", kill_itself)
    outcomes = runner.simulate_side_by_side(tmp_path, runs, lambda run: print)
    ended = {outcome.run.key: outcome for outcome in outcomes}
    assert ended[runs[0].key].verdict == "failed"
    assert ended[runs[0].key].reason == "its process: killed by SIGKILL"
    assert [ended[run.key].verdict for run in runs[1:]] == ["ok"] * 3


def test_one_that_another_command_executes_ends_the_others(runs, tmp_path, monkeypatch):
    begun, real = [], os.fork

    def fork():
        begun.append(real())
        return begun[-1]

    monkeypatch.setattr(os, "fork", fork)
    place = runner.directory_of(tmp_path, runs[1])
    with place.open(runs[1].config()), pytest.raises(InUseError, match="another process"):
        list(runner.simulate_side_by_side(tmp_path, runs, lambda run: print))
    assert len(begun) == 2
    for child in begun:
        with pytest.raises(ChildProcessError):  # it has been waited for
            os.waitpid(child, os.WNOHANG)
