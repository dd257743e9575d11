"""Dimensionless numbers against values worked out by hand, and durations against earlier runs."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from testbed import experiment
from testbed.experiment import EXPERIMENTS, dimensionless, durations
from testbed.run import runner
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import Verdict, write_json, write_status
from testbed.training import pace
from testbed.training.run_context import RunContext
from tests.experiment.small import write

# 3 workers share a link of 30 Mbit/s; with 1456 bytes of chunk a frame has 1514.
STAR = {"name": "star", "workers": 3, "rate_bps": 30_000_000, "queue_bytes": 75_000}
PACED = {"model": "small-cnn", "pace": {"kind": "paced", "compute_s": 1.0}}
CHUNKS = 139  # of the 50,311 floats of small-cnn on digits: 201,244 bytes
TRANSFER_S = CHUNKS * 1514 * 8 / 10e6


def load(folder: Path, **changes: Any) -> list[experiment.Run]:
    settings = {"topology": STAR, "training": PACED, "impairments": []}
    return experiment.load(write(folder, **{**settings, **changes}), seeds=1)


def numbers(run: experiment.Run) -> dimensionless.Numbers:
    return dimensionless.numbers(run, dimensionless.layout_of(run))


def test_numbers_are_those_worked_out_by_hand(tmp_path):
    dblp, tcp = map(numbers, load(tmp_path, topology={**STAR, "delay_s": 0.005}))
    assert dblp.chunks == CHUNKS
    # Two links with 5 ms each way make 20 ms; 30 Mbit/s times that are 75,000 bytes.
    assert dblp.rtt_over_transfer == pytest.approx(0.020 / TRANSFER_S)
    assert dblp.queue_over_bdp == pytest.approx(1.0)
    both_s = 2 * (0.592 * TRANSFER_S / 0.97 + 0.020)
    assert dblp.communication_share == pytest.approx(both_s / (1 + both_s))
    assert dblp.round_bytes == pytest.approx(2 * 3 * 0.592 * CHUNKS * 1514, abs=3)
    assert tcp.round_bytes == 2 * 3 * CHUNKS * 1514
    assert dblp.passes is None


def test_what_the_configuration_does_not_determine_is_none(tmp_path):
    (run, _) = load(tmp_path, training={"model": "small-cnn"})
    found = numbers(run)
    assert (found.queue_over_bdp, found.communication_share, found.rtt_over_transfer) == (
        None,
        None,
        0,
    )


@pytest.mark.parametrize(("q", "low", "high"), [(0.6, 10, 2), (0.8, 22, 5), (0.9, 46, 9)])
def test_passes_are_those_of_the_published_bound(tmp_path, q, low, high):
    # papers: ceil(ln P / ln q) for EfficientNet-B0's tolerances
    arms = {"fixed-low": {"protocol": "fixed-low"}, "dblp": {"protocol": "dblp"}}
    hit = [{"kind": "loss", "host": "server", "rounds": [3], "q": q}]
    assert [numbers(run).passes for run in load(tmp_path, arms=arms, impairments=hit)] == [
        low,
        high,
    ]


def test_drops_at_the_sender_take_passes_too_and_each_pays_its_price(tmp_path):
    priced = {"protocol": "fixed-low", "repair": {"name": "passes", "walk_s_per_chunk": 0.01}}
    arms = {"fixed-low": {"protocol": "fixed-low"}, "priced": priced}
    hit = [{"kind": "sender-drop", "rounds": [3], "q": 0.8, "at_most_s": 600}]
    free, dear = load(tmp_path, arms=arms, impairments=hit)
    assert numbers(dear).passes == numbers(free).passes == 22
    layout = dimensionless.layout_of(free)
    longer_s = dimensionless.run_s(dear, layout) - dimensionless.run_s(free, layout)
    # In each of ten rounds one walk a leg, past the 138 chunks that are needed.
    assert longer_s == pytest.approx(10 * 2 * 139 * 0.01 + 21 * CHUNKS * 0.01)


def test_a_rate_of_the_arm_s_own_makes_rounds_longer(tmp_path):
    slow = {"protocol": "dblp", "congestion_control": "fixed:rate_bps=1Mbit"}
    (run,) = load(tmp_path, arms={"slow": slow})
    layout = dimensionless.layout_of(run)
    needed_bytes = 0.592 * layout.chunk_count * 1500
    assert dimensionless.communication_s(run, layout) == pytest.approx(
        2 * needed_bytes * 8 / 1e6, rel=0.02
    )


def test_the_narrowest_link_decides(tmp_path):
    topology = {**STAR, "links": {"worker-2--s1": {"rate_bps": 5_000_000, "queue_bytes": 9_000}}}
    (run, _) = load(tmp_path, topology=topology)
    way = dimensionless.way_of(run.experiment.topology)
    assert (way.share_bps, way.rate_bps, way.queue_bytes) == (5e6, 5_000_000, 9_000)


def test_payloads_have_the_published_size_times_the_scale(tmp_path):
    section = {"model": "alexnet", "pace": {"kind": "payload-only"}}
    (run, _) = load(tmp_path, training=section)
    assert dimensionless.layout_of(run).element_count == 61_100_840
    section["pace"] = {"kind": "payload-only", "scale": 0.01}
    (run, _) = load(tmp_path, training=section)
    layout = dimensionless.layout_of(run)
    assert layout.element_count == pytest.approx(611_008, rel=1e-4)
    assert len(layout.tensors) == 16
    assert pace.scaled([("a", (3, 5)), ("b", (2,))], 0.1) == [("a", (2,)), ("b", (1,))]


def test_more_chunks_than_a_transfer_can_have_are_refused_in_one_line(tmp_path, monkeypatch):
    (run, _) = load(tmp_path)
    monkeypatch.setattr("testbed.transport.core.layout.MAX_CHUNKS", CHUNKS)
    assert dimensionless.layout_of(run).chunk_count == CHUNKS
    monkeypatch.setattr("testbed.transport.core.layout.MAX_CHUNKS", CHUNKS - 1)
    with pytest.raises(InputError, match=r"small\.yaml: transport\.chunk_bytes: .* 139 chunks"):
        dimensionless.layout_of(run)


def test_comparing_says_what_is_kept_and_how_much_the_rest_is_scaled(tmp_path):
    ours = [numbers(load(tmp_path)[0])]
    theirs = [numbers(load(tmp_path, topology={**STAR, "rate_bps": 60_000_000})[0])]
    assert dimensionless.compared(ours, theirs)["chunks"] == ("139", "139", "kept")
    shares = [each.communication_share or 0.0 for each in (*ours, *theirs)]
    shown = dimensionless.compared(ours, theirs)["communication_share"]
    expected = (f"{shares[0]:.3g}", f"{shares[1]:.3g}", f"scaled by {shares[0] / shares[1]:.3g}")
    assert shown == expected
    assert dimensionless.compared(ours, theirs)["queue_over_bdp"] == ("-", "-", "unknown")
    delayed = [numbers(load(tmp_path, topology={**STAR, "delay_s": 0.001})[0])]
    assert dimensionless.compared(ours, delayed)["rtt_over_transfer"][2].startswith("differs")


def test_a_run_is_predicted_from_its_rounds_and_bursts(tmp_path):
    (calm, _) = load(tmp_path)
    layout = dimensionless.layout_of(calm)
    one_round_s = 1.0 + 2 * 0.592 * TRANSFER_S / 0.97
    expected_s = dimensionless.LAB_S + 10 * one_round_s
    assert dimensionless.run_s(calm, layout) == pytest.approx(expected_s)
    hit = [{"kind": "loss", "rounds": [3, 5], "q": 0.5}]
    (hurt, _) = load(tmp_path, impairments=hit)
    longer_s = dimensionless.run_s(hurt, layout) - dimensionless.run_s(calm, layout)
    assert longer_s == pytest.approx(2 * 0.592 * TRANSFER_S)  # half is lost: twice as long
    hit[0]["at_most_s"] = 0.05
    (hurt, _) = load(tmp_path, impairments=hit)
    longer_s = dimensionless.run_s(hurt, layout) - dimensionless.run_s(calm, layout)
    assert longer_s == pytest.approx(0.1)


def test_earlier_runs_that_differ_in_the_seed_alone_replace_the_prediction(tmp_path):
    (first, other) = load(tmp_path)
    ended: list[tuple[experiment.Run, Verdict, float]]
    ended = [(first, "ok", 21.0), (other, "failed", 1.0)]
    for run, verdict, wall_s in ended:
        with runner.directory_of(tmp_path, run).open(run.config()) as directory:
            (directory / "large").write_bytes(bytes(3_000_000))
            write_status(directory, verdict, wall_s=wall_s)
    damaged = tmp_path / "small" / "x"
    damaged.mkdir()
    write_json(damaged / "status.json", {"verdict": "ok", "wall_s": 5})
    path = str(tmp_path / "small.yaml")
    runs = experiment.load(path, arms=["dblp"], seeds=3)
    found = durations.of_runs(tmp_path, [*runs, other], print)
    assert [(each.run_s, each.earlier) for each in found[:3]] == [(21.0, 1)] * 3
    assert found[0].disk_bytes == pytest.approx(3_000_000, rel=0.01)
    assert "about 21 s and 3.0 MB on disk" in durations.total(found[:1])
    assert found[3].earlier == 0
    changed = experiment.load(path, arms=["dblp"], overrides=["rounds=11"], seeds=1)
    assert durations.of_runs(tmp_path, changed, print)[0].earlier == 0
    assert durations.total(found).startswith("4 runs to do, about ")
    assert durations.total(found).endswith("(3 from earlier runs, 1 predicted)")


@pytest.mark.parametrize(
    ("runs_s", "said"),
    [
        ([None, None], "2 runs to do; how long is unknown: no time_limit_s is given"),
        (
            [None, 21.0],
            "2 runs to do, about 21 s for 1 of them (unknown where no time_limit_s is given) "
            "and 2.0 MB on disk (1 predicted)",
        ),
    ],
)
def test_an_unknown_time_is_no_0_s(runs_s, said):
    found = [durations.Duration(run_s=each, disk_bytes=2e6) for each in runs_s]
    assert durations.total(found) == said


def test_computing_is_part_of_the_time_where_the_pace_leaves_room_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(durations.os, "cpu_count", lambda: 2)

    def estimate(run: experiment.Run, *computing: float) -> float:
        monkeypatch.setattr(durations, "computing", lambda runs, say: [computing])
        return durations.of_runs(tmp_path, [run], print)[0].run_s or 0.0

    (real, _) = load(tmp_path, training={"model": "small-cnn", "evaluate_every": 4})
    # 3 workers on 2 processors: 1.5 times as long; 10 rounds, evaluated after 0, 4, 8 and the last.
    longer_s = estimate(real, 0.5, 2.0) - estimate(real, 0.0, 0.0)
    assert longer_s == pytest.approx(1.5 * (10 * 0.5 + 4 * 2.0))
    (paced, _) = load(tmp_path, training=PACED)
    none_s = estimate(paced, 0.0, 0.0)
    assert estimate(paced, 0.5, 0.0) == none_s  # 0.75 s fit into the second that is given
    assert estimate(paced, 2.0, 0.0) == pytest.approx(none_s + 10 * 2.0)


def test_computing_is_measured_on_the_runs_own_model(tmp_path):
    (small, _) = load(tmp_path, training={"model": "mlp", "batch_size": 4})
    (large, _) = load(tmp_path, training={"model": "small-cnn", "batch_size": 256})
    said: list[str] = []
    one, other, again = durations.computing([small, large, small], said.append)
    assert one is not None and other is not None
    assert 0 < one[0] * 2 < other[0]
    assert again is one
    assert len(said) == 2
    (payload, _) = load(tmp_path, training={"model": "mlp", "pace": {"kind": "payload-only"}})
    assert durations.computing([payload], said.append) == [(0.0, 0.0)]


def test_without_its_data_a_run_is_predicted_without_computing_and_says_so(tmp_path):
    data = {
        "model": "small-cnn",
        "dataset": {"name": "cifar10", "directory": str(tmp_path / "none")},
    }
    (run, _) = load(tmp_path, training=data)
    (found,) = durations.of_runs(tmp_path, [run], print)
    assert not found.computing
    assert found.run_s is not None and found.run_s > 0


@pytest.mark.parametrize(
    ("arm", "measured_bytes"),
    [
        # Runs of `quick` as they were stored: 60 rounds, 3 workers, 100 Mbit/s.
        ("fixed-low", 1_829_546),
        ("dblp", 1_675_077),
        ("tcp-cubic", 1_173_816),
    ],
)
def test_the_predicted_size_is_near_what_was_measured(arm, measured_bytes, tmp_path, monkeypatch):
    (run,) = experiment.load("quick", arms=[arm], seeds=1)
    monkeypatch.setattr(durations, "computing", lambda runs, say: [(0.0, 0.0)])
    (found,) = durations.of_runs(tmp_path, [run], print)
    assert found.disk_bytes == pytest.approx(measured_bytes, rel=0.3)


@pytest.mark.parametrize("side", [8, 32])
def test_the_payload_of_glyphs_is_that_of_the_run_without_rendering_them(side):
    size = ["training.dataset.size=500", f"training.dataset.side={side}"]
    run = experiment.load("accuracy", arms=["none"], overrides=size, seeds=1)[0]
    hosts = run.experiment.topology.host_names()
    of_run = RunContext.without_network(run.config(), hosts).layout
    assert dimensionless.layout_of(run).element_count == of_run.element_count


@pytest.mark.parametrize("name", ["scale", "fan-in", "lab-and-simulator-simulated"])
def test_a_simulation_takes_about_as_long_as_is_predicted(name):
    """Beside what kept results took, on machines that others used: within a factor of three."""
    folder = EXPERIMENTS / "results" / name
    planned = map(json.loads, (folder / "plan.jsonl").read_text().splitlines())
    kept = {(each["arm"], each["seed"], str(each["factors"])): each["key"] for each in planned}
    with (folder / "attempts.csv").open() as table:
        wall_s = {row["run_key"]: float(row["wall_s"]) for row in csv.DictReader(table)}
    took_s = {what: wall_s[key] for what, key in kept.items()}
    runs = [run.in_virtual_time() for run in experiment.load(name.removesuffix("-simulated"))]
    of_seed = {
        what: run
        for run in runs
        if (what := (run.arm, run.seed, str(run.factors))) in took_s and run.seed == runs[0].seed
    }
    found = durations.of_runs(Path("nowhere"), list(of_seed.values()), lambda line: None)
    ratios = [
        each.run_s / took_s[what] for what, each in zip(of_seed, found, strict=True) if each.run_s
    ]
    assert len(ratios) > 3
    assert 1 / 3 < statistics.geometric_mean(ratios) < 3
    assert min(ratios) > 1 / 6 and max(ratios) < 6, ratios
