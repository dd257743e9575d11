"""Impairments in virtual time: what they do to packets whose fate can be counted by hand."""

import json

import numpy as np
import pytest

import topologies
from controllers import impairments
from controllers.impairments.loss import LossParameters
from testbed.lab.loss_table import LossModel, drawn
from testbed.run.simulated_impairments import SimulatedAccess, SimulatedController
from testbed.run.simulated_network import SimulatedNetwork, describe
from testbed.simulate.engine import Simulation
from tests.simulate.trains import SIZE_BYTES, Sinks, feed

RATE_BPS, DELAY_S = 8_000_000, 0.001
SERVICE_S = SIZE_BYTES * 8 / RATE_BPS  # a millisecond
STAR = {
    "name": "star",
    "workers": 2,
    "rate_bps": RATE_BPS,
    "delay_s": DELAY_S,
    "queue_bytes": 50 * SIZE_BYTES,
}
DUMBBELL = {**STAR, "name": "dumbbell"}


BEGINS_S = 1.0


class Scene:
    """A network with impairments, which all begin with round 0's gather, at `BEGINS_S`.

    Other times count from there.
    """

    def __init__(self, folder, topology, *entries, rounds=1):
        self.simulation = Simulation()
        self.network = SimulatedNetwork(
            self.simulation, describe(topologies.parse(topology)), seed=1, delays_change=True
        )
        resolved = [
            impairments.parameters_of(entry["kind"])
            .model_validate({"rounds": [0], **entry} if "at_s" not in entry else entry)
            .resolved(seed=1, rounds=rounds)
            for entry in entries
        ]
        (folder / "events").mkdir()
        access = SimulatedAccess(
            self.simulation, self.network, records=folder / "events", shared=folder
        )
        self._log = folder / "events" / "impairments.jsonl"
        self.ways = self.network.ways(["worker-1", "worker-2"])
        self.controller = SimulatedController(self.simulation, resolved, access, self._log)
        self.sinks = Sinks()

    def feed(self, worker, count, *, back=False, gap_s=SERVICE_S, at_s=0.0, source=0, length=16):
        links = self.ways[worker][back].links
        times_s = BEGINS_S + at_s + np.arange(count) * gap_s
        feed(self.simulation, links, times_s, self.sinks, source=source, length=length)

    def at(self, time_s, action):
        self.simulation.at(BEGINS_S + time_s, action)

    def run(self, *, ends_s=10.0):
        self.at(0, lambda: self.controller.begin(0, "gather"))
        self.at(ends_s, lambda: self.controller.end(0, "gather"))
        self.simulation.run()
        self.controller.finish()
        self.controller.close()
        return self

    def came(self, source=0):
        return [number for of, number in self.sinks.in_order[0] if of == source]

    def times_s(self, source=0):
        everybody = zip(*self.sinks.in_order, strict=True)
        return np.array([time_s - BEGINS_S for (of, _), time_s in everybody if of == source])

    @property
    def ended(self):
        records = [json.loads(line) for line in self._log.read_text().splitlines()]
        return {record["name"]: record for record in records if record["action"] == "end"}


@pytest.mark.parametrize("length", [1, 16])
def test_a_loss_at_a_switch_port_hits_all_that_passes_it_in_order(tmp_path, length):
    """Both workers' datagrams cross the middle; they are counted together, as they come."""
    entry = {"kind": "loss", "q": 0.2, "seed": "7", "link": ["left", "right"]}
    lost = drawn(LossModel(loss_good=0.2), "7").losses(0, 40).tolist()
    scene = Scene(tmp_path, DUMBBELL, entry)
    scene.feed("worker-1", 20, gap_s=2 * SERVICE_S, length=length)
    scene.feed("worker-2", 20, gap_s=2 * SERVICE_S, at_s=SERVICE_S, source=1, length=length)
    scene.feed("worker-1", 20, back=True, source=2)  # the other direction meets nothing
    scene.run()
    # They alternate: of the first worker are the 0th, 2nd, ... to pass.
    assert {number % 2 for number in lost} == {0, 1}
    assert scene.came(0) == [number for number in range(20) if 2 * number not in lost]
    assert scene.came(1) == [number for number in range(20) if 2 * number + 1 not in lost]
    assert scene.came(2) == list(range(20))
    (record,) = scene.ended.values()
    assert (record["met"], record["dropped"], record["details"]["planned"]) == (
        40,
        *[len(lost)] * 2,
    )


