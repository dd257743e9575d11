"""Sweeps: labelled levels set several keys together, and what is wrong is said in one line."""

from __future__ import annotations

import pytest

from testbed import experiment
from testbed.shared.yaml_input import InputError
from tests.experiment.small import BASE, write

PAYLOADS = [
    {"label": "small", "training.model": "mlp"},
    {"label": "large", "training.model": "small-cnn", "rounds": 20, "arms.dblp.low": 0.024},
    {"label": "calm", "impairments": []},
]


def test_what_a_factor_completes_is_right(tmp_path):
    """A missing value, null, or one that others make wrong."""
    loss = BASE["impairments"][0]
    for changes in (
        {"impairments": [{**loss, "q": None}], "factors": {"impairments.0.q": [0.5]}},
        {"arms": {"a": {}}, "factors": {"arms.a.protocol": ["dblp", "none"]}},
        {"impairments": [{**loss, "rounds": [30]}], "factors": {"rounds": [40]}},
    ):
        assert experiment.load(write(tmp_path, **changes))


def test_what_is_wrong_without_the_factors_is_not_blamed_on_them(tmp_path):
    both = {**BASE["impairments"][0], "at_s": [1]}
    path = write(tmp_path, impairments=[both], factors={"impairments.0.q": [0.6, 0.9]})
    with pytest.raises(InputError) as caught:
        experiment.load(path)
    said = f"{path}: impairments.0: has both rounds and at_s; valid: one of them"
    assert str(caught.value) == said


def test_a_level_sets_its_keys_together_and_is_known_by_its_label(tmp_path):
    path = write(tmp_path, factors={"payload": PAYLOADS[:2], "impairments.0.q": [0.6, 0.9]})
    runs = experiment.load(path, arms=["dblp"], seeds=1)
    seen = [
        (
            run.factors,
            run.config()["training"]["model"],
            run.config()["rounds"],
            run.config()["protocol"]["gather"],
            run.config()["impairments"][0]["q"],
        )
        for run in runs
    ]
    small, large = "phased:low=0.008,high=0.408", "phased:low=0.024,high=0.408"
    assert seen == [
        ({"payload": "small", "impairments.0.q": 0.6}, "mlp", 10, small, 0.6),
        ({"payload": "small", "impairments.0.q": 0.9}, "mlp", 10, small, 0.9),
        ({"payload": "large", "impairments.0.q": 0.6}, "small-cnn", 20, large, 0.6),
        ({"payload": "large", "impairments.0.q": 0.9}, "small-cnn", 20, large, 0.9),
    ]
    assert len({run.key for run in runs}) == 4
    assert runs[0].label == "dblp, seed 1, payload small, q 0.6"
    runs = experiment.load(write(tmp_path, factors={"payload": PAYLOADS}), arms=["dblp"], seeds=1)
    assert [len(run.config()["impairments"]) for run in runs] == [1, 1, 0]


def test_random_rounds_are_the_same_for_all_arms_of_a_seed_and_differ_between_seeds(tmp_path):
    drawn = {"kind": "loss", "rounds": {"random": 3, "from": 2, "until": 900}, "q": 0.9}
    runs = experiment.load(write(tmp_path, rounds=1000, impairments=[drawn]), seeds=2)
    rounds = {(run.seed, run.arm): tuple(run.config()["impairments"][0]["rounds"]) for run in runs}
    assert rounds[1, "dblp"] == rounds[1, "tcp-reno"] != rounds[2, "dblp"]
    assert rounds[2, "dblp"] == rounds[2, "tcp-reno"]
    assert all(len(each) == 3 for each in rounds.values())


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        (
            {"payload": [{"label": ["a"]}]},
            "factors.payload.0.label: ['a']: must be a text or a number",
        ),
        (
            {
                "one": [{"label": "a", "impairments": []}],
                "other": [{"label": "b", "impairments.0.q": 0.5}],
            },
            "factors.other: impairments.0.q: factor 'one' replaces impairments too",
        ),
    ],
)
def test_bad_factors_are_one_line_each_that_names_file_and_factor(tmp_path, factors, expected):
    path = write(tmp_path, factors=factors)
    with pytest.raises(InputError) as caught:
        experiment.load(path)
    assert all(arg.startswith(f"{path}: ") for arg in caught.value.args)
    assert expected in str(caught.value)


def test_an_arm_may_have_a_learning_rate_of_its_own(tmp_path):
    plain = experiment.load(write(tmp_path), seeds=1)
    arms = {**BASE["arms"], "dblp": {"protocol": "dblp", "learning_rate": 0.2}}
    own = experiment.load(write(tmp_path, arms=arms), seeds=1)
    rates = [run.config()["training"]["learning_rate"] for run in own]
    assert rates == [0.2, plain[0].experiment.training.learning_rate]
    assert own[0].key != plain[0].key
    assert own[1].key == plain[1].key
    levels = [{"label": "slow", "arms.dblp.learning_rate": 0.1}, {"label": "as before"}]
    swept = experiment.load(write(tmp_path, arms=arms, factors={"rate": levels}), arms=["dblp"])
    assert [run.config()["training"]["learning_rate"] for run in swept] == [0.1, 0.2] * 2
