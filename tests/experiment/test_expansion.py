"""Experiments: runs, their keys and order, factors, profiles, and what is said of wrong ones."""

import functools
import io
import json
import re

import pytest
from rich.console import Console

from analysis.summary import claims
from testbed import experiment
from testbed.cli import execution
from testbed.experiment.run import key_of
from testbed.run import planning
from testbed.shared.run_directory import read_json
from testbed.shared.yaml_input import InputError
from tests.experiment import small
from tests.experiment.small import BASE, write


def test_expands_to_seeds_points_and_arms_in_the_file_s_order(tmp_path):
    factors = {"impairments.0.q": [0.6, 0.9], "topology.workers": [2, 3]}
    runs = experiment.load(write(tmp_path, factors=factors))
    configs = [run.config() for run in runs]
    seen = [(config["impairments"][0]["q"], config["topology"]["workers"]) for config in configs]
    assert seen == [point for point in ((0.6, 2), (0.6, 3), (0.9, 2), (0.9, 3)) for _ in "ab"] * 2
    assert [run.arm for run in runs] == ["dblp", "tcp-reno"] * 8
    assert [run.seed for run in runs] == [1] * 8 + [2] * 8
    assert len({run.key for run in runs}) == 16


def test_key_depends_on_what_is_run_and_not_on_its_description(tmp_path):
    first = experiment.load(write(tmp_path))[0].key
    assert experiment.load(write(tmp_path, description="other words"))[0].key == first
    assert experiment.load(write(tmp_path, seeds=[1]))[0].key == first
    assert experiment.load(write(tmp_path, rounds=11))[0].key != first
    arms = ({"protocol": "dblp", "filling": filling} for filling in ("zero", "rescale"))
    default, other = (experiment.load(write(tmp_path, arms={"dblp": arm}))[0].key for arm in arms)
    assert default == first != other
    assert "code" not in experiment.load(write(tmp_path))[0].config()


def test_the_datapath_is_part_of_the_key_only_where_it_is_chosen(tmp_path):
    """`auto` takes what the machine has, and a key is the same on every machine."""

    def key(*overrides):
        return experiment.load(write(tmp_path), overrides=overrides)[0].key

    assert experiment.load(write(tmp_path))[0].config()["datapath"] == "auto"
    assert key() == key("datapath=auto")
    assert len({key(), key("datapath=kernel"), key("datapath=userspace")}) == 3
    with pytest.raises(InputError, match=r"datapath: 'ebpf'; valid: auto, kernel, userspace"):
        key("datapath=ebpf")


def test_what_preparation_finds_names_the_file(tmp_path):
    (tmp_path / "net.py").write_text("def other(): pass\n")
    runs = experiment.load(write(tmp_path, training={"model": "./net.py:build"}))
    with pytest.raises(InputError, match=r"small\.yaml: .*/net\.py: defines no 'build'"):
        execution.fetch_prerequisites(runs, Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ({"protocol": "dblp"}, ("zero", "zero")),
        ({"protocol": "dblp-stream"}, ("rescale", "error-feedback")),
        ({"protocol": "dblp", "filling": "rescale"}, ("rescale", "rescale")),
        ({"protocol": "dblp-stream", "filling": {"gather": "zero"}}, ("zero", "error-feedback")),
        (
            {"protocol": "dblp", "filling": {"gather": "hadamard:seed=3"}},
            ("hadamard:seed=3", "zero"),
        ),
    ],
)
def test_filling_is_chosen_per_leg_and_has_a_default_per_protocol(tmp_path, arm, expected):
    (run, _) = experiment.load(write(tmp_path, arms={"x": arm}))
    assert run.config()["filling"] == {"gather": expected[0], "broadcast": expected[1]}
    assert "filling" not in run.config()["protocol"]


def test_every_experiment_that_comes_with_the_lab_is_valid():
    assert "quick" in experiment.names()
    for name in experiment.names():
        runs = experiment.load(name)
        summary = experiment.summary(name)
        assert (summary.runs, summary.description) == (len(runs), runs[0].experiment.description)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ({"protocol": "top-k", "keep": 0}, "arms.x.keep: 0; valid: above 0, up to"),
        ({"protocol": "one-bit", "codec": "bits"}, "codec: unknown codec 'bits'; valid: float32, "),
        (
            {"protocol": "dblp", "keep": 0.25, "filling": "rescale"},
            "arms.x.filling.gather: rescale: it takes loss for chance, and keep: 0.25 leaves",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, arm, message):
    with pytest.raises(InputError, match=re.escape(message)):
        experiment.load(write(tmp_path, arms={"x": arm}))


@pytest.mark.parametrize(
    ("make", "message"),
    [("touch", "not a YAML file; valid: FILE.yaml, FILE"), ("mkdir", "not a file")],
)
def test_what_is_no_file_of_yaml_is_refused(tmp_path, make, message):
    path = tmp_path / ("x.py" if make == "touch" else "x.yaml")
    getattr(path, make)()
    with pytest.raises(InputError, match=message):
        experiment.load(str(path))


