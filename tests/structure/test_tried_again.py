"""A test that fails beside others is tried once more, and the summary warns of it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BY_CHANCE = """
from pathlib import Path

def test_now_and_then(tmp_path):
    been = Path("been")
    first = not been.exists()
    been.touch()
    assert not first, "the first time"
"""
ALWAYS = "def test_{number}(): assert False, 'as ever'\n"


@pytest.fixture
def ended(tmp_path):
    """Runs tests as `./lab test` does, with options; returns the status and what was printed."""

    def run(text: str, *options: str) -> tuple[int, str]:
        (tmp_path / "test_here.py").write_text(text)
        # Without the project's settings, so that no test of it is found.
        words = ("-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "here.ini")
        (tmp_path / "here.ini").write_text("[pytest]\nmarkers =\n    lab: x\n    long: y\n")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *options, "test_here.py"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def test_one_that_passes_the_second_time_is_named_and_where_many_fail_it_is_not_by_chance(ended):
    text = BY_CHANCE + "".join(ALWAYS.format(number=number) for number in range(5))
    status, printed = ended(text, "-n1")
    assert status == 1, printed
    assert "tried again: 3" in printed
    assert "test_here.py::test_now_and_then: passed then" in printed
    assert "  it ran beside others: AssertionError: the first time" in printed
    assert printed.count(": did not pass then either") == 2
    assert re.search(r"^5 failed, 1 passed, 3 rerun in ", printed, re.MULTILINE)


def test_one_that_runs_alone_has_one_try(ended):
    status, printed = ended(BY_CHANCE)
    assert status == 1, printed
    assert "tried again" not in printed
