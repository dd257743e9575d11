"""The gate of samples that were not taken."""

from __future__ import annotations

import pytest

from testbed.experiment import Limits
from testbed.verdict import sampler_gates
from tests.verdict.evidence_of_gates import sampler


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({}, "passed", "0.100 s"),
        ({"samples_lost": 300, "largest_gap_s": 3.0}, "failed", "3.000 s"),
        ({"parts": {"queues": {"errors": 400, "last_error": "gone"}}}, "failed", "queues: gone"),
        ({"problems": ["flows: OSError: x"]}, "not measured", "flows: OSError: x"),
    ],
)
def test_samples_that_are_missing_are_found(tmp_path, changes, outcome, words):
    (gate,) = sampler_gates.gates(sampler(tmp_path, **changes), Limits().model_dump())
    assert gate.outcome == outcome
    assert words in f"{gate.where} {gate.note}"


def test_a_sampler_that_died_is_found(tmp_path):
    (gate,) = sampler_gates.gates(tmp_path, Limits().model_dump())
    assert (gate.outcome, gate.stops) == ("not measured", True)
    assert "sampler died" in gate.sentence()
