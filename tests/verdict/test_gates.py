"""The gates: when the emulator, and not the protocol, was the limit, the run is invalid."""

import json
import math
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

from testbed.experiment import Limits
from testbed.lab.network import LabInfo, LinkEnds, Port
from testbed.lab.openvswitch import SocketBuffers
from testbed.verdict import lateness_gates, sampler_gates
from testbed.verdict.calibration import Calibration, PathCalibration, median_chance_s
from testbed.verdict.calibration_gates import most_lost_by_chance
from testbed.verdict.core_ticks import Stall
from testbed.verdict.gates import Evidence, judge, reasons
from testbed.verdict.ledgers import Conservation, LinkLedger
from testbed.verdict.links_under_load import LinksUnderLoad, LinkUnderLoad
from testbed.verdict.processor_headroom import Headroom
from testbed.verdict.processor_waits import Wait
from testbed.verdict.queue_calibration import QueueCalibration

# What a network without delayed links has no use for.
WITHOUT_DELAYS = ("relay_late_s", "relay_late_max_s", "delay_error_s")


def path(**changes):
    facts = {
        "sender": "worker-1",
        "receiver": "server",
        "configured_rate_bps": 100_000_000,
        "rate_bps": 99e6,
        "rtt_s": 0.0001,
        "probes_sent": 20,
        "probes_lost": 0,
    }
    return PathCalibration(**{**facts, **changes})


def queue(**changes):
    facts = {
        "link": "server--s1",
        "sender": "s1",
        "limit_bytes": 150_000,
        "peak_bytes": 148_372,
        "resolution_bytes": 4_000,
        "refused": 4,
    }
    return QueueCalibration(**{**facts, **changes})


def waited(share, mean_s=0.0001):
    return Wait(share=share, share_at_s=3.0, mean_s=mean_s, mean_at_s=4.0)


def stalled(longest_s, **changes):
    facts = {"processor": 0, "at_s": 2.0, "looks": 1000, "real_time": True}
    return Stall(longest_s=longest_s, **{**facts, **changes})


def headroom(**changes):
    facts = {
        "duration_s": 10.0,
        "waited": {"ovs-vswitchd": waited(0.1)},
        "longest_window_s": 1.001,
        "stalls": [stalled(0.004)],
        "others": 0.02,
        "pressure": 0.4,
        "stolen": 0.0,
    }
    return Headroom(**{**facts, **changes})


def ledger(**changes):
    none = dict.fromkeys(
        (
            *("queue_drops", "filtered", "interface_drops", "delay_drops", "delay_lost"),
            *("socket_drops", "injected"),
        ),
        0,
    )
    own = {"link": "server--s1", "sender": "s1", "offered": None, "sent": 5000, "received": 5000}
    return LinkLedger(**{**none, **own, **changes})


def under_load(**changes):
    facts = {
        "link": "server--s1",
        "sender": "s1",
        "rate_bps": 100_000_000,
        "samples": 1000,
        "backlogged": 100,
        "packet_bytes": 1514.0,
        "loaded_s": 0.8,
        "left_out_s": 0.0,
        "delivered": 0.999,
        "worst": 0.99,
        "worst_s": 5.0,
        "most": 0.999,
    }
    return LinkUnderLoad(**{**facts, **changes})


def conserved(*links, quiet=True):
    return Conservation(links=list(links), switches=[], hosts=[], quiet=quiet, duration_s=10.0)


FOLDER = tempfile.TemporaryDirectory()  # of a run; removed when the tests end
LOSS = {"kind": "loss", "name": "loss", "host": "server", "leg": "gather", "rounds": [0], "q": 0.1}
LOST = {
    "name": "loss",
    "kind": "loss",
    "counts_as": "loss",
    "action": "end",
    "round": 0,
    "leg": "gather",
    "planned_s": 6.0,
    "acknowledged_s": 6.0,
    "met": 5000,
    "dropped": 510,
}


