"""The gate of impairments that are late, or never come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed.verdict.congestion_read_back import difference
from tests.verdict.evidence_of_gates import gate_of

IMPAIRMENTS = [{"name": "loss", "rounds": [3, 7], "leg": "both"}, {"name": "cut", "at_s": [2.0]}]


def occurrence(name, number, *late_s, actions=("begin", "end"), **details):
    return [
        {"name": name, "action": action, "round": number, "planned_s": 5.0}
        | {"acknowledged_s": 5.0 + late, "details": details}
        for action, late in zip(actions, late_s or (0.001, 0.002), strict=True)
    ]


def times(*last, losses=3):
    """The events of three occurrences of `loss` and one of `cut`, and those of the last one."""
    events = [each for _ in range(losses) for each in occurrence("loss", 3)]
    return [*events, *occurrence("cut", -1), *(last or occurrence("loss", 7))]


def lateness(events):
    return gate_of("impairment_late_s", events=events, impairments=IMPAIRMENTS)


@pytest.mark.parametrize("late_s", [(0.02, 0.001), (0.001, 0.02)])
def test_the_latest_impairment_counts_however_many_there_are(late_s):
    assert lateness(times(*occurrence("loss", 7, 0.009, 0.001))).outcome == "passed"
    gate = lateness(times(*occurrence("loss", 7, *late_s), losses=400))
    assert (gate.outcome, gate.value) == ("failed", pytest.approx(0.02))
    assert "of loss in round 7" in gate.where


def test_an_occurrence_that_was_due_before_it_was_skipped_was_late():
    early = occurrence("loss", 7, -0.3, actions=("skipped",))
    assert lateness(times(*early)).outcome == "passed"
    assert "1 of loss skipped, since their leg" in lateness(times(*early)).note
    assert lateness(times(*occurrence("loss", 7, 0.3, actions=("skipped",)))).outcome == "failed"


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (times(losses=2), "1 of 4 occurrences of loss neither began nor were skipped"),
        (times()[:-1], "1 of 4 occurrences of loss did not end"),
        (occurrence("cut", -1), "no occurrence of loss began"),
        (
            times(*occurrence("loss", 7, 0.0003, actions=("skipped",), still_in_force=True)),
            "1 of 4 occurrences of loss did not begin, since the one before was still in force",
        ),
        ([], "no occurrence of cut began"),
        (
            [*occurrence("cut", -1), *occurrence("loss", 3, -1, actions=("skipped",)) * 4],
            "no occurrence of loss began",
        ),
    ],
)
def test_an_impairment_that_never_began_or_ended_is_found(events, words):
    gate = lateness(events)
    assert (gate.outcome, gate.stops) == ("not measured", True)
    assert words in gate.note


def endpoint(directory: Path, host: str, facts: Mapping[str, Mapping[str, object]]) -> None:
    (directory / "events").mkdir(exist_ok=True)
    record = {"schema": 1, "host": host, "facts": facts, "ignored": {}}
    (directory / "events" / f"endpoint-{host}.jsonl").write_text(json.dumps(record) + "\n")


def test_what_differs_from_what_was_asked_for_is_named_with_its_place(tmp_path):
    assert difference(tmp_path, "bbr") == ""  # nobody says anything
    endpoint(tmp_path, "server", {"worker-1": {"congestion_control": "bbr"}, "worker-2": {}})
    assert difference(tmp_path, "bbr") == ""
    peers = {f"worker-{rank}": {"congestion_control": "cubic"} for rank in (1, 2)}
    endpoint(tmp_path, "server", peers)
    assert difference(tmp_path, "bbr") == (
        "congestion control 'bbr' was asked for, and server towards worker-1 used 'cubic', "
        "and 1 more"
    )
