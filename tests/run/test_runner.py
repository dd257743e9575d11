"""Retries: a run is executed again only while it is invalid, and only so many times."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from testbed import experiment
from testbed.cli import execution
from testbed.lab import sandbox
from testbed.machine import clean
from testbed.run import runner
from testbed.shared import messages, python_module
from testbed.shared.run_directory import read_json, write_status
from tests.experiment.small import write


@pytest.fixture
def run(tmp_path: Path) -> experiment.Run:
    return experiment.load(write(tmp_path), arms=["dblp"], seeds=1)[0]


def ending(monkeypatch: pytest.MonkeyPatch, *verdicts: str) -> list[Path]:
    """Labs that end with these verdicts, one after the other; returns where they ran."""
    left = list(verdicts)
    places: list[Path] = []

    def in_sandbox(directory: Path, on_progress: runner.OnProgress) -> str:
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
    ending(monkeypatch, *verdicts)
    out = tmp_path / "out"
    outcomes = list(runner.attempts(out, run, lambda record: None, retries=retries))
    assert [outcome.verdict for outcome in outcomes] == executed
    kept = sorted((out / "small").glob("*.attempt*"))
    assert len(kept) == len(executed) - 1
    assert [read_json(each / "status.json")["verdict"] for each in kept] == executed[:-1]
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
def test_what_another_attempt_would_find_again_is_not_tried_again(
    run, tmp_path, monkeypatch, failed, waived, attempts
):
    gates = [
        {"outcome": "failed", "decides": key in failed, "repeats": key == "impairments_unmet"}
        for key in failed + waived
    ] + [{"outcome": "passed", "decides": True, "repeats": False}]

    def in_sandbox(directory: Path, on_progress: runner.OnProgress) -> str:
        write_status(directory, "invalid", "a reason", gates=gates)
        return ""

    monkeypatch.setattr(runner, "_in_sandbox", in_sandbox)
    assert len(list(runner.attempts(tmp_path, run, lambda record: None, retries=2))) == attempts


def test_what_ended_the_first_process_is_the_reason_of_the_run(run, tmp_path, monkeypatch):
    """Its module has nothing to run."""
    started = []

    def start(module: str, output: Any) -> sandbox.Sandbox:
        ours, theirs = messages.pair()
        with theirs:
            argv = python_module.command("testbed.lab.sandbox", "json", str(theirs.fileno()))
            process = subprocess.Popen(
                argv, stdout=output, stderr=output, pass_fds=[theirs.fileno()]
            )
        started.append(process)
        return sandbox.Sandbox(module, process, ours, None)

    monkeypatch.setattr(sandbox, "start", start)
    records: list[Any] = []
    (outcome,) = runner.attempts(tmp_path, run, records.append)
    assert (outcome.verdict, records) == ("failed", [])
    assert "module 'json' has no attribute 'in_sandbox'" in outcome.reason
    assert outcome.reason.endswith("; see logs/supervisor.log")
    assert [each.returncode for each in started] == [1]


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_run_that_is_ok_is_not_executed_again(run, tmp_path, monkeypatch, was_killed):
    """Also not where its command was killed after the verdict."""
    places = ending(monkeypatch, "ok")
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


def test_failures_are_shown_when_they_happen_with_their_reason(run, tmp_path, monkeypatch):
    ending(monkeypatch, "invalid", "failed")
    screen = io.StringIO()
    with execution.progress_shown(Console(file=screen, width=60), 1) as shown:
        record = shown.begin(run.label)
        for outcome in runner.attempts(tmp_path, run, record, retries=2):
            if outcome.verdict == "invalid":
                shown.again(run.label, outcome, 1, 2)
                assert "dblp, seed 1: invalid: reason 1; retry 1 of 2\n" in screen.getvalue()
        shown.end(outcome)
    assert screen.getvalue().endswith("[1/1] dblp, seed 1: failed: reason 2\n")


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