def test_bursts_of_loss_come_from_the_lab_s_own_table(tmp_path):
    entry = {
        "kind": "loss",
        "p_good_to_bad": 0.05,
        "p_bad_to_good": 0.3,
        "link": ["left", "right"],
    }
    scene = Scene(tmp_path, DUMBBELL, entry)
    scene.feed("worker-1", 900, length=64)
    scene.run()
    resolved = LossParameters.model_validate({"rounds": [0], **entry}).resolved(seed=1, rounds=1)
    table = LossParameters.model_validate(resolved).table
    lost = set(table.losses(0, 900).tolist())
    assert len(lost) > 50
    assert scene.came() == [number for number in range(900) if number not in lost]


def test_a_burst_fills_the_port_to_its_last_byte(tmp_path):
    """A frame a millisecond would pass; the burst brings two in that time, a clump at once."""
    entry = {"kind": "burst", "host": "server", "rate_factor": 2.0, "duration_s": 0.2}
    scene = Scene(tmp_path, STAR, {**entry, "frame_bytes": SIZE_BYTES})
    scene.feed("worker-1", 150, gap_s=2 * SERVICE_S, at_s=-0.0013)
    scene.run()
    record = scene.ended["burst-server"]
    assert record["frames_sent"] == record["met"] == 399
    # A ledger: arrivals at the port, datagrams from 0.7 ms on every 2 ms, clumps of three.
    came = [(0.0007 + 0.002 * number, 1) for number in range(150)]
    came += [(number * 0.0015, 3) for number in range(133)]
    free_s, passed = 0.0, {1: 0, 3: 0}
    for at_s, count in sorted(came):
        for _ in range(count):
            if max(0.0, free_s - at_s) / SERVICE_S + 1 <= 50 + 1e-9:
                free_s = max(free_s, at_s) + SERVICE_S
                passed[count] += 1
    port = scene.network.links["s1", "server"]
    assert record["dropped"] == 399 - passed[3] > 100
    assert len(scene.came()) == passed[1] < 150
    assert port.dropped == 399 - passed[3] + 150 - passed[1]


