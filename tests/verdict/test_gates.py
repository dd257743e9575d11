"""The gates: when the emulator, and not the protocol, was the limit, the run is invalid."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment import Limits
from testbed.lab.network import LinkEnds
from testbed.lab.openvswitch import SocketBuffers
from testbed.verdict import run_observer
from testbed.verdict.calibration import Calibration
from testbed.verdict.gates import GATES, Gate, reasons
from testbed.verdict.link_changes import LinkChanges
from tests.verdict.evidence_of_gates import (
    LINK,
    LOSS,
    LOST,
    WITHOUT_DELAYS,
    conserved,
    evidence,
    gate_of,
    headroom,
    judged,
    ledger,
    network_of,
    path,
    queue,
    sampler,
    stalled,
    stopping,
    waited,
)
from tests.verdict.test_links_under_load import event, sampled, stored


def test_a_faithful_lab_passes():
    gates = judged()
    without = {gate.key for gate in gates if gate.outcome == "not applicable"}
    assert without == {"burst_missing", *WITHOUT_DELAYS}
    assert {gate.outcome for gate in gates} == {"passed", "not applicable"}
    assert reasons(gates) == ""


def test_every_gate_has_a_lab_that_is_wrong_by_it():
    folder = Path(__file__).parents[1] / "lab" / "gates"
    text = "".join(path.read_text() for path in folder.glob("test_*.py"))
    pairs = re.findall(r'assert_invalid\(\s*[^"]*?,\s*"(\w+)"([^)]*)', text)
    failed = {key for key, more in pairs if "not measured" not in more}
    by_unit_tests = [{"cpu_others"}, {"samples_missing"}]  # below: they need no busy machine
    assert [set(gate.limits) for gate in GATES if not failed & gate.limits.keys()] == by_unit_tests


UNFILLED: dict[str, Any] = {"peak_bytes": None, "reason": "too deep"}


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"queues": [*[queue()] * 9, queue(**UNFILLED)]}, "queue_error", "1 of 10 queues"),
        (
            {"ledgers": None, "unreadable": "no ovs"},
            "conservation emulator_losses",
            "no counters: no ovs",
        ),
        (
            {"ledgers": conserved(ledger(), idle=False)},
            "conservation emulator_losses",
            "still moving",
        ),
        ({"headroom": headroom(waited={})}, "cpu_wait_s", "no process"),
        (
            {"headroom": headroom(waited={"ovs-vswitchd": waited(0.0001), "controller": None})},
            "cpu_wait_s",
            "no scheduling statistics of controller; the worst .* was 0.0001 .ovs-vswitchd",
        ),
        ({"headroom": headroom(longest_window_s=5.2)}, "cpu_wait_s", "5.2 s were read as one"),
        ({"headroom": headroom(others=None)}, "cpu_others", "no processor time"),
        ({"headroom": headroom(stalls=[])}, "clock_stall_s", "no processor was watched"),
        (
            {"headroom": headroom(stalls=[stalled(0.001), stalled(0, processor=1, looks=0)])},
            "clock_stall_s",
            "the watch of processor 1 never ran",
        ),
        ({"paths": [path(), path(rate_bps=math.nan)]}, "rate_error", "the value .* is nan"),
        ({"paths": [path(), path(rtt_s=math.nan)]}, "rtt_error_s", "the value .* is nan"),
    ],
)
def test_what_could_not_be_measured_stops_the_run_and_is_named(changes, key, words):
    keys = key.split()
    assert stopping(**changes) == dict.fromkeys(keys, "not measured")
    assert re.search(f"{keys[0]}: .* not measured: .*{words}", reasons(judged(**changes)))
    waived = judged(**changes, limits={"waive": keys})
    assert not any(gate.stops for gate in waived)
    notes = [gate.waived for gate in waived if gate.waived]
    assert notes == [f"{key}, by limits.waive" for key in keys]
    assert list(stopping(**changes, limits=dict.fromkeys(keys, 1))) == keys


def test_paths_that_another_stands_for_and_a_run_without_impairments_pass_and_say_so():
    calibration = Calibration(paths=[path()], queues=[queue()], left_out=62)
    config = {"limits": Limits().model_dump(), "impairments": []}
    gates = judged(calibration=calibration, events=[], config=config)
    assert reasons(gates) == ""
    assert sum("62 more paths have one like them" in gate.note for gate in gates) == 4
    assert [gate.key for gate in gates if gate.outcome == "not applicable"] == [
        "impairment_late_s",
        "impairments_unmet",
        "burst_missing",
        "loss_error",
        *WITHOUT_DELAYS,
    ]


@pytest.mark.parametrize(
    ("limits", "stops", "words"),
    [
        ({}, True, ""),
        ({"waive": ["rtt_error"]}, False, "rtt_error, by limits.waive"),
        ({"rtt_error_s": 0.02}, False, "rtt_error_s, by a limit of 0.02 instead of 0.0003"),
        ({"rtt_error_s": 0.0004}, True, "rtt_error_s, by a limit of 0.0004 instead of 0.0003"),
        ({"rtt_error_s": 0.0001}, True, ""),
        ({"waive": ["idle_loss"]}, True, ""),
    ],
)
def test_a_looser_limit_is_told_and_holds_and_a_waived_gate_does_not(limits, stops, words):
    gates = judged(paths=[path(rtt_s=0.001)], limits=limits)
    gate = next(gate for gate in gates if gate.key == "rtt_error_s")
    assert (gate.stops, gate.waived) == (stops, words)
    assert gate.value == 0.001


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"waited": {"controller": waited(0), "relay": waited(0.001)}}, ["cpu_wait_s"]),
        ({"others": 0.6, "pressure": 0.9}, ["cpu_others"]),
        ({"others": 0.6, "pressure": 0.1}, []),  # busy neighbours on a machine with room
        ({"stalls": [stalled(0.2), stalled(0.001, processor=1)]}, ["clock_stall_s"]),
    ],
)
def test_a_machine_that_was_not_there_is_found(changes, keys):
    assert stopping(headroom=headroom(**changes)) == dict.fromkeys(keys, "failed")


def socket_gate(holds_bytes: int | None, *links: LinkEnds) -> Gate:
    network = network_of(*(links or [LINK]))
    facts = {"network": network, "changes": LinkChanges(), "switch_holds_bytes": holds_bytes}
    return gate_of("socket_buffer_bytes", **facts)


def test_queues_that_the_switch_s_socket_cannot_hold_are_found():
    """Both of a port count, and those of several ports do not add up."""
    shallow = SocketBuffers(sockets=5, send_bytes=425_984, receive_bytes=425_984).queue_bytes
    deep = replace(LINK, queue_bytes=1_000_000)
    assert socket_gate(shallow).outcome == "passed"
    assert socket_gate(shallow, deep).outcome == "failed"
    in_kernel = SocketBuffers(sockets=2, send_bytes=None, receive_bytes=8 << 20).queue_bytes
    assert socket_gate(in_kernel, deep).outcome == "not applicable"
    both = replace(LINK, priority_queue_bytes=60_000)
    assert socket_gate(200_000, both).value == 150_000 + 60_000 - 200_000
    two = [replace(LINK, name=f"host-{n}--s1") for n in range(2)]
    assert socket_gate(200_000, *two).outcome == "passed"


@pytest.mark.parametrize(
    ("sent", "unexplained", "passed"),
    [(5000, 1, False), (5000, -1, False), (1_000_000, 10, True), (1_000_000, 11, False)],
)
def test_packets_that_vanish_or_multiply_are_found_and_named(sent, unexplained, passed):
    leaking = ledger(link="a--b", sent=sent, missing_after=unexplained)
    gate = gate_of("conservation", ledgers=conserved(ledger(), leaking), unreadable="")
    assert (gate.outcome == "passed", gate.where) == (passed, "a--b from s1")


def test_what_is_missing_does_not_hide_what_failed():
    queues = [queue(), queue(**UNFILLED), queue(peak_bytes=60_000)]
    assert stopping(queues=queues) == {"queue_error": "failed"}


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
        ({"answers_left_out": 120, "answers_too_late": 100}, "failed", "lacked a queue"),
        ({"parts": {"queues": {"errors": 400, "last_error": "gone"}}}, "failed", "queues: gone"),
        ({"problems": ["flows: OSError: x"]}, "not measured", "flows: OSError: x"),
        (None, "not measured", "sampler died"),
    ],
)
def test_samples_that_are_missing_are_found(tmp_path, changes, outcome, words):
    folder = tmp_path if changes is None else sampler(tmp_path, **changes)
    gate = gate_of("samples_missing", directory=folder)
    assert gate.outcome == outcome
    assert words in gate.sentence() + gate.note


def test_samples_and_events_reach_the_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise OSError("no lab is there")

    monkeypatch.setattr(run_observer, "CounterReader", refuse)
    stored(tmp_path, sampled(share=lambda t_s: 0.3 if 5 <= t_s < 8 else 0.9))
    sampler(tmp_path, **json.loads((tmp_path / "samples" / "sampler.json").read_text()))
    begins, ends = event("begin", 5.0, target="s1->server"), event("end", 8.0, target="s1->server")
    met = [{**LOST, "action": "begin"}, {**LOST, "dropped": 2000}]
    changed = [{**LOST, "counts_as": "queue", **event} for event in (begins, ends)]
    (tmp_path / "events").mkdir()
    lines = "".join(json.dumps(record) + "\n" for record in (*met, *changed))
    (tmp_path / "events" / "impairments.jsonl").write_text(lines)
    seen = evidence()
    watched = {"ovs-vswitchd": os.getpid()}
    observation = run_observer.RunObserver(tmp_path, seen["config"], seen["network"], watched)
    observation.begin()
    buffers = SocketBuffers(sockets=3, send_bytes=64 << 20, receive_bytes=8 << 20)
    gates = observation.judge(seen["calibration"], buffers)
    by_key = {gate.key: gate for gate in gates}
    rate = by_key["rate_under_load"]
    assert (rate.outcome, rate.where) == ("failed", "server--s1 from s1")
    assert rate.value == pytest.approx(0.1, abs=0.01)
    assert "3.0 s left out" in rate.note
    assert (by_key["loss_error"].outcome, by_key["loss_error"].where) == ("failed", LOSS["name"])
    assert by_key["conservation"].outcome == "not measured"
    assert "no lab is there" in by_key["conservation"].note
    first, second = json.loads((tmp_path / "links_under_load.json").read_text())["links"]
    assert (first["link"], first["sender"], first["samples"]) == ("server--s1", "s1", 2000)
    assert first["left_out_s"] == pytest.approx(3.0, abs=0.05)
    assert first["error"] == rate.value
    assert (second["samples"], second["delivered"]) == (0, None)
    proof = json.loads((tmp_path / "conservation.json").read_text())
    assert proof["failure"] == "no lab is there"
