"""Standstills: parts of the emulator that did not run although they should have."""

from __future__ import annotations

import os
import signal
import time

import pytest

from testbed.verdict import processor_headroom
from testbed.verdict.processor_headroom import Standstill, StandstillWatch
from tests.busy import busy_process
from tests.verdict.evidence_of_gates import gate_of
from tests.verdict.test_headroom import NEEDS_SCHEDSTAT

SLEEPING = "import time; time.sleep(60)"


def rounds(length_s: float, count: int = 9) -> list[dict[str, float]]:
    return [
        {"round": number, "began_s": number * length_s, "ended_s": (number + 1) * length_s}
        for number in range(count)
    ]


@NEEDS_SCHEDSTAT
@pytest.mark.parametrize("program", [SLEEPING, ""])
def test_a_part_that_is_stopped_stands_still_and_one_that_sleeps_or_computes_does_not(program):
    """`busy_process` computes for ever after its program."""
    with busy_process(SLEEPING) as idle, busy_process(program) as stopped:
        time.sleep(0.2)
        watch = StandstillWatch({"idle": idle.pid, "stopped": stopped.pid}).start()
        time.sleep(0.1)
        os.kill(stopped.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        time.sleep(0.3)
        os.kill(stopped.pid, signal.SIGCONT)
        lasted_s = time.monotonic() - began_s
        time.sleep(0.1)
        stood = {part.part: part for part in watch.finish()}
    assert stood["idle"].longest_s == 0
    assert 0.2 < (stood["stopped"].longest_s or 0) <= lasted_s
    assert stood["stopped"].state == "stopped"
    assert began_s - 0.02 < stood["stopped"].at_s < began_s + 0.1


def test_a_watch_that_was_suspended_itself_finds_that_all_stood_still(monkeypatch):
    """The clock that goes on in a suspended machine jumps by 3 s; the other one does not."""
    ahead_s = 0.0
    monkeypatch.setattr(processor_headroom, "now_s", lambda: time.monotonic() + ahead_s)
    watch = StandstillWatch({}).start()
    time.sleep(0.1)
    ahead_s = 3.0
    time.sleep(0.1)
    (everything,) = watch.finish()
    assert everything.part == processor_headroom.ALL
    assert 3.0 < (everything.longest_s or 0) < 3.5


@pytest.mark.parametrize(
    ("length_s", "still_s", "outcome"),
    [
        (0.08, 0.051, "failed"),
        (0.08, 0.049, "passed"),
        (0.4, 0.099, "passed"),
        (0.4, 0.101, "failed"),
    ],
)
def test_a_quarter_of_the_median_round_passes_if_that_is_more(length_s, still_s, outcome):
    slow = {"round": 9, "began_s": 9 * length_s, "ended_s": 99.0}  # the one with the pause
    at_s = 9.5 * length_s
    stood = [
        Standstill(part="controller"),
        Standstill(part="ovs-vswitchd", longest_s=still_s, at_s=at_s, state="stopped"),
    ]
    gate = gate_of("standstill_s", standstills=stood, rounds=[*rounds(length_s), slow])
    assert (gate.outcome, gate.value) == (outcome, still_s)
    assert gate.limit == pytest.approx(max(0.05, length_s / 4))
    assert gate.where == "ovs-vswitchd stopped in round 9"


def test_what_could_not_be_watched_is_not_measured():
    gate = gate_of("standstill_s", standstills=[], rounds=[])
    assert gate.outcome == "not measured"
    watched = StandstillWatch({"gone": 1 << 22}).start().finish()
    gate = gate_of("standstill_s", standstills=watched, rounds=[])
    assert (gate.outcome, "statistics of gone" in gate.note) == ("not measured", True)
