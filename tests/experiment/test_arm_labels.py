"""Labels of changed arms: results of an arm and of a changed one never meet under one name."""

import functools

import pytest

from testbed import experiment
from testbed.cli.options import names_in
from testbed.shared.yaml_input import InputError
from tests.experiment import small

ARMS = {
    "dblp": {"protocol": "dblp", "low": 0.01},
    "tcp-cubic": {"protocol": "tcp", "congestion_control": "cubic"},
}
OWN_CONTROL = """
from testbed.transport.congestion import CONGESTION_CONTROLS
Mine = type(CONGESTION_CONTROLS.create("reno", rate_bps=1e6, datagram_bytes=1472))
"""

write = functools.partial(small.write, arms=ARMS)


def test_a_swapped_congestion_control_is_in_the_label_the_key_and_what_runs(tmp_path):
    path = write(tmp_path)
    (plain,) = experiment.load(path, arms=["tcp-cubic"], seeds=1)
    (swapped,) = experiment.load(path, arms=["tcp-cubic"], seeds=1, congestion_control="bbr")
    assert swapped.arm == "tcp-cubic@congestion_control=bbr"
    assert swapped.key.startswith("tcp-cubic@congestion_control=bbr-s1-")
    assert swapped.protocol.congestion_control == "bbr"
    assert swapped.config()["arm"] == swapped.arm
    assert (plain.arm, plain.protocol.congestion_control) == ("tcp-cubic", "cubic")


@pytest.mark.parametrize(
    ("setting", "label"),
    [
        ("arms.dblp.low=0.02", "dblp@low=0.02"),
        ("arms.dblp.order=shuffled", "dblp@order=shuffled"),
        ("arms.dblp.learning_rate=0.2", "dblp@learning_rate=0.2"),
        ("arms.dblp.filling.gather=rescale", "dblp@filling.gather=rescale"),
        ("arms.dblp={protocol: dblp}", "dblp@low=default"),
        (
            "arms.dblp.congestion_control={name: fixed, rate_bps: 2000}",
            "dblp@congestion_control=fixed:rate_bps=2000",
        ),
        ("arms.dblp.low=0.01", "dblp"),  # as in the file
        ("arms.dblp.filling=zero", "dblp"),  # the default
        ("rounds=7", "dblp"),
    ],
)
def test_every_setting_that_changes_an_arm_is_in_its_label(tmp_path, setting, label):
    (run,) = experiment.load(write(tmp_path), overrides=[setting], arms=["dblp"], seeds=1)
    assert run.arm == label
    if label != "dblp" and "default" not in label:
        (again,) = experiment.load(write(tmp_path), arms=names_in(label, "--arms"), seeds=1)
        assert (again.arm, again.key) == (run.arm, run.key)


def test_an_arm_and_changed_ones_run_beside_each_other_and_nothing_is_run_twice(tmp_path):
    labels = names_in("dblp, dblp@low=0.02,dblp@congestion_control=fixed:rate_bps=1e6", "--arms")
    runs = experiment.load(write(tmp_path), arms=[*labels, "dblp@low=0.01"], seeds=1)
    assert [run.arm for run in runs] == labels
    assert len({run.key for run in runs}) == 3
    assert runs[1].protocol.describe()["gather"] != runs[0].protocol.describe()["gather"]


def test_a_label_may_name_a_file_and_its_folder_keeps_a_plain_name(tmp_path):
    (tmp_path / "mine.py").write_text(OWN_CONTROL)
    place = f"{tmp_path}/mine.py:Mine"
    (run,) = experiment.load(write(tmp_path), arms=["dblp"], seeds=1, congestion_control=f"{place}")
    assert run.arm == "dblp@congestion_control=mine.py:Mine"
    (again,) = experiment.load(write(tmp_path), arms=[run.arm], seeds=1)  # it lies beside the file
    assert (again.arm, again.key) == (run.arm, run.key)
    assert "/" not in run.key
    assert ":" not in run.key
    assert len(run.key) < 128


def test_a_change_holds_where_a_factor_replaces_the_whole_arm(tmp_path):
    levels = [{"label": "a", "arms.dblp": {"protocol": "dblp", "low": 0.03}}, {"label": "b"}]
    path = write(tmp_path, factors={"size": levels})
    runs = experiment.load(path, arms=["dblp"], seeds=1, congestion_control="reno")
    assert [run.protocol.congestion_control for run in runs] == ["reno", "reno"]
    assert runs[0].protocol.describe()["gather"] == "phased:low=0.03,high=0.408"


@pytest.mark.parametrize(
    ("factors", "options", "message"),
    [
        ({"arms.dblp.low": [0.02]}, {"overrides": ["arms.dblp.low=0.5"]}, "arms.dblp.low cannot"),
        (
            {
                "s": [
                    {"label": "a", "arms.dblp": {"protocol": "dblp", "congestion_control": "reno"}}
                ]
            },
            {"congestion_control": "bbr", "arms": ["dblp"]},
            "--congestion-control bbr: arms.dblp.congestion_control cannot be changed",
        ),
        ({"rounds": [3, 4]}, {"overrides": ["rounds=5"]}, "--set rounds=5: the experiment's"),
    ],
)
def test_an_option_that_a_factor_undoes_is_refused(tmp_path, factors, options, message):
    with pytest.raises(InputError, match=r"^\S*") as caught:
        experiment.load(write(tmp_path, factors=factors), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize("label", ["dblp@low", "dblp@=1", "dblp@low=[", "nobody@low=1"])
def test_a_label_that_says_nothing_is_refused_in_one_line(tmp_path, label):
    with pytest.raises(InputError, match="--arms"):
        experiment.load(write(tmp_path), arms=[label])


def test_names_are_parted_at_commas_but_not_inside_a_setting():
    assert names_in("a, b ,a", "--arms") == ["a", "b"]
    assert names_in("a@x=f:b=1,c=2,d", "--arms") == ["a@x=f:b=1,c=2", "d"]
