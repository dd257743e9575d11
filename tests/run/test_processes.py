"""Reasons of failed runs: the words of what ended, and the impairment that killed it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.run import processes
from testbed.run.processes import ProcessError, Processes, killed_by
from testbed.run.session import LabSession
from testbed.run.workloads import ProgramWorkload
from testbed.shared import messages
from testbed.shared.messages import ProgressWriter
from testbed.shared.run_directory import write_json
from tests import open_files
from tests.analysis.build import write_lines


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            "import sys\nfor n in range(9): print('line', n)\nsys.exit(3)",
            "part: ended with status 3; logs/part.log ends: line 6 | line 7 | line 8",
        ),
        ("import sys; sys.exit(4)", "part: ended with status 4; logs/part.log is empty"),
        (
            "import os; print('  so   long', flush=True); os.kill(os.getpid(), 9)",
            "part: killed by SIGKILL; logs/part.log ends: so long",
        ),
    ],
)
def test_the_end_of_its_log_is_the_reason(tmp_path: Path, program: str, expected: str) -> None:
    processes = Processes(tmp_path)
    processes.spawn("awaited", [sys.executable, "-c", "import time; time.sleep(60)"])
    processes.spawn("part", [sys.executable, "-c", program])
    try:
        with pytest.raises(ProcessError) as caught:
            processes.wait_until_done("awaited", 30)
        assert str(caught.value) == expected
    finally:
        for process in processes._running.values():  # of this test only
            process.kill()
            process.wait()


def test_each_end_is_told_once_and_no_descriptor_is_left(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    reading, writing = os.pipe()
    before = open_files.now()
    processes.spawn("first", [sys.executable, "-c", "pass"])
    asked = processes.spawn("second", [sys.executable, "-c", "pass"])
    asked.wait()  # its process id is nobody's now
    names: list[str] = []
    while len(names) < 2:  # both at once, or one after the other
        ended, _ = processes.wait(10)
        assert ended
        names += ended
    assert sorted(names) == ["first", "second"]
    assert processes.wait(0) == ([], [])
    os.write(writing, b"x")
    assert processes.wait(10, [reading]) == ([], [reading])
    open_files.assert_none_since(before)
    os.close(reading)
    os.close(writing)


def test_a_process_is_told_and_one_that_has_ended_gives_its_reason_later(
    tmp_path: Path,
) -> None:
    processes = Processes(tmp_path)
    listening = "from testbed.lab.helpers.process import Requests as R; print(R().wait())"
    processes.spawn("part", [sys.executable, "-c", listening], receives=True)
    processes.send("part", {"do": "go"})
    processes.wait_until_done("part", 30)
    assert (tmp_path / "part.log").read_text() == "{'do': 'go'}\n"
    ended = processes.spawn("gone", ["false"], receives=True)
    ended.wait()
    processes.send("gone", {"do": "go"})
    assert processes.reason("gone") == "gone: ended with status 1; logs/gone.log is empty"


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
    lab: Any = LabSession(config, directory)
    lab.directory, lab.processes = directory, processes
    workload = ProgramWorkload(lab, ProgressWriter(messages.pair()[0]))
    for program, (name, _, text) in zip(workload._programs.values(), programs, strict=True):
        program.process = subprocess.Popen([sys.executable, "-c", text])
        program.process.wait()
        processes.adopt({name: program.process})
    workload._note_ended([name for name, _, _ in programs])
    return workload


KILLED = "import os; os.kill(os.getpid(), 9)"
FAILS = "raise SystemExit(1)"


@pytest.mark.parametrize(
    ("programs", "more", "reason"),
    [
        # The one that the crash killed, before those that it took with it.
        (
            [("peer", "h2", FAILS), ("first", "h1", KILLED)],
            {},
            "first: killed by SIGKILL by impairment power-cut (kind crash); ",
        ),
        ([("other", "h2", KILLED)], {}, "other: killed by SIGKILL; "),  # of another host
        # Not the first of its host.
        ([("first", "h1", "pass"), ("second", "h1", KILLED)], {}, "second: killed by SIGKILL; "),
        ([("first", "h1", KILLED)], {"impairments": []}, "first: killed by SIGKILL; "),
        (
            [("first", "h1", KILLED)],
            {"impairments": [], "may_be_killed": True},
            "first: killed by SIGKILL; ",
        ),
    ],
)
def test_an_impairment_is_blamed_for_what_it_killed_and_for_nothing_else(
    tmp_path, programs, more, reason
):
    with pytest.raises(ProcessError) as raised:
        noted(tmp_path, *programs, **more)
    assert str(raised.value).startswith(reason)


def test_others_go_on_without_a_program_that_an_impairment_may_kill(tmp_path):
    workload = noted(tmp_path, ("first", "h1", KILLED), ("peer", "h2", "pass"), may_be_killed=True)
    by = "killed by SIGKILL by impairment power-cut (kind crash)"
    assert workload.remark() == f"went on without first: {by}"


def test_a_crash_that_was_planned_and_did_not_happen_is_not_blamed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_LOG_TIMEOUT_S", 0.05)
    write_json(tmp_path / "config.json", {"impairments": [CRASH]})
    assert killed_by("h1", tmp_path) == ""
    (tmp_path / "events").mkdir()
    write_lines(tmp_path / "events" / "impairments.jsonl", [BEGUN | {"host": "h2"}])
    assert killed_by("h1", tmp_path) == ""
