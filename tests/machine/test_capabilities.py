"""Before a run, what every run needs is tried, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.machine import capabilities
from testbed.shared.yaml_input import InputError


def test_a_run_tries_what_it_needs_alone_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    tried: list[str] = []

    def result_of(_module: str, request: dict[str, Any]) -> dict[str, Any]:
        tried.extend(request["wanted"])
        words = {"reason": "no HTB", "enables": "every run", "how": "modprobe sch_htb"}
        return {name: {"available": name != "shaping", **words} for name in tried}

    monkeypatch.setattr(capabilities.sandbox, "result_of", result_of)
    with pytest.raises(
        InputError, match=r"cannot run a lab: shaping: no HTB \(modprobe sch_htb\)$"
    ):
        capabilities.require()
    assert ["sandbox", *tried] == list(capabilities.REQUIRED)


def test_each_congestion_control_that_is_tried_has_words_on_what_it_enables_and_how_to_get_it():
    tried = {f"tcp-{name}" for name in capabilities.TCP_CONGESTION_CONTROLS}
    assert tried == {name for name in capabilities._ABOUT if name.startswith("tcp-")}
    assert all(each["enables"] and each["how"] for each in capabilities._ABOUT.values())
