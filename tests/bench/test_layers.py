"""`bench layers`: losses of tensors, the rule and its ladder, the file, and plot's use of it."""

import functools
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from testbed import experiment
from testbed.bench import layers, rates
from testbed.cli.verbs import app
from testbed.run import planning
from testbed.shared.yaml_input import InputError
from testbed.training.state import Replica, RunContext
from testbed.transport import PayloadLayout
from testbed.transport.tolerance import Fixed, PerLayer
from tests.experiment.small import write

SMALL: dict[str, Any] = {
    "rounds": 4,
    "impairments": [],
    "training": {
        "model": "mlp",
        "dataset": "digits",
        "batch_size": 16,
        "evaluate_on": "validation",
        "pace": {"kind": "paced", "compute_s": 0.001},
    },
    "phases": {"detector": "never-critical"},
    "arms": {"none": {"protocol": "none"}},
}


@pytest.fixture
def small(tmp_path):
    return functools.partial(write, tmp_path, **SMALL)


# What is lost.

# Chunks of 4 elements: a lies in chunks 0 and 1, b in 1 to 4, c in 4 and 5.
LAYOUT = PayloadLayout([("a", 6), ("b", 12), ("c", 4)], chunk_bytes=16)


def gone(share, *, draw=(1, 0, 0)):
    gradient = np.ones(LAYOUT.element_count, dtype=np.float32)
    count = layers.lose(gradient, layers.parts(LAYOUT, {"b": ["b"]}, {"b": share}), draw)
    lost = set(np.flatnonzero(gradient == 0).tolist())
    assert count == len(lost)
    return lost


def test_a_tensor_loses_whole_chunks_up_to_its_share_and_others_nothing():
    parts = [{6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}, {16, 17}]
    for seed in range(20):
        for share in (0.1, 0.4, 0.6):
            lost = gone(share, draw=(seed, 0, 0))
            assert len(lost) <= share * 12
            assert all(part <= lost or not part & lost for part in parts)
            assert lost <= set(range(6, 18))
    assert gone(0.1) == set()  # a part has 2 elements, and this is less


def test_what_is_lost_differs_between_rounds_and_grows_with_the_share():
    assert len({frozenset(gone(0.4, draw=(1, number, 0))) for number in range(9)}) > 3
    for seed in range(10):
        assert gone(0.4, draw=(seed, 0, 0)) <= gone(0.8, draw=(seed, 0, 0))


def test_tensors_of_less_than_ten_chunks_lose_together():
    layout = PayloadLayout([("w", 40), ("bias", 3), ("v", 39), ("head", 41)], chunk_bytes=16)
    assert layers.groups(layout) == {"w": ["w"], "head": ["head"], "small": ["bias", "v"]}


# The rule.


def trained(values, *, lost=0.1, metric="accuracy"):
    return [{"value": value, "lost": lost, "metric": metric} for value in values]


def test_a_share_holds_if_the_interval_s_lower_end_is_within_the_margin():
    without, lossy = trained([0.9, 0.8, 0.7]), trained([0.89, 0.78, 0.67])
    rung = layers.finding(0.4, lossy, without, margin=0.0369)
    assert rung["differences"] == pytest.approx([-0.01, -0.02, -0.03])
    assert rung["mean"] == pytest.approx(-0.02)
    # Student's t for two degrees of freedom, 95 % on one side.
    assert rung["low"] == pytest.approx(-0.02 - 2.919986 * 0.01 / 3**0.5)
    assert rung["holds"]
    assert not layers.finding(0.4, lossy, without, margin=0.0368)["holds"]


def test_noise_and_divergence_do_not_hold_and_a_perplexity_is_better_where_it_is_smaller():
    whole = trained([0.9, 0.9])
    assert layers.finding(0.1, trained([0.9, 0.9]), whole, margin=0.01)["holds"]
    assert not layers.finding(0.1, trained([0.85, 0.95]), whole, margin=0.01)["holds"]
    diverged = layers.finding(0.1, trained([0.9, None]), whole, margin=1)
    assert (diverged["mean"], diverged["low"], diverged["holds"]) == (None, None, False)
    worse, better = (trained([value] * 2, metric="perplexity") for value in (11, 10))
    assert layers.finding(0.1, worse, better, margin=1)["mean"] == pytest.approx(-np.log(1.1))


def test_a_ladder_ends_where_a_share_does_not_hold_and_counts_only_what_was_lost():
    climbed = [
        {"share": share, "lost": 0.1, "holds": holds}
        for share, holds in ((0.1, True), (0.2, False), (0.4, True))
    ]
    assert (layers.bound(climbed), layers.bound(climbed[1:])) == (0.1, 0)
    assert layers.bound([climbed[0] | {"lost": 0.0}, climbed[1]]) == 0


def test_each_group_climbs_until_it_fails_and_all_are_tried_together(small):
    base = layers.without_loss(experiment.load(small()))
    breaks = {"1.weight": 0.4, "3.weight": 0.1}
    asked = []

    def learn(trials):
        asked.append([(trial["shares"], trial["seed"]) for trial in trials])
        fails = (
            any(share >= breaks.get(group, 1) for group, share in trial["shares"].items())
            for trial in trials
        )
        return trained([0.5 if fail else 0.9 for fail in fails])

    profile = layers.climb(base, learn, margin=0.01)
    groups = profile["measured"]
    assert [group["group"] for group in groups] == ["1.weight", "3.weight", "small"]
    assert [len(group["rungs"]) for group in groups] == [3, 1, 5]
    assert asked[0] == [({}, 1), ({}, 2)]
    assert asked[2] == [({group: 0.2}, seed) for group in ("1.weight", "small") for seed in (1, 2)]
    assert asked[-1][0] == ({"1.weight": 0.2, "3.weight": 0, "small": 0.8}, 1)
    tensors = profile["tensors"]
    assert (tensors["1.weight"], tensors["3.weight"], tensors["1.bias"]) == (0.2, 0, 0.8)
    assert [group["at_least"] for group in groups] == [False, False, True]


