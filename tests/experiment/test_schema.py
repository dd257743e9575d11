"""Experiments: what a YAML file expands to, and what is said when it is wrong."""

import io
import re

import pytest
from rich.console import Console

from testbed import experiment
from testbed.cli import execution
from testbed.shared.yaml_input import InputError
from tests.experiment.small import write


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
    arms = ({"protocol": "dblp", "filling": each} for each in ("zero", "rescale"))
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


def test_more_seeds_keep_the_file_s_own_first(tmp_path):
    runs = experiment.load(write(tmp_path, seeds=[7, 2]), arms=["dblp"], seeds=4)
    assert [run.seed for run in runs] == [7, 2, 1, 3]


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
        found = experiment.summary(name)
        assert (found.runs, found.description) == (len(runs), runs[0].experiment.description)


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ({"protocol": "top-k", "keep": 0}, "arms.x.keep: 0; valid: above 0, up to"),
        ({"protocol": "dblp", "keep": 0.5}, "keep is 0.5; our own transport's"),
        ({"protocol": "one-bit", "filling": "zero"}, "gather: zero; coding two-values sends"),
        ({"protocol": "ltp", "filling": "signs"}, "gather: signs; ltp gives up chunks of"),
        ({"protocol": "one-bit", "coding": "bits"}, "coding: 'bits'; valid: plain, two-"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, arm, said):
    with pytest.raises(InputError, match=re.escape(said)):
        experiment.load(write(tmp_path, arms={"x": arm}))


@pytest.mark.parametrize(
    ("make", "said"),
    [("touch", "not a YAML file; valid: FILE.yaml, FILE"), ("mkdir", "not a file")],
)
def test_what_is_no_file_of_yaml_is_refused(tmp_path, make, said):
    path = tmp_path / ("x.py" if make == "touch" else "x.yaml")
    getattr(path, make)()
    with pytest.raises(InputError, match=said):
        experiment.load(str(path))


def test_congestion_control_is_swapped_in_the_chosen_arms_alone(tmp_path):
    path = write(tmp_path)
    (run, _) = experiment.load(path, arms=["dblp"], congestion_control="fixed:rate_bps=20e6")
    assert "rate_bps=" in run.protocol.congestion_control  # no kernel's TCP has it
    (run, _) = experiment.load(path, arms=["tcp-reno"], congestion_control="westwood")
    assert run.protocol.congestion_control == "westwood"  # our transport has none of that name
    with pytest.raises(InputError, match=r"^--congestion-control westwood: .*small\.yaml: arms"):
        experiment.load(path, congestion_control="westwood")


@pytest.mark.parametrize("arms", [["dblp"], "dblp", None, {"dblp": None}, {"dblp": "dblp"}])
def test_arms_that_are_no_mapping_are_refused_also_with_a_swap(tmp_path, arms):
    with pytest.raises(InputError, match=r"small\.yaml: arms"):
        experiment.load(write(tmp_path, arms=arms), congestion_control="reno")


def test_a_problem_of_the_file_is_not_blamed_on_an_option(tmp_path):
    with pytest.raises(InputError, match=r"^\S*small\.yaml: rounds: 'abc'"):
        experiment.load(write(tmp_path, rounds="abc"), overrides=["seeds=[3]"])
