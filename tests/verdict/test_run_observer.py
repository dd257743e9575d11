"""The observer of a run hands all that it read to the gates."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from testbed.verdict import run_observer
from testbed.verdict.gate import Gate
from tests.verdict.evidence_of_gates import LOSS, LOST, evidence, sampler
from tests.verdict.test_links_under_load import event, sampled, stored


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lab is there whose counters could be read."""

    def refuse(*_: Any) -> None:
        raise OSError("no lab is there")

    monkeypatch.setattr(run_observer, "CounterReader", refuse)


def judged(directory: Path, *events: dict[str, Any], **queue: Any) -> dict[str, Gate]:
    stored(directory, sampled(**queue))
    described = json.loads((directory / "samples" / "sampler.json").read_text())
    sampler(directory, **described)
    (directory / "events").mkdir()
    lines = "".join(json.dumps(each) + "\n" for each in events)
    (directory / "events" / "impairments.jsonl").write_text(lines)
    seen = evidence()
    watched = {"ovs-vswitchd": os.getpid()}
    observation = run_observer.Observation(directory, seen.config, seen.network, watched)
    observation.begin()
    found = observation.judge(seen.calibration, switch_holds_bytes=44_000_000)
    return {gate.key: gate for gate in found}


@pytest.mark.usefixtures("unread")
def test_samples_and_events_reach_the_gates(tmp_path: Path):
    met = [{**LOST, "action": "begin"}, {**LOST, "dropped": 2000}]
    other = {**LOST, "counts_as": "queue"}
    begins, ends = event("begin", 5.0, target="s1->server"), event("end", 8.0, target="s1->server")
    changed = [other | begins, other | ends]
    slow = {"share": lambda t_s: 0.3 if 5 <= t_s < 8 else 0.9}
    found = judged(tmp_path, *met, *changed, **slow)
    rate = found["rate_under_load"]
    assert (rate.outcome, rate.where) == ("failed", "server--s1 from s1")
    assert rate.value == pytest.approx(0.1, abs=0.01)
    assert "3.0 s left out" in rate.note
    assert (found["loss_error"].outcome, found["loss_error"].where) == ("failed", LOSS["name"])
    assert found["conservation"].outcome == "not measured"
    assert "no lab is there" in found["conservation"].note
    assert (tmp_path / "links_under_load.json").exists()
    proof = json.loads((tmp_path / "conservation.json").read_text())
    assert proof["failure"] == "no lab is there"