def evidence(paths=None, queues=None, limits=None, deepest_queue_bytes=150_000, **changes):
    port = Port(node="s1", interface="s1-eth1", number=1, pid=None)
    link = LinkEnds(
        name="server--s1",
        first=Port(node="server", interface="server-eth0", number=1, pid=1),
        second=port,
        rate_bps=100_000_000,
        queue_bytes=deepest_queue_bytes,
    )
    facts = {
        "directory": sampler(Path(FOLDER.name)),
        "config": {"limits": Limits(**(limits or {})).model_dump(), "impairments": [LOSS]},
        "network": LabInfo(switches={"s1": 1}, hosts={}, links=[link]),
        "calibration": Calibration(paths=paths or [path()], queues=queues or [queue()]),
        "ledgers": conserved(ledger()),
        "headroom": headroom(),
        "events": [{**LOST, "action": "begin"}, LOST],
        "load": LinksUnderLoad(links=[under_load()]),
        "switch_holds_bytes": 44_000_000,
    }
    return Evidence(**{**facts, **changes})


def judged(paths=None, queues=None, **changes):
    return judge(evidence(paths, queues, **changes))


def stopping(*arguments, outcome="failed", **keywords):
    """The keys of the gates with an outcome; each stops the run."""
    found = [gate for gate in judged(*arguments, **keywords) if gate.outcome == outcome]
    assert all(gate.stops for gate in found)
    return [gate.key for gate in found]


def broken(*arguments, **keywords):
    assert stopping(*arguments, outcome="not measured", **keywords) == []
    return stopping(*arguments, **keywords)


def unmeasured(*arguments, **keywords):
    assert stopping(*arguments, **keywords) == []
    return stopping(*arguments, outcome="not measured", **keywords)


def test_a_faithful_lab_passes():
    gates = judged()
    without = {gate.key for gate in gates if gate.outcome == "not applicable"}
    assert without == set(WITHOUT_DELAYS)
    assert {gate.outcome for gate in gates} == {"passed", "not applicable"}
    assert reasons(gates) == ""


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rate_bps": 96e6}, "rate_error"),
        ({"rate_bps": 104e6}, "rate_error"),
        ({"rate_spread": 0.06}, "rate_spread"),
        ({"probes_lost": 1}, "idle_loss"),
        ({"rtt_s": 0.00031}, "rtt_error_s"),
        ({"rtt_s": 0.00091, "switches": 3}, "rtt_error_s"),
        ({"configured_rtt_s": 0.02, "rtt_s": 0.0225}, "rtt_error"),
        ({"configured_rtt_s": 0.02, "rtt_s": 0.0175}, "rtt_error"),
    ],
)
def test_one_bad_path_is_enough(changes, key):
    assert broken([path(), path(**changes)]) == [key]


def test_the_larger_of_both_round_trip_limits_holds():
    assert broken([path(configured_rtt_s=0.02, rtt_s=0.0215)]) == []
    assert broken([path(configured_rtt_s=0.001, rtt_s=0.00125)]) == []
    assert broken([path(rtt_s=0.00089, switches=3)]) == []


@pytest.mark.parametrize(
    ("peak_bytes", "passed"),
    [(150_000, True), (150_001, False), (146_000, True), (145_999, False), (60_000, False)],
)
def test_a_full_queue_reaches_its_limit_and_does_not_exceed_it(peak_bytes, passed):
    assert (broken(queues=[queue(), queue(peak_bytes=peak_bytes)]) == []) is passed


