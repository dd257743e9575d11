"""Counters that cannot be read prove nothing: the run does not count, unless that is waived."""

from __future__ import annotations

import pytest

from tests.lab.gates.harness import WrongLab, assert_invalid

pytestmark = pytest.mark.lab

# The first reading is a warm-up, the second that before the training.
UNREADABLE = """
_right_read, _readings = CounterReader.read, []

def _read(self, *arguments, **options):
    _readings.append(self)
    if len(_readings) > 2:
        raise OSError("no counter can be read any more")
    return _right_read(self, *arguments, **options)

CounterReader.read = _read
"""


@pytest.mark.long  # as a sampler that dies does, in test_link_settings.py
def test_counters_that_cannot_be_read_stop_the_run(wrong_lab: WrongLab):
    results = wrong_lab.run(altered_by={"testbed.verdict.counters": UNREADABLE}, rounds=10)
    gate = assert_invalid(results, "conservation", outcome="not measured")
    assert gate["note"] == "no counters: no counter can be read any more"


@pytest.mark.long  # waivers: tests/verdict; their caution: tests/cli
def test_a_waived_gate_does_not_stop_the_run_and_is_told(wrong_lab: WrongLab):
    # Timing is waived as well: this test is about what is not measured.
    timing = ["cpu_others", "cpu_wait_s", "clock_stall_s", "rate_error", "rate_spread"]
    timing += ["rate_under_load", "rtt_error_s", "samples_missing"]
    results = wrong_lab.run(
        altered_by={"testbed.verdict.counters": UNREADABLE},
        reported=True,
        rounds=10,
        limits={"waive": ["conservation", "emulator_losses", *timing]},
    )
    status = results.verdict()
    assert (status["verdict"], status["reason"]) == ("ok", ""), status
    gate = next(each for each in status["gates"] if each["key"] == "conservation")
    assert (gate["outcome"], gate["decides"]) == ("not measured", False)
    assert "caution: Results with waived gates: " in results.output
    assert "conservation, by limits.waive" in results.output
