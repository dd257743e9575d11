"""`./lab test` runs all of its steps, names those that failed, and its status is right."""

from __future__ import annotations

from testbed.cli import upkeep


def test_all_steps_are_run_whatever_fails(monkeypatch, capfd):
    steps = {
        name: (upkeep.sys.executable, "-c", f"print({name!r}); raise SystemExit({status})")
        for name, status in (("first", 1), ("second", 0))
    }
    monkeypatch.setattr(upkeep, "_STEPS", steps)
    assert upkeep.test([]) == 1
    printed = capfd.readouterr()
    assert printed.out.splitlines()[1:] == ["== first", "first", "== second", "second"]
    assert printed.err == "lab: failed: first\n"
    steps.pop("first")
    assert upkeep.test([]) == 0