# The training.


def test_without_loss_it_learns_what_the_simulated_run_learns(small):
    path = small()
    (trial, _) = layers.without_loss(experiment.load(path))
    record = layers.train(trial)
    config = experiment.load(path)[0].in_virtual_time().config()
    assert record["value"] == rates.train({"config": config})["value"]
    assert record == layers.train(trial)


def test_the_group_alone_loses_its_share_of_each_worker_s_gradient(small, monkeypatch):
    (trial, _) = layers.without_loss(experiment.load(small()))
    layout = RunContext.without_network(trial["config"], trial["hosts"]).layout
    (first, *_) = layers.groups(layout)
    means = []
    apply = Replica.apply

    def spy(self, update, learning_rate):
        means.append(update.copy())
        apply(self, update, learning_rate)

    monkeypatch.setattr(Replica, "apply", spy)
    layers.train(trial)
    assert 0.4 < layers.train(trial | {"shares": {first: 0.5}})["lost"] <= 0.5
    whole, torn = means[0], means[len(means) // 2]  # of the first round
    count = dict(layout.tensors)[first]
    assert np.array_equal(whole[count:], torn[count:])
    assert not np.array_equal(whole[:count], torn[:count])


def test_what_cannot_be_profiled_is_refused(small, tmp_path):
    arms = {"a": {"protocol": "none"}, "b": {"protocol": "none", "learning_rate": 0.1}}
    for changes, seeds, file, message in (
        ({"training": {"pace": {"kind": "payload-only"}}}, None, None, "layers: nothing is learnt"),
        ({}, 1, None, "--seeds 1: no spread is known; valid: at least 2"),
        ({"arms": arms}, None, None, "train differently; valid: one task, chosen with --arms"),
        ({}, None, tmp_path / "x.json", r"x\.json: valid: a name that ends in \.yaml or \.yml"),
    ):
        with pytest.raises(InputError, match=message):
            layers.run(experiment.load(small(**changes), seeds=seeds), margin=0.01, file=file)


# The file, and the arm that takes it.


@pytest.fixture
def profiled(small, tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "trained", lambda train, trials: [*map(train, trials)])
    file = tmp_path / "layers.yaml"
    options = ["--seeds", "2", "--margin", "0.9", "--out", str(file)]
    done = CliRunner().invoke(app, ["bench", "layers", small(), *options])
    assert done.exit_code == 0, done.output
    return file, done.output


def test_the_verb_writes_bounds_and_how_they_were_measured(profiled):
    file, output = profiled
    document = yaml.safe_load(file.read_text())
    assert document["profile"]["seeds"] == [1001, 1002]
    assert document["profile"]["rounds"] == 4
    assert document["profile"]["margin"] == 0.9
    assert document["profile"]["commit"]
    assert len(document["without_loss"]) == 2
    # With this margin every rung holds.
    assert set(document["tensors"].values()) == {0.8}
    for group in document["measured"]:
        assert [rung["share"] for rung in group["rungs"]] == [0.1, 0.2, 0.4, 0.6, 0.8]
        assert all(rung["holds"] and len(rung["differences"]) == 2 for rung in group["rungs"])
        assert all(rung["lost"] <= rung["share"] for rung in group["rungs"])
    assert document["together"]["holds"]
    printed = yaml.safe_load(output.rpartition("profile: ")[0])
    assert printed == {key: document[key] for key in printed} and "tensors" in printed


def test_an_arm_takes_the_file_and_its_key_is_that_of_the_bounds(profiled, small):
    file, _ = profiled
    bounds = yaml.safe_load(file.read_text())["tensors"]

    def key(tensors):
        arms = {"plot": {"protocol": "plot", "tensors": tensors}}
        run = experiment.load(small(arms=arms))[0]
        assert isinstance(run.protocol.gather, PerLayer)
        assert (run.protocol.gather.default, run.protocol.broadcast) == (0, Fixed(0))
        return run.key

    first = key("./layers.yaml")
    assert first == key(bounds) == key(str(file))
    file.rename(file.with_name("other.yaml"))
    assert first == key("other.yaml")
    other = file.with_name("other.yaml")
    other.write_text(other.read_text().replace("1.weight: 0.8", "1.weight: 0.7"))
    assert first != key("other.yaml")


def test_a_profile_whose_bounds_do_not_hold_together_is_told_and_taken(profiled, small, tmp_path):
    file, _ = profiled
    arms = {"plot": {"protocol": "plot", "tensors": "layers.yaml"}, "none": {"protocol": "none"}}
    path = small(arms=arms)
    runs = experiment.load(path)
    assert planning.check(tmp_path / "out", runs) == []
    document = yaml.safe_load(file.read_text())
    document["together"]["holds"] = False
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    again = experiment.load(path)
    assert [run.key for run in again] == [run.key for run in runs]
    caution = "by its own measurement each bound holds alone, and all together do not"
    assert planning.check(tmp_path / "out", again) == [f"plot: layers.yaml: {caution}"]