def test_a_queue_s_rate_and_limit_change_for_a_while(tmp_path):
    entry = {"kind": "queue", "host": "server", "rate_bps": RATE_BPS // 4, "duration_s": 0.1}
    scene = Scene(tmp_path, STAR, {**entry, "queue_bytes": 4 * SIZE_BYTES})
    scene.feed("worker-1", 200, at_s=-0.002)  # the first is at the port at time 0
    scene.run()
    port = scene.network.links["s1", "server"]
    # In 100 ms, 100 come; 25 leave, and three wait beside the one in service.
    record = scene.ended["queue-server"]
    assert record["met"] == pytest.approx(100, abs=1)
    assert record["dropped"] == pytest.approx(100 - 25 - 3, abs=1)
    assert port.dropped == record["dropped"]
    assert len(scene.came()) == 200 - port.dropped
    assert record["details"] == {"rate_bps": RATE_BPS // 4, "queue_bytes": 4 * SIZE_BYTES}
    assert port.rate_bps == RATE_BPS


def test_a_trace_is_played_change_by_change(tmp_path):
    changes = {
        "t_s": [0.0, 0.1, 0.2],
        "rate_bps": [RATE_BPS, RATE_BPS // 2, RATE_BPS],
        "delay_s": [0.001, 0.02, 0.005],
    }
    entry = {"kind": "trace", "link": ["s1", "server"], "changes": changes, "length_s": 0.3}
    scene = Scene(tmp_path, STAR, {**entry, "at_s": [0.0]})
    scene.feed("worker-1", 350, gap_s=2 * SERVICE_S, at_s=-0.002)
    scene.run()
    assert len(scene.came()) == 350
    when_s = scene.times_s()
    sent_s = np.arange(350) * 0.002  # when each is at the port
    waited_ms = np.round((when_s - sent_s) * 1e3, 3)
    assert set(waited_ms[1:50]) == {1 + 1.0}
    assert set(waited_ms[51:90]) == {2 + 20.0}
    # Those of the shorter delay do not overtake the last of the longer one.
    assert np.all(np.diff(when_s) >= 0)
    assert set(waited_ms[115:150]) == {1 + 5.0}
    assert set(waited_ms[175:]) == {1 + 1.0}  # it is over after 0.3 s
    lines = (tmp_path / "events" / "traces.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["made_s"] for record in records] == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert [record["rate_bps"] for record in records] == [
        RATE_BPS,
        RATE_BPS // 2,
        RATE_BPS,
        RATE_BPS,
    ]


def test_a_delay_holds_for_a_while_in_one_direction_and_loses_and_reorders_nothing(tmp_path):
    """Also none in place of the link's own, and none of it in its jitter."""
    common = {"kind": "delay", "link": ["s1", "server"], "duration_s": 0.1}
    scene = Scene(
        tmp_path,
        STAR,
        {**common, "name": "long", "at_s": [0.0], "delay_s": 0.02},
        {**common, "name": "uneven", "at_s": [0.2], "delay_s": 0.02, "jitter_s": 0.008},
        {**common, "name": "none", "at_s": [0.4], "delay_s": 0.0},
    )
    scene.feed("worker-1", 300, gap_s=2 * SERVICE_S, at_s=-0.002)
    scene.feed("worker-1", 300, gap_s=2 * SERVICE_S, at_s=-0.002, back=True, source=1)
    scene.run()
    assert scene.came() == scene.came(1) == list(range(300))
    waited_ms = np.round((scene.times_s() - np.arange(300) * 0.002) * 1e3, 3)
    assert set(waited_ms[1:49]) == {1 + 20.0}
    assert set(waited_ms[70:99]) == {1 + 1.0}
    uneven_ms = waited_ms[110:149] - 1
    assert 12 <= uneven_ms.min() < uneven_ms.max() <= 28
    assert set(waited_ms[201:249]) == {1 + 0.0}
    assert set(waited_ms[251:]) == {1 + 1.0}
    assert [record["met"] for record in scene.ended.values()] == pytest.approx([50] * 3, abs=1)
    assert scene.ended["uneven"]["details"] == {"delay_s": 0.02, "jitter_s": 0.008}
    # The other direction never waited longer.
    assert len(set(np.round(np.diff(scene.times_s(1)), 6))) == 1


def test_a_straggler_s_link_is_slow_both_ways(tmp_path):
    entry = {"kind": "straggler", "host": "worker-1", "resource": "link", "factor": 4}
    scene = Scene(tmp_path, STAR, {**entry, "leg": "gather"})
    scene.feed("worker-1", 20, at_s=1e-9)
    scene.feed("worker-1", 20, back=True, source=1, at_s=1e-9)
    scene.feed("worker-2", 20, source=2, at_s=1e-9)
    scene.run(ends_s=0.5)
    slow_s = 20 * 4 * SERVICE_S + SERVICE_S + 2 * DELAY_S
    assert scene.times_s(0)[-1] == pytest.approx(slow_s, abs=SERVICE_S)
    assert scene.times_s(1)[-1] == pytest.approx(slow_s, abs=1e-8)
    assert scene.times_s(2)[-1] < slow_s / 2
    assert scene.ended["straggler-worker-1"]["met"] == 40