UNFILLED = {"peak_bytes": None, "reason": "too deep"}


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"queues": [queue(**UNFILLED)]}, "queue_error", "1 of 1 queues not filled.*too deep"),
        ({"queues": [*[queue()] * 9, queue(**UNFILLED)]}, "queue_error", "1 of 10 queues"),
        (
            {"ledgers": None, "unreadable": "no ovs"},
            "conservation emulator_losses",
            "no counters: no ovs",
        ),
        (
            {"ledgers": conserved(ledger(), quiet=False)},
            "conservation emulator_losses",
            "still moving",
        ),
        ({"headroom": headroom(waited={})}, "cpu_wait_s cpu_wait", "no process"),
        (
            {"headroom": headroom(waited={"ovs-vswitchd": waited(0.1), "controller": None})},
            "cpu_wait_s cpu_wait",
            "no scheduling statistics of controller; the worst of the others was 0.1 .ovs-vswitchd",
        ),
        (
            {"headroom": headroom(longest_window_s=5.2)},
            "cpu_wait_s cpu_wait",
            "5.2 s were read as one",
        ),
        ({"headroom": headroom(others=None)}, "cpu_others", "/proc/stat"),
        ({"headroom": headroom(stalls=[])}, "clock_stall_s", "no processor was watched"),
        (
            {"headroom": headroom(stalls=[stalled(0.001), stalled(0, processor=1, looks=0)])},
            "clock_stall_s",
            "the watch of processor 1 never ran",
        ),
        ({"paths": [path(rate_bps=math.nan), path()]}, "rate_error", "the value .* is nan"),
        ({"paths": [path(), path(rate_bps=math.nan)]}, "rate_error", "the value .* is nan"),
        ({"paths": [path(), path(rtt_s=math.nan)]}, "rtt_error_s", "the value .* is nan"),
    ],
)
def test_what_could_not_be_measured_stops_the_run_and_is_named(changes, key, words):
    keys = key.split()
    assert unmeasured(**changes) == keys
    assert re.search(f"not measured: .*{words}", reasons(judged(**changes)))
    waived = judged(**changes, limits={"waive": keys})
    assert not any(gate.stops for gate in waived)
    told = [gate.waived for gate in waived if gate.waived]
    assert told == [f"{each}, by limits.waive" for each in keys]
    loose = judged(**changes, limits=dict.fromkeys(keys, 1))
    assert [gate.key for gate in loose if gate.stops] == keys


def test_what_is_missing_does_not_hide_what_failed():
    queues = [queue(), queue(**UNFILLED), queue(peak_bytes=60_000)]
    assert stopping(queues=queues) == ["queue_error"]
    assert "not filled" in next(gate.note for gate in judged(queues=queues) if gate.stops)


def test_paths_that_another_stands_for_and_a_run_without_impairments_pass_and_say_so():
    calibration = Calibration(paths=[path()], queues=[queue()], left_out=62)
    config = {"limits": Limits().model_dump(), "impairments": []}
    gates = judged(calibration=calibration, events=[], config=config)
    assert reasons(gates) == ""
    assert sum("62 more paths have one like them" in gate.note for gate in gates) == 4
    assert [gate.key for gate in gates if gate.outcome == "not applicable"] == [
        "impairment_late_s",
        "impairments_unmet",
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
    gates = judged([path(rtt_s=0.001)], limits=limits)
    gate = next(gate for gate in gates if gate.key == "rtt_error_s")
    assert (gate.stops, gate.waived) == (stops, words)
    assert gate.value == 0.001


@pytest.mark.parametrize(("unexplained", "passed"), [(5, True), (6, False), (-6, False)])
def test_packets_that_vanish_or_multiply_are_found_and_named(unexplained, passed):
    gates = judged(ledgers=conserved(ledger(), ledger(link="a--b", missing_after=unexplained)))
    gate = next(gate for gate in gates if gate.key == "conservation")
    assert (gate.outcome == "passed") is passed
    assert gate.where == "a--b from s1"


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"waited": {"controller": waited(0.01), "ovs-vswitchd": waited(0.7)}}, ["cpu_wait"]),
        ({"waited": {"controller": waited(0), "relay": waited(0.1, 0.001)}}, ["cpu_wait_s"]),
        ({"others": 0.6, "pressure": 0.9}, ["cpu_others"]),
        ({"others": 0.6, "pressure": 0.1}, []),  # busy neighbours on a machine with room
        ({"stalls": [stalled(0.2), stalled(0.001, processor=1)]}, ["clock_stall_s"]),
    ],
)
def test_a_machine_that_was_not_there_is_found(changes, keys):
    assert broken(headroom=headroom(**changes)) == keys


IMPAIRMENTS = [{"name": "loss", "rounds": [3, 7], "leg": "both"}, {"name": "cut", "at_s": [2.0]}]


def occurrence(name, number, *late_s, actions=("begin", "end")):
    return [
        {"name": name, "action": action, "round": number, "planned_s": 5.0}
        | {"acknowledged_s": 5.0 + late}
        for action, late in zip(actions, late_s or (0.001, 0.002), strict=True)
    ]


