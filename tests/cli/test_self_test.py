"""The closing count of `./lab test` is the sum of its two steps, and its status is right."""

from __future__ import annotations

import pytest

from testbed.cli import upkeep


@pytest.mark.parametrize(
    ("closing", "found"),
    [
        ("3 passed, 1 skipped in 2.10s", {"passed": 3, "skipped": 1}),
        ("1 failed, 2 passed, 3 deselected, 1 rerun in 61.02s (0:01:01)", None),
        ("2 errors in 0.5s", {"errors": 2}),
        ("no tests ran in 0.01s", {}),
    ],
)
def test_the_closing_line_of_pytest_is_read(closing, found):
    expected = {"failed": 1, "passed": 2, "rerun": 1} if found is None else found
    assert dict(upkeep.counts(closing)) == expected


def test_both_steps_are_run_and_counted_together_whatever_fails(monkeypatch, capfd):
    def says(text, status):
        code = f"print({text!r}); raise SystemExit({status})"
        return ("step", (upkeep.sys.executable, "-c", code))

    steps = (says("..\n1 failed, 2 passed in 3.00s", 1), says("5 passed, 1 skipped in 9.00s", 0))
    monkeypatch.setattr(upkeep, "_CHECKS", ())
    monkeypatch.setattr(upkeep, "_TESTS", steps)
    assert upkeep.test([]) == 1
    printed = capfd.readouterr()
    assert "all tests: 1 failed, 7 passed, 1 skipped" in printed.out
    assert "failed: step" in printed.err
    monkeypatch.setattr(upkeep, "_TESTS", steps[1:])
    assert upkeep.test([]) == 0
