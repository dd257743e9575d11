"""The gates: when the emulator, and not the protocol, was the limit, the run is invalid."""

import math

import pytest

from testbed.experiment import Limits
from testbed.lab.openvswitch import SocketBuffers
from testbed.verdict.calibration import Calibration, PathCalibration, frames_per_s
from testbed.verdict.conservation import Conservation, LinkLedger
from testbed.verdict.gates import judge, most_lost_by_chance, reasons
from testbed.verdict.processor_headroom import Headroom
from testbed.verdict.queue_calibration import QueueCalibration

LIMITS = Limits().model_dump()


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


def headroom(**changes):
    facts = {
        "duration_s": 10.0,
        "waited": {"ovs-vswitchd": 0.1},
        "others": 0.02,
        "stall_s": 0.004,
        "drift": 1e-8,
        "pressure": 0.4,
        "stolen": 0.0,
    }
    return Headroom(**{**facts, **changes})


def ledger(**changes):
    none = dict.fromkeys(
        (
            *("queue_drops", "filtered", "interface_drops", "delay_drops", "delay_lost"),
            *("socket_drops", "injected", "unexplained"),
        ),
        0,
    )
    own = {"link": "server--s1", "sender": "s1", "offered": None, "sent": 5000, "received": 5000}
    return LinkLedger(**{**none, **own, **changes})


def conserved(*links, quiet=True):
    return Conservation(links=list(links), switches=[], hosts=[], quiet=quiet, duration_s=10.0)


def judged(paths=None, queues=None, ledgers=None, headroom_of=None, events=(), **changes):
    arguments = {"deepest_queue_bytes": 150_000, "switch_holds_bytes": 44_000_000, **changes}
    return judge(
        {"limits": LIMITS},
        Calibration(paths=paths or [path()], queues=queues or [queue()]),
        ledgers if ledgers is not None else conserved(ledger()),
        headroom_of or headroom(),
        list(events),
        **arguments,
    )


def broken(*arguments, **keywords):
    return [gate.key for gate in judged(*arguments, **keywords) if gate.passed is False]


def test_a_faithful_lab_passes():
    gates = judged()
    assert all(gate.passed for gate in gates)
    assert reasons(gates) == ""


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rate_bps": 96e6}, "rate_error"),
        ({"rate_bps": 104e6}, "rate_error"),
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


def test_what_could_not_be_measured_is_no_silent_pass():
    gates = judged(queues=[queue(peak_bytes=None, reason="too deep")])
    unknown = [gate for gate in gates if gate.passed is None]
    assert [gate.key for gate in unknown] == ["queue_error"]
    assert "not checked" in reasons(gates)
    assert "too deep" in reasons(gates)
    moving = judged(ledgers=conserved(ledger(), quiet=False))
    assert [gate.key for gate in moving if gate.passed is None] == ["conservation"]


@pytest.mark.parametrize(("unexplained", "passed"), [(5, True), (6, False), (-6, False)])
def test_packets_that_vanish_or_multiply_are_found_and_named(unexplained, passed):
    gates = judged(ledgers=conserved(ledger(), ledger(link="a--b", unexplained=unexplained)))
    gate = next(gate for gate in gates if gate.key == "conservation")
    assert gate.passed is passed
    assert gate.where == "a--b from s1"


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"waited": {"controller": 0.01, "ovs-vswitchd": 0.4}}, ["cpu_wait"]),
        ({"others": 0.6, "pressure": 0.9}, ["cpu_others"]),
        ({"others": 0.6, "pressure": 0.1}, []),  # busy neighbours on a machine with room
        ({"stall_s": 0.2}, ["clock_stall_s"]),
        ({"drift": 0.01}, ["clock_drift"]),
    ],
)
def test_a_machine_that_was_not_there_is_found(changes, keys):
    assert broken(headroom_of=headroom(**changes)) == keys


def times(*late_s, action="begin"):
    return [
        {"name": "loss", "action": action, "planned_s": 5.0, "acknowledged_s": 5.0 + each}
        for each in late_s
    ]


@pytest.mark.parametrize("action", ["begin", "end"])
def test_of_a_few_impairments_the_latest_counts(action):
    assert broken(events=times(0.001, 0.009, action=action)) == []
    assert broken(events=times(0.001, 0.02, action=action)) == ["impairment_late_s"]


def test_of_many_impairments_one_in_a_hundred_may_be_late():
    assert broken(events=times(*[0.001] * 199, 0.5)) == []
    assert broken(events=times(*[0.001] * 197, 0.5, 0.5, 0.5)) == ["impairment_late_s"]


def test_a_queue_that_the_switch_s_socket_cannot_hold_is_found():
    shallow = SocketBuffers(sockets=5, send_bytes=425_984, receive_bytes=425_984).queue_bytes
    assert 150_000 < shallow < 1_000_000
    assert broken(switch_holds_bytes=shallow) == []
    assert broken(switch_holds_bytes=shallow, deepest_queue_bytes=1_000_000) == [""]


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


def arrivals(*, frame_s, count, kept):
    return [(number, number * frame_s) for number in range(count) if kept(number)]


def test_the_rate_of_a_lossy_path_is_that_before_its_losses():
    frame_s = 1514 * 8 / 100e6
    whole = arrivals(frame_s=frame_s, count=160, kept=lambda number: True)
    gappy = arrivals(frame_s=frame_s, count=160, kept=lambda number: number % 5 != 2)
    lossless = frames_per_s(whole, loss=0, delivered_share=1)
    assert lossless == pytest.approx(1 / frame_s)
    assert frames_per_s(gappy, loss=0.2, delivered_share=0.8) == pytest.approx(1 / frame_s)
    # Without a configured loss, frames that are missing make the path slower than configured.
    assert frames_per_s(gappy, loss=0, delivered_share=1) < 0.82 / frame_s
    # A narrow link behind a lossy one is full all the same: what arrives is its rate.
    assert frames_per_s(whole, loss=0.2, delivered_share=1) == pytest.approx(1 / frame_s)
    assert frames_per_s(whole[:1], loss=0.2, delivered_share=0.8) == 0
