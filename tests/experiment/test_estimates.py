"""Numbers of a run, and its duration, against values worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from testbed import experiment
from testbed.experiment import estimates
from testbed.experiment.estimates import Prediction
from testbed.shared.input_error import InputError
from testbed.training import models
from testbed.training.state import RunContext
from tests.experiment.small import write

# 3 workers share a link of 30 Mbit/s; with 1456 bytes of chunk a frame has 1514.
STAR = {"name": "star", "workers": 3, "rate_bps": 30_000_000, "queue_bytes": 75_000}
PACED = {"model": "small-cnn", "pace": {"kind": "paced", "compute_s": 1.0}}
CHUNKS = 139  # of the 50,311 floats of small-cnn on digits: 201,244 bytes
TRANSFER_S = CHUNKS * 1514 * 8 / 10e6


def load(folder: Path, **changes: Any) -> list[experiment.Run]:
    settings = {"topology": STAR, "training": PACED, "impairments": []}
    return experiment.load(write(folder, **{**settings, **changes}), seeds=1)


def test_numbers_are_those_worked_out_by_hand(tmp_path):
    runs = load(tmp_path, topology={**STAR, "delay_s": 0.005})
    dblp, tcp = (Prediction(run).numbers for run in runs)
    assert dblp.chunks == CHUNKS
    # Two links with 5 ms each way make 20 ms; 30 Mbit/s times that are 75,000 bytes.
    assert dblp.rtt_over_transfer == pytest.approx(0.020 / TRANSFER_S)
    assert dblp.queue_over_bdp == pytest.approx(1.0)
    both_s = 2 * (0.592 * TRANSFER_S / 0.97 + 0.020)
    assert dblp.communication_share == pytest.approx(both_s / (1 + both_s))
    assert dblp.round_bytes == pytest.approx(2 * 3 * 0.592 * CHUNKS * 1514, abs=3)
    assert tcp.round_bytes == 2 * 3 * CHUNKS * 1514
    assert dblp.passes is None
    (run, _) = load(tmp_path, training={"model": "small-cnn"})
    numbers = Prediction(run).numbers  # what the configuration does not determine is None
    assert (numbers.queue_over_bdp, numbers.communication_share) == (None, None)
    assert numbers.rtt_over_transfer == 0
    (run, _) = load(tmp_path, training={"model": "small-cnn"}, simulation={"compute_s": 1})
    simulated = Prediction(run.in_virtual_time()).numbers
    assert simulated.communication_share and Prediction(run).numbers == numbers


def test_what_keep_leaves_out_does_not_travel(tmp_path):
    arms = {name: {"protocol": name, "keep": 0.1} for name in ("dblp", "none", "tcp-cubic")}
    hit = [{"kind": "loss", "rounds": [3], "q": 0.5, "at_most_s": 600}]
    delayed = {**STAR, "delay_s": 0.005}
    numbers = [
        Prediction(run).numbers
        for run in load(tmp_path, arms=arms, impairments=hit, topology=delayed)
    ]
    kept = 14  # of 139
    assert [of_arm.chunks for of_arm in numbers] == 3 * [kept]
    assert numbers[0].rtt_over_transfer == pytest.approx(0.020 * CHUNKS / kept / TRANSFER_S)
    assert numbers[0].round_bytes == pytest.approx(2 * 3 * 0.592 * kept * 1514, abs=3)
    assert [of_arm.round_bytes for of_arm in numbers[1:]] == 2 * [2 * 3 * kept * 1514]
    assert [of_arm.passes for of_arm in numbers] == [2, 4, None]  # 14 x 0.5^4 is less than one


@pytest.mark.parametrize("kind", ["loss", "sender-drop"])
@pytest.mark.parametrize(("q", "low", "high"), [(0.6, 10, 2), (0.8, 22, 5), (0.9, 46, 9)])
def test_passes_are_those_of_the_published_bound(tmp_path, kind, q, low, high):
    # papers: ceil(ln P / ln q) for EfficientNet-B0's tolerances
    arms = {"fixed-low": {"protocol": "fixed-low"}, "dblp": {"protocol": "dblp"}}
    hit = [{"kind": kind, "rounds": [3], "q": q, "at_most_s": 600}]
    runs = load(tmp_path, arms=arms, impairments=hit)
    assert [Prediction(run).numbers.passes for run in runs] == [low, high]


def test_the_narrowest_link_decides(tmp_path):
    slow = {"rate_bps": 5_000_000, "queue_bytes": 9_000}
    topology = {**STAR, "delay_s": 0.005, "links": {"worker-2--s1": slow}}
    (run, _) = load(tmp_path, topology=topology)
    numbers = Prediction(run).numbers
    assert numbers.rtt_over_transfer == pytest.approx(0.020 / (2 * TRANSFER_S))
    assert numbers.queue_over_bdp == pytest.approx(9_000 / (5e6 * 0.020 / 8))


def test_payloads_have_the_published_size_times_the_scale(tmp_path):
    section = {"model": "alexnet", "pace": {"kind": "payload-only"}}
    (run, _) = load(tmp_path, training=section)
    assert Prediction(run).layout.element_count == 61_100_840
    section["pace"] = {"kind": "payload-only", "scale": 0.01}
    (run, _) = load(tmp_path, training=section)
    layout = Prediction(run).layout
    assert layout.element_count == pytest.approx(611_008, rel=1e-4)
    assert len(layout.tensors) == 16
    assert models.scaled([("a", (3, 5)), ("b", (2,))], 0.1) == [("a", (2,)), ("b", (1,))]


def test_more_chunks_than_a_transfer_can_have_are_refused_in_one_line(tmp_path, monkeypatch):
    (run, _) = load(tmp_path)
    monkeypatch.setattr("testbed.transport.layout.MAX_CHUNKS", CHUNKS - 1)
    with pytest.raises(InputError, match=r"small\.yaml: transport\.chunk_bytes: .* 139 chunks"):
        Prediction(run)
    monkeypatch.setattr("testbed.transport.layout.MAX_CHUNKS", CHUNKS)
    assert Prediction(run).layout.chunk_count == CHUNKS


def test_a_run_is_predicted_from_its_rounds_and_bursts(tmp_path):
    calm_s = 10 * (1.0 + 2 * 0.592 * TRANSFER_S / 0.97)
    hit = {"kind": "loss", "rounds": [3, 5], "q": 0.5}
    # Half is lost: twice as long, unless the burst ends before.
    for impairments, longer_s in (
        ([], 0.0),
        ([hit], 2 * 0.592 * TRANSFER_S),
        ([{**hit, "at_most_s": 0.05}], 0.1),
    ):
        (run, _) = load(tmp_path, impairments=impairments)
        assert Prediction(run).training_s == pytest.approx(calm_s + longer_s)


def test_the_time_of_all_runs_is_said_in_one_sentence(tmp_path):
    runs = load(tmp_path)
    about = estimates.in_words(sum(Prediction(run).training_s + 3.8 for run in runs))
    assert estimates.total(runs) == f"2 runs to do, about {about}"
    real = load(tmp_path, training={"model": "small-cnn"})
    assert estimates.total(real[:1]).endswith(" (computing not counted)")
    assert estimates.total([run.in_virtual_time() for run in runs]).endswith("how long is unknown")


def test_the_payload_of_glyphs_is_that_of_the_run_without_rendering_them():
    size = ["training.dataset.size=500", "training.dataset.side=8"]
    run = experiment.load("every-rival", arms=["dblp"], overrides=size, seeds=1)[0]
    hosts = run.experiment.topology.host_names()
    of_run = RunContext.without_network(run.config(), hosts).layout
    assert Prediction(run).layout.element_count == of_run.element_count
