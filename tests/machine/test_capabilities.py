"""Before a run, what every run needs is tried, and nothing else."""

from __future__ import annotations

import pytest

from testbed.machine import capabilities
from testbed.shared.yaml_input import InputError


def test_a_run_tries_what_it_needs_alone_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    def output_of(_module: str, *wanted: str) -> tuple[bytes, str]:
        tried.extend(wanted)
        found = (
            f'"{name}": {{"available": {str(name != "shaping").lower()}, "reason": "no HTB", '
            '"enables": "every run", "how": "modprobe sch_htb"}'
            for name in wanted
        )
        return f"{{{', '.join(found)}}}".encode(), ""

    monkeypatch.setattr(capabilities.sandbox, "output_of", output_of)
    with pytest.raises(
        InputError, match=r"cannot run a lab: shaping: no HTB \(modprobe sch_htb\)$"
    ):
        capabilities.require()
    assert ["sandbox", *tried] == list(capabilities.REQUIRED)
