"""The gate of samples that were not taken."""

from __future__ import annotations

import pytest

from testbed.experiment import Limits
from testbed.verdict import gates
from tests.verdict.evidence_of_gates import sampler


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({}, "passed", "0.100 s"),
        ({"samples_lost": 300, "largest_gap_s": 3.0}, "failed", "no sample for 3.0 s"),
        # A minute of five is less than the share that may be missing.
        (
            {"ticks": 24_100, "samples_lost": 5900, "largest_gap_s": 59.0},
            "not measured",
            "no sample for 59.0 s",
        ),
        ({"largest_gap_s": 0.9}, "passed", "0.900 s"),
        ({"answers_left_out": 120, "answers_too_late": 100}, "failed", "lacked a queue"),
        ({"answers_left_out": 120, "answers_too_late": 20}, "passed", "lacked a queue"),
        ({"parts": {"queues": {"errors": 400, "last_error": "gone"}}}, "failed", "queues: gone"),
        ({"problems": ["flows: OSError: x"]}, "not measured", "flows: OSError: x"),
    ],
)
def test_samples_that_are_missing_are_found(tmp_path, changes, outcome, words):
    gate = gates.of_samples(sampler(tmp_path, **changes), Limits().model_dump())
    assert gate.outcome == outcome
    assert words in f"{gate.where} {gate.note}"


def test_a_sampler_that_died_is_found(tmp_path):
    gate = gates.of_samples(tmp_path, Limits().model_dump())
    assert (gate.outcome, gate.stops) == ("not measured", True)
    assert "sampler died" in gate.sentence()