@pytest.mark.parametrize("arms", [["dblp"], "dblp", None, {"dblp": None}, {"dblp": "dblp"}])
def test_arms_that_are_no_mapping_are_refused_also_with_a_swap(tmp_path, arms):
    with pytest.raises(InputError, match=r"small\.yaml: arms"):
        experiment.load(write(tmp_path, arms=arms), congestion_control="reno")


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"factors": {"payload": [{"label": ["a"]}]}},
            "factors.payload.0.label: ['a']: must be a text or a number",
        ),
        (
            {"factors": {"one": [PAYLOADS[2]], "other": [{"label": "b", "impairments.0.q": 0.5}]}},
            "factors.other: impairments.0.q: factor 'one' replaces impairments too; "
            "valid: one factor for each key",
        ),
        (  # what is wrong without factors is not blamed on them
            {
                "impairments": [{**BASE["impairments"][0], "at_s": [1]}],
                "factors": {"impairments.0.q": [0.6, 0.9]},
            },
            "impairments.0: has both rounds and at_s; valid: one of them",
        ),
    ],
)
def test_a_bad_factor_is_one_line_that_names_file_and_factor(tmp_path, changes, expected):
    path = write(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        experiment.load(path)
    assert str(caught.value) == f"{path}: {expected}"


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


PROFILES = {
    "server": {"topology.rate_bps": 1_000_000_000, "rounds": 40, "seeds": [1, 2, 3]},
    "paper": {},
}
PAPER_ITEMS = ("burst-latency", "burst-price", "regime-map", "congestion-controls")

write_sized = functools.partial(small.write, profiles=PROFILES)


def test_a_profile_replaces_values_before_anything_else_does(tmp_path):
    path = write_sized(tmp_path)
    runs = experiment.load(path, profile="server", arms=["dblp"])
    assert [run.seed for run in runs] == [1, 2, 3]
    assert runs[0].config()["topology"]["rate_bps"] == 1_000_000_000
    assert runs[0].config()["rounds"] == 40
    assert runs[0].config()["profile"] == "server"
    overridden = experiment.load(path, profile="server", overrides=["rounds=7"], seeds=1)
    assert overridden[0].config()["rounds"] == 7


def test_the_file_s_own_values_are_the_laptop_s(tmp_path):
    (run, *_) = experiment.load(write_sized(tmp_path))
    assert (run.config()["profile"], run.config()["rounds"]) == ("laptop", 10)
    path = write_sized(tmp_path, profiles={"laptop": {"rounds": 5}})
    assert experiment.load(path)[0].config()["rounds"] == 5
    assert experiment.profile_names(path) == ["laptop"]
    assert experiment.profile_names(write_sized(tmp_path)) == ["laptop", "server", "paper"]


def test_the_key_depends_on_what_a_profile_changes_and_not_on_its_name(tmp_path):
    path = write_sized(tmp_path)
    laptop, server, paper = (
        experiment.load(path, profile=name)[0] for name in ("laptop", "server", "paper")
    )
    assert laptop.key == paper.key != server.key
    without = experiment.load(write_sized(tmp_path, profiles={}, published=["limit-bytes"]))[0]
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
    assert named <= {claim.id for claim in claims.load()}


SWEPT_ARMS = {name: {"protocol": name} for name in ("dblp", "fixed-low", "fixed-high", "tcp-cubic")}
FACTORS = {"impairments.0.q": [0.6, 0.7, 0.8, 0.9]}

write_swept = functools.partial(small.write, arms=SWEPT_ARMS, factors=FACTORS)


def test_arms_of_one_point_and_seed_follow_one_another_in_changing_order(tmp_path):
    runs = experiment.ordered(experiment.load(write_swept(tmp_path), seeds=5))
    blocks = [runs[start : start + 4] for start in range(0, 4 * 4 * 5, 4)]
    assert len(runs) == 4 * 4 * 5
    for block in blocks:
        assert len({(run.seed, run.factors["impairments.0.q"]) for run in block}) == 1
        assert {run.arm for run in block} == set(SWEPT_ARMS)
    assert [block[0].seed for block in blocks] == sorted([1, 2, 3, 4, 5] * 4)
    assert {block[0].arm for block in blocks} == set(SWEPT_ARMS)
    points = [block[0].factors["impairments.0.q"] for block in blocks]
    assert len({tuple(points[start : start + 4]) for start in range(0, 20, 4)}) > 1


def test_the_order_of_the_rest_does_not_change_when_runs_are_left_out(tmp_path):
    path = write_swept(tmp_path)
    all_of_them = experiment.ordered(experiment.load(path, seeds=5))
    some = experiment.ordered(experiment.load(path, seeds=2, arms=["tcp-cubic", "dblp"]))
    kept = [
        run.key for run in all_of_them if run.arm in ("tcp-cubic", "dblp") and run.seed in (1, 2)
    ]
    assert [run.key for run in some] == kept
    assert [run.key for run in experiment.ordered(list(reversed(some)))] != kept[::-1]


def test_a_key_is_that_of_the_configuration_as_it_is_written(tmp_path):
    for run in experiment.load(write_swept(tmp_path), seeds=2):
        written = json.loads(json.dumps(run.config() | {"capture": ["worker-1"]}))
        assert key_of(written) == run.key
        assert key_of(written | {"rounds": written["rounds"] + 1}) != run.key


def test_the_plan_records_order_and_profile_and_the_arms_in_the_file_s_order(tmp_path):
    runs = experiment.ordered(experiment.load(write_swept(tmp_path)))
    planning.extend(tmp_path / "out", runs)
    plan = read_json(tmp_path / "out" / "small" / "plan.json")
    assert [entry["key"] for entry in plan["runs"]] == [run.key for run in runs]
    assert "SHA-256" in plan["order"]
    assert plan["profile"] == "laptop"
    written = read_json(tmp_path / "out" / "small" / "experiment.json")
    assert written["arms"] == list(experiment.load(write_swept(tmp_path))[0].experiment.arms)
