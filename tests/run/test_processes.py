"""Why a run failed: the words of the process that ended."""

import os
import sys
from pathlib import Path

import pytest

from testbed.run.processes import ProcessError, Processes
from tests import open_files


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
    processes.spawn("part", [sys.executable, "-c", listening], told=True)
    processes.tell("part", {"do": "go"})
    processes.wait_until_done("part", 30)
    assert (tmp_path / "part.log").read_text() == "{'do': 'go'}\n"
    ended = processes.spawn("gone", ["false"], told=True)
    ended.wait()
    processes.tell("gone", {"do": "go"})
    assert processes.reason("gone") == "gone: ended with status 1; logs/gone.log is empty"
