"""The gates: when the emulator, and not the protocol, was the limit, the run is invalid."""

import json

import pytest

from testbed.gates import judge
from testbed.lab.calibration import PathCalibration
from testbed.lab.openvswitch import SocketBuffers

CONFIG = {
    "limits": {"rate_error": 0.1, "impairment_late_s": 0.01},
    "topology": {"queue_bytes": 150_000},
}


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


def broken(tmp_path, *paths, holds_bytes=44_000_000, config=CONFIG):
    findings = judge(tmp_path, config, paths or [path()], switch_holds_bytes=holds_bytes)
    return [gate.name for gate in findings if not gate.passed]


def test_a_faithful_lab_passes(tmp_path):
    assert broken(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"rate_bps": 85e6}, "calibrated rate error"),
        ({"rate_bps": 115e6}, "calibrated rate error"),
        ({"probes_lost": 1}, "probes lost on the idle network"),
    ],
)
def test_one_bad_path_is_enough(tmp_path, changes, name):
    assert broken(tmp_path, path(), path(**changes)) == [name]


@pytest.mark.parametrize(("late_s", "passed"), [(0.009, True), (0.02, False)])
def test_a_late_impairment_is_found(tmp_path, late_s, passed):
    events = tmp_path / "events"
    events.mkdir()
    begin = {"action": "begin", "planned_s": 5.0, "acknowledged_s": 5.0 + late_s}
    end = {"action": "end", "planned_s": 6.0, "acknowledged_s": 9.0}
    lines = [json.dumps(each) for each in (begin, end)]
    (events / "impairments.jsonl").write_text("\n".join(lines) + "\n")
    assert (broken(tmp_path) == []) is passed


def test_a_queue_that_the_switch_s_socket_cannot_hold_is_found(tmp_path):
    deep = {**CONFIG, "topology": {"queue_bytes": 1_000_000}}
    assert broken(tmp_path, config=deep) == []
    shallow = SocketBuffers(sockets=5, send_bytes=425_984, receive_bytes=425_984).queue_bytes
    assert 150_000 < shallow < 1_000_000
    assert broken(tmp_path, holds_bytes=shallow) == []
    assert broken(tmp_path, holds_bytes=shallow, config=deep) == [
        "queue bytes that the switch's socket buffer cannot hold"
    ]