def times(*last, losses=3):
    """The events of three occurrences of `loss` and one of `cut`, and those of the last one."""
    events = [each for _ in range(losses) for each in occurrence("loss", 3)]
    return [*events, *occurrence("cut", -1), *(last or occurrence("loss", 7))]


def lateness(events):
    config = {"limits": Limits().model_dump(), "impairments": IMPAIRMENTS}
    (gate,) = lateness_gates.gates(events, config)
    return gate


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


def sampler(folder, **changes):
    parts = {"queues": {"errors": 0}, "live": {"errors": 50, "last_error": "disk"}}
    facts = {"ticks": 900, "samples_lost": 9, "largest_gap_s": 0.1, "parts": parts, "problems": []}
    (folder / "samples").mkdir(exist_ok=True)
    (folder / "samples" / "sampler.json").write_text(json.dumps({**facts, **changes}))
    return folder


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


def test_a_queue_that_the_switch_s_socket_cannot_hold_is_found():
    shallow = SocketBuffers(sockets=5, send_bytes=425_984, receive_bytes=425_984).queue_bytes
    assert 150_000 < shallow < 1_000_000
    assert broken(switch_holds_bytes=shallow) == []
    assert broken(switch_holds_bytes=shallow, deepest_queue_bytes=1_000_000) == [
        "socket_buffer_bytes"
    ]


@pytest.mark.parametrize(
    ("probe_loss", "sent", "most"),
    [(0.0, 20, 0), (0.0199, 20, 6), (0.0975, 20, 10), (0.36, 20, 17), (0.36, 4, 4)],
)
def test_configured_loss_explains_as_many_lost_probes_as_chance_allows(probe_loss, sent, most):
    lossy = {"configured_probe_loss": probe_loss, "probes_sent": sent}
    assert most_lost_by_chance(path(**lossy)) == most / sent
    # The probability of more is at most 1e-6, and that of one
    # less is not.
    beyond = sum(
        math.comb(sent, lost) * probe_loss**lost * (1 - probe_loss) ** (sent - lost)
        for lost in range(most + 1, sent + 1)
    )
    assert beyond <= 1e-6
    assert broken([path(probes_lost=most, **lossy)]) == []
    if most < sent:
        assert broken([path(), path(probes_lost=most + 1, **lossy)]) == ["idle_loss"]


def test_the_gate_of_idle_loss_says_what_is_configured():
    gates = judged([path(probes_lost=15, configured_probe_loss=0.0975)])
    gate = next(gate for gate in gates if gate.key == "idle_loss")
    assert (gate.value, gate.limit) == (0.75, 0.5)
    assert "configured loss takes 0.0975 of round trips" in gate.note


def test_a_lossy_path_beside_a_broken_one_hides_nothing():
    lossy = path(probes_lost=5, configured_probe_loss=0.0975)
    assert broken([lossy, path(probes_lost=1)]) == ["idle_loss"]


@pytest.mark.parametrize("probes", [4, 20])
@pytest.mark.parametrize("jitters_s", [(0.001,), (0.004, 0.004)])
def test_round_trips_may_be_off_by_what_jitter_explains(probes, jitters_s):
    """The median of probes that drew their jitter on each link, there and back: never beyond."""
    draws = np.random.default_rng(3)
    both_ways = np.array([*jitters_s, *jitters_s])
    off_s = draws.uniform(-both_ways, both_ways, (100_000, probes, len(both_ways))).sum(axis=2)
    chance_s = median_chance_s(jitters_s, probes)
    medians_s = np.abs(np.median(off_s, axis=1))
    assert medians_s.max() < chance_s
    assert chance_s < 6 * medians_s.std() * 1.7
    near = path(configured_rtt_s=0.02, rtt_s=0.0219 + chance_s, rtt_chance_s=chance_s)
    assert "rtt_error" not in broken([near])
    far = path(configured_rtt_s=0.02, rtt_s=0.0221 + chance_s, rtt_chance_s=chance_s)
    assert broken([far]) == ["rtt_error"]
