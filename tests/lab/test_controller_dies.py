"""A controller that ends during a run ends the run, and its own words are the reason."""

from __future__ import annotations

import datetime

import pytest

pytestmark = pytest.mark.usefixtures("unchanged_host")


def test_a_contradiction_that_only_shows_during_the_run_fails_it_at_once(run_small):
    hold = {"kind": "loss", "name": "always", "q": 0.1, "leg": "round", "rounds": {"every": 1}}
    clash = {"kind": "loss", "name": "late", "q": 0.1, "at_s": [0.05], "duration_s": 0.1}
    results = run_small(rounds=200, impairments=[hold, clash])
    assert results.status == 1
    status = results.verdict()
    assert status["verdict"] == "failed"
    assert status["reason"].startswith("controller: impairment late begins while always holds ser")
    assert status["reason"].endswith("; see logs/controller.log")
    log = results.run() / "logs" / "controller.log"
    ended_s = datetime.datetime.fromisoformat(status["ended_at"]).timestamp()
    assert ended_s - log.stat().st_mtime < 5
