"""Headroom: threads that were ready and did not run; processors and parts that stood still."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.lab.kernel import process_status
from testbed.lab.kernel.process_status import MachineTicks
from testbed.verdict import processor_headroom
from testbed.verdict.processor_headroom import (
    CoreTicks,
    Standstill,
    StandstillWatch,
    Wait,
    WaitWatch,
    Watch,
)
from tests.busy import busy_process
from tests.verdict.evidence_of_gates import gate_of

PINNED = "import os; os.sched_setaffinity(0, {int(os.sys.argv[1])})"
NEEDS_SCHEDSTAT = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="needs capability schedstat"
)


@NEEDS_SCHEDSTAT
def test_a_thread_that_shares_its_processor_waits_and_one_that_sleeps_does_not():
    processor = str(max(os.sched_getaffinity(0)))
    with contextlib.ExitStack() as programs:
        busy, *_ = (programs.enter_context(busy_process(PINNED, processor)) for _ in range(3))
        idle = programs.enter_context(busy_process("import time; time.sleep(60)"))
        time.sleep(0.3)
        watch = Watch({"busy": busy.pid, "idle": idle.pid})
        time.sleep(1.3)
        record = watch.finish()
    busy_waited, idle_waited = record.waited["busy"], record.waited["idle"]
    assert busy_waited is not None
    assert idle_waited is not None
    assert busy_waited.mean_s > 0.0005
    assert idle_waited.mean_s < 0.0005
    assert 1.2 < record.duration_s < 30
    assert {stall.processor for stall in record.stalls} == os.sched_getaffinity(0)


def test_a_kernel_that_counts_no_time_or_forgets_its_pressure_gives_no_share(monkeypatch):
    monkeypatch.setattr(process_status, "machine_ticks", lambda: MachineTicks(5, 0, 10))
    pressures = iter([7.0, None])
    monkeypatch.setattr(processor_headroom, "_pressure_us", lambda: next(pressures))
    record = Watch({}).finish()
    assert (record.others, record.pressure, record.contended) == (None, None, None)


def scripted(monkeypatch, readings):
    """A watch, without its thread, of one thread with these run delays."""
    delays = iter(readings)
    monkeypatch.setattr(processor_headroom, "run_delays", lambda pid: {pid: next(delays)})
    for name in ("start", "join"):
        monkeypatch.setattr(processor_headroom.threading.Thread, name, lambda self: None)
    return WaitWatch({"switch": 7})


def test_the_worst_second_counts_and_not_the_mean(monkeypatch):
    """A thread waits for half of the second second in 2000 waits, else for nothing."""
    readings = [(0.0, 0), (0.0, 2000), (0.5, 4000), (0.5, 6000), (0.6, 6001)]
    now_s = iter([100.0, 101.0, 102.0, 103.0, 104.0])
    monkeypatch.setattr(processor_headroom.time, "monotonic", lambda: next(now_s))
    watch = scripted(monkeypatch, readings)
    for _ in readings[1:4]:
        watch.read()
    expected = Wait(mean_s=0.5 / 2000, at_s=1.0)
    assert watch.finish() == ({"switch": expected}, 1.0)
    watch.read()
    # One long wait of a thread that hardly runs is no mean of a second.
    assert watch.finish()[0]["switch"] == expected


@pytest.mark.parametrize(
    ("runs", "mean_s"),
    [
        ([2, 3, 2], 0.0),  # wakes by a timer: its sleep passes for waiting
        ([2000, 3, 2], 0.5 / 500),  # was busy, and is kept from running
        ([2, 3, 2000], 0.0),
        ([2, 21, 2], 0.5 / 500),
    ],
)
def test_a_thread_that_hardly_runs_is_not_judged_unless_it_just_did(monkeypatch, runs, mean_s):
    """It is said to have waited for half of the second second."""
    times = [0, *itertools.accumulate(runs)]
    readings = list(zip([0.0, 0.0, 0.5, 0.5], times, strict=True))
    watch = scripted(monkeypatch, [*readings, readings[-1]])
    for _ in runs:
        watch.read()
    waited = watch.finish()[0]["switch"]
    assert waited is not None
    assert waited.mean_s == pytest.approx(mean_s)


@NEEDS_SCHEDSTAT
def test_a_process_that_is_gone_has_no_value():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert WaitWatch({"gone": ended.pid}).finish()[0] == {"gone": None}


def test_a_processor_that_stands_still_is_found_with_the_time(monkeypatch):
    """One look of one processor is kept from its clock for 50 ms, as a hypervisor would."""
    still = max(os.sched_getaffinity(0))
    slept: dict[int, int] = {}
    sleep = time.sleep

    def one_long_sleep(wanted_s):
        thread = processor_headroom.threading.get_native_id()
        (processor,) = os.sched_getaffinity(thread)
        slept[processor] = slept.get(processor, 0) + 1
        sleep(wanted_s + 0.05 * (processor == still and slept[processor] == 10))

    monkeypatch.setattr(processor_headroom.time, "sleep", one_long_sleep)
    ticks = CoreTicks()
    sleep(0.4)
    stalls = {stall.processor: stall for stall in ticks.finish()}
    assert set(stalls) == os.sched_getaffinity(0)
    # It is found; a busy machine may add to it, and may be slow to come to it.
    assert 0.05 <= stalls[still].longest_s < 0.5
    assert 0.02 < stalls[still].at_s < 0.5
    assert all(stall.looks > 10 for stall in stalls.values())


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
        watch = StandstillWatch({"idle": idle.pid, "stopped": stopped.pid})
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
    watch = StandstillWatch({})
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
    watched = StandstillWatch({"gone": 1 << 22}).finish()
    gate = gate_of("standstill_s", standstills=watched, rounds=[])
    assert (gate.outcome, "statistics of gone" in gate.note) == ("not measured", True)
