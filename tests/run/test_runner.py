"""Runs: attempts of labs, what is shown of them, and simulated ones on all processors."""

import io
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed import experiment
from testbed.cli import execution
from testbed.cli.options import Selection
from testbed.lab import sandbox
from testbed.machine import clean
from testbed.run import runner, simulating
from testbed.shared import messages, python_module
from testbed.shared.run_directory import InUseError, read_json, write_status
from tests.cli.test_verbs import SMALL
from tests.experiment.small import write


@pytest.fixture
def run(tmp_path: Path) -> experiment.Run:
    return experiment.load(write(tmp_path), arms=["dblp"], seeds=1)[0]


def ending(monkeypatch: pytest.MonkeyPatch, *verdicts: str, retries: int) -> list[Path]:
    """Labs that end with these verdicts, one after the other, at most 1 + `retries` of them."""
    left = list(verdicts)
    places: list[Path] = []

    def in_sandbox(directory: Path, on_progress: runner.OnProgress, *, last: bool) -> str:
        assert last == (len(places) == retries)
        places.append(directory)
        write_status(directory, left.pop(0), f"reason {len(places)}")  # type: ignore[arg-type]
        return ""

    monkeypatch.setattr(runner, "_in_sandbox", in_sandbox)
    return places


@pytest.mark.parametrize(
    ("verdicts", "retries", "executed"),
    [
        (["ok"], 2, ["ok"]),
        (["invalid", "ok"], 2, ["invalid", "ok"]),
        (["invalid", "invalid", "invalid", "ok"], 2, ["invalid", "invalid", "invalid"]),
        (["invalid", "ok"], 0, ["invalid"]),
        (["failed", "ok"], 2, ["failed"]),
        (["unsupported", "ok"], 2, ["unsupported"]),
    ],
)
def test_only_invalid_runs_are_tried_again_and_every_attempt_is_kept(
    run, tmp_path, monkeypatch, verdicts, retries, executed
):
    ending(monkeypatch, *verdicts, retries=retries)
    out = tmp_path / "out"
    outcomes = list(runner.attempts(out, run, lambda record: None, retries=retries))
    assert [outcome.verdict for outcome in outcomes] == executed
    kept = sorted((out / "small").glob("*.attempt*"))
    assert len(kept) == len(executed) - 1
    assert [read_json(attempt / "status.json")["verdict"] for attempt in kept] == executed[:-1]
    assert runner.directory_of(out, run).verdict() == executed[-1]


@pytest.mark.parametrize(
    ("failed", "waived", "attempts"),
    [
        (["impairments_unmet"], [], 1),
        (["impairments_unmet"], ["cpu_others"], 1),
        (["impairments_unmet", "cpu_others"], [], 3),
        (["cpu_others"], ["impairments_unmet"], 3),
    ],
)
def test_what_would_repeat_is_not_tried_again(run, tmp_path, monkeypatch, failed, waived, attempts):
    gates = [
        {"outcome": "failed", "decides": key in failed, "repeats": key == "impairments_unmet"}
        for key in failed + waived
    ] + [{"outcome": "passed", "decides": True, "repeats": False}]

    def in_sandbox(directory: Path, on_progress: runner.OnProgress, *, last: bool) -> str:
        write_status(directory, "invalid", "a reason", gates=gates)
        return ""

    monkeypatch.setattr(runner, "_in_sandbox", in_sandbox)
    assert len(list(runner.attempts(tmp_path, run, lambda record: None, retries=2))) == attempts


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (
            python_module.command("testbed.lab.sandbox", "json"),
            1,
            "module 'json' has no attribute 'in_sandbox'",
        ),
        (["sh", "-c", "kill -KILL $$"], -9, "the supervisor ended with status -9, without a verd"),
    ],
)
def test_what_ended_the_first_process_is_the_reason_of_the_run(
    run, tmp_path, monkeypatch, argv, status, words
):
    started = []

    def start(module: str, output: Any) -> sandbox.Sandbox:
        ours, theirs = messages.pair()
        with theirs:
            number = theirs.fileno()
            process = subprocess.Popen(
                [*argv, str(number)], stdout=output, stderr=output, pass_fds=[number]
            )
        started.append(process)
        return sandbox.Sandbox(module, process, ours, None)

    monkeypatch.setattr(sandbox, "start", start)
    records: list[Any] = []
    (outcome,) = runner.attempts(tmp_path, run, records.append)
    assert (outcome.verdict, records) == ("failed", [])
    assert words in outcome.reason
    assert outcome.reason.endswith("; see logs/supervisor.log") == (status == 1)
    assert [process.returncode for process in started] == [status]


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_run_that_is_ok_is_not_executed_again(run, tmp_path, monkeypatch, was_killed):
    """Also not where its command was killed after the verdict."""
    places = ending(monkeypatch, "ok", retries=2)
    place = runner.directory_of(tmp_path, run)
    if was_killed:
        place.partial.mkdir(parents=True)
        write_status(place.partial, "ok")
        assert clean.why_stale(place.partial) == ""
    for executed in (not was_killed, False):
        (outcome,) = runner.attempts(tmp_path, run, lambda record: None, retries=2)
        assert (outcome.verdict, outcome.executed) == ("ok", executed)
    assert len(places) == (not was_killed)
    assert not place.partial.exists()


def test_without_a_terminal_rounds_are_lines_and_a_long_one_is_told_to_go_on(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(execution.time, "monotonic", lambda: now_s[0])
    screen = io.StringIO()
    with execution.progress_shown(Console(file=screen, width=200), 2) as shown:
        shown.begin("dblp, seed 1")
        for at_s, record in (
            (1, {"round": 1, "rounds": 4}),  # soon after the begin nobody waits for a line
            (12, {"round": 2, "rounds": 4}),
            (15, {"round": 3, "rounds": 4}),
            (40, {}),
        ):
            now_s[0] = at_s
            shown.record("dblp, seed 1", record)
    assert screen.getvalue().splitlines() == [
        "[0/2] dblp, seed 1: round 2/4, about 36 s left (12 s so far)",
        "[0/2] dblp, seed 1: round 3/4, about 67 s left (40 s so far)",
    ]


TWO_SEEDS = SMALL.replace("[1]", "[1, 2]")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    path = tmp_path / "small.yaml"
    path.write_text(TWO_SEEDS.replace("{ dblp:", "{ reliable: { protocol: none }, dblp:"))
    return [run.in_virtual_time() for run in Selection(name=str(path)).loaded()]


def execute(runs, folder):
    happened: list[tuple[str, str]] = []
    progress: dict[str, list[dict[str, Any]]] = {}

    def begin(run):
        happened.append(("begin", run.key))
        return progress.setdefault(run.key, []).append

    for outcome in runner.simulate_side_by_side(folder, runs, begin, simulating.execute):
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
    outcomes = runner.simulate_side_by_side(tmp_path, runs, lambda run: print, simulating.execute)
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
        list(runner.simulate_side_by_side(tmp_path, runs, lambda run: print, simulating.execute))
    assert len(begun) == 2
    for child in begun:
        with pytest.raises(ChildProcessError):  # it has been waited for
            os.waitpid(child, os.WNOHANG)
