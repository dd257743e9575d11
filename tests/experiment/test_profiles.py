"""Profiles resize an experiment, count in a run's key through what they change, and are checked."""

from __future__ import annotations

import functools

import pytest

from analysis.summary import published
from testbed import experiment
from tests.experiment import small

PROFILES = {
    "server": {"topology.rate_bps": 1_000_000_000, "rounds": 40, "seeds": [1, 2, 3]},
    "paper": {},
}
PAPER_ITEMS = (
    "fig1-phase-loss",
    "fig1-whole-tensors",
    "fig2-k-sweep",
    "burst-latency",
    "burst-price",
    "burst-accuracy",
    "training-time",
    "accuracy",
    "regime-map",
    "congestion-controls",
)

write = functools.partial(small.write, profiles=PROFILES)


def test_a_profile_replaces_values_before_anything_else_does(tmp_path):
    path = write(tmp_path)
    runs = experiment.load(path, profile="server", arms=["dblp"])
    assert [run.seed for run in runs] == [1, 2, 3]
    assert runs[0].config()["topology"]["rate_bps"] == 1_000_000_000
    assert runs[0].config()["rounds"] == 40
    assert runs[0].config()["profile"] == "server"
    overridden = experiment.load(path, profile="server", overrides=["rounds=7"], seeds=1)
    assert overridden[0].config()["rounds"] == 7


def test_the_file_s_own_values_are_the_laptop_s(tmp_path):
    (run, *_) = experiment.load(write(tmp_path))
    assert (run.config()["profile"], run.config()["rounds"]) == ("laptop", 10)
    path = write(tmp_path, profiles={"laptop": {"rounds": 5}})
    assert experiment.load(path)[0].config()["rounds"] == 5
    assert experiment.profile_names(path) == ["laptop"]
    assert experiment.profile_names(write(tmp_path)) == ["laptop", "server", "paper"]


def test_the_key_depends_on_what_a_profile_changes_and_not_on_its_name(tmp_path):
    path = write(tmp_path)
    laptop, server, paper = (
        experiment.load(path, profile=name)[0] for name in ("laptop", "server", "paper")
    )
    assert laptop.key == paper.key != server.key
    without = experiment.load(write(tmp_path, profiles={}, published=["limit-bytes"]))[0]
    assert without.key == laptop.key
    assert "profiles" not in server.config()


@pytest.mark.parametrize("name", PAPER_ITEMS)
def test_every_item_of_the_paper_has_three_valid_profiles_five_seeds_and_known_numbers(name):
    path = str(experiment.find(name))
    assert experiment.profile_names(path) == ["laptop", "server", "paper"]
    for profile in ("laptop", "server", "paper"):
        runs = experiment.load(name, profile=profile, seeds=1)
        assert len(runs[0].experiment.seeds) >= 5
        assert len({run.key for run in runs}) == len(runs)
    named = set(runs[0].experiment.published or ())
    assert named <= {each.id for each in published.load()}


@pytest.mark.parametrize("name", ["accuracy", "burst-accuracy", "fig2-k-sweep"])
def test_the_paper_s_trainings_have_its_epochs_of_93_rounds(name):
    for run in experiment.load(name, profile="paper", seeds=1):
        training, rounds = run.experiment.training, run.experiment.rounds
        assert run.config()["phases"]["cadence"] == 93
        assert rounds == (15 if training.model == "resnet50" else 10) * 93
        if run.config()["training"]["dataset"]["name"] == "cifar10":
            assert 50_000 // run.experiment.topology.workers // training.batch_size == 93
