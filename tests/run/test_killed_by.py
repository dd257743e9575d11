"""The reason of a run of programs names the impairment that killed one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.run import processes
from testbed.run.processes import ProcessError, Processes, killed_by
from testbed.run.program_workload import ProgramWorkload
from testbed.shared.progress_pipe import ProgressWriter
from testbed.shared.run_directory import write_json
from tests.analysis.build import write_lines

CRASH = {"kind": "crash", "name": "power-cut", "host": "h1"}
BEGUN = CRASH | {"counts_as": "crash", "action": "begin"}


def noted(
    directory: Path,
    *programs: tuple[str, str, str],
    impairments: Any = (CRASH,),
    may_be_killed: bool = False,
) -> ProgramWorkload:
    """After programs (name, host, Python) have all ended, and the crash was logged.

    Raises ProcessError where one was not to end so.
    """
    (directory / "logs").mkdir()
    (directory / "events").mkdir()
    write_json(directory / "config.json", {"impairments": list(impairments)})
    write_lines(directory / "events" / "impairments.jsonl", [BEGUN] if impairments else [])
    settings = [
        {"name": name, "host": host, "run": ["x"], "service": False, "output": None}
        | ({"may_be_killed": True} if may_be_killed else {})
        for name, host, _ in programs
    ]
    config = {
        "workload": {"data_ports": None, "programs": settings},
        "folder": None,
        "limits": {"run_timeout_s": 9},
    }
    processes = Processes(directory / "logs")
    workload = ProgramWorkload(config, directory, processes, ProgressWriter(1))
    for each, (name, _, text) in zip(workload._all(), programs, strict=True):
        each.process = subprocess.Popen([sys.executable, "-c", text])
        each.process.wait()
        processes.adopt({name: each.process})
    workload._take_note([name for name, _, _ in programs])
    return workload


def ended(directory: Path, *programs: tuple[str, str, str], **more: Any) -> str:
    """The reason after such programs."""
    with pytest.raises(ProcessError) as raised:
        noted(directory, *programs, **more)
    return str(raised.value)


KILLED = "import os; os.kill(os.getpid(), 9)"
FAILS = "raise SystemExit(1)"


def test_the_program_that_a_crash_killed_comes_before_those_that_it_took_with_it(tmp_path):
    said = ended(tmp_path, ("peer", "h2", FAILS), ("first", "h1", KILLED))
    assert said.startswith("first: killed by SIGKILL by impairment power-cut (kind crash); ")


@pytest.mark.parametrize(
    ("programs", "impairments"),
    [
        ([("other", "h2", KILLED)], [CRASH]),  # of another host
        ([("first", "h1", "pass"), ("second", "h1", KILLED)], [CRASH]),  # not the first of its host
        ([("first", "h1", KILLED)], []),  # none is planned
    ],
)
def test_no_impairment_is_blamed_for_what_it_did_not_kill(tmp_path, programs, impairments):
    said = ended(tmp_path, *programs, impairments=impairments)
    assert said.startswith(f"{programs[-1][0]}: killed by SIGKILL; ")


def test_others_go_on_without_a_program_that_an_impairment_may_kill(tmp_path):
    workload = noted(tmp_path, ("first", "h1", KILLED), ("peer", "h2", "pass"), may_be_killed=True)
    by = "killed by SIGKILL by impairment power-cut (kind crash)"
    assert workload.remark() == f"went on without first: {by}"


def test_what_no_impairment_has_killed_ends_the_run_all_the_same(tmp_path):
    said = ended(tmp_path, ("first", "h1", KILLED), impairments=[], may_be_killed=True)
    assert said.startswith("first: killed by SIGKILL; ")


def test_a_crash_that_was_planned_and_did_not_happen_is_not_blamed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_LOG_PATIENCE_S", 0.05)
    write_json(tmp_path / "config.json", {"impairments": [CRASH]})
    assert killed_by("h1", tmp_path) == ""
    (tmp_path / "events").mkdir()
    write_lines(tmp_path / "events" / "impairments.jsonl", [BEGUN | {"host": "h2"}])
    assert killed_by("h1", tmp_path) == ""
