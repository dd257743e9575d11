"""Experiments: what a YAML file expands to, and what is said when it is wrong."""

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from testbed import experiment
from testbed.cli import progress
from testbed.shared.yaml_input import InputError

BASE = {
    "name": "small",
    "rounds": 10,
    "seeds": [1, 2],
    "topology": {"name": "star", "workers": 2},
    "arms": {"dblp": {"protocol": "dblp"}, "tcp-reno": {"protocol": "tcp-reno"}},
    "impairments": [{"kind": "loss", "host": "server", "rounds": [3], "q": 0.9}],
}


def write(folder: Path, **changes: object) -> str:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes}))
    return str(path)


def test_expands_to_arms_interleaved_within_each_seed(tmp_path):
    runs = experiment.load(write(tmp_path))
    assert [(run.arm, run.seed) for run in runs] == [
        ("dblp", 1),
        ("tcp-reno", 1),
        ("dblp", 2),
        ("tcp-reno", 2),
    ]


def test_factors_multiply_the_runs_and_change_the_configuration(tmp_path):
    factors = {"impairments.0.q": [0.6, 0.9], "topology.workers": [2, 3]}
    runs = experiment.load(write(tmp_path, factors=factors), arms=["dblp"], seeds=1)
    seen = [
        (run.config()["impairments"][0]["q"], run.config()["topology"]["workers"]) for run in runs
    ]
    assert seen == [(0.6, 2), (0.6, 3), (0.9, 2), (0.9, 3)]
    assert len({run.key for run in runs}) == 4


def test_key_depends_on_what_is_run_and_not_on_its_description(tmp_path):
    first = experiment.load(write(tmp_path))[0].key
    assert experiment.load(write(tmp_path, description="other words"))[0].key == first
    assert experiment.load(write(tmp_path, seeds=[1]))[0].key == first
    assert experiment.load(write(tmp_path, rounds=11))[0].key != first


def test_the_datapath_is_part_of_the_key_only_where_it_is_chosen(tmp_path):
    """`auto` takes what the machine has, and a key is the same on every machine."""

    def key(*overrides):
        return experiment.load(write(tmp_path), overrides=overrides)[0].key

    assert experiment.load(write(tmp_path))[0].config()["datapath"] == "auto"
    assert key() == key("datapath=auto")
    assert len({key(), key("datapath=kernel"), key("datapath=userspace")}) == 3
    with pytest.raises(InputError, match=r"datapath: 'ebpf'; valid: auto, kernel, userspace"):
        key("datapath=ebpf")


def test_key_depends_on_the_code_of_a_user_s_own_model(tmp_path):
    def key(**changes: object) -> str:
        return experiment.load(write(tmp_path, **changes))[0].key

    own = {"training": {"model": "my_net:build"}}
    (tmp_path / "my_net.py").write_text("raise SystemExit('looked at, not executed')\n")
    first = key(**own)
    assert key(**own) == first
    (tmp_path / "my_net.py").write_text("raise SystemExit('something else')\n")
    assert key(**own) != first
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deeper.py").write_text("a = 1\n")
    own = {"training": {"model": "my_package.deeper:build"}}
    first = key(**own)
    (package / "deeper.py").write_text("a = 2\n")
    assert key(**own) != first
    assert "code" not in experiment.load(write(tmp_path))[0].config()


def test_what_preparation_finds_names_the_file(tmp_path):
    (tmp_path / "net.py").write_text("def other(): pass\n")
    runs = experiment.load(write(tmp_path, training={"model": "net:build"}))
    with pytest.raises(InputError, match=r"small\.yaml: .*/net: defines no 'build'"):
        progress.meet_prerequisites(runs, Console(file=io.StringIO()))


def test_more_seeds_keep_the_file_s_own_first(tmp_path):
    runs = experiment.load(write(tmp_path, seeds=[7, 2]), arms=["dblp"], seeds=4)
    assert [run.seed for run in runs] == [7, 2, 1, 3]


def test_congestion_control_is_swapped_in_every_arm(tmp_path):
    path = write(tmp_path, arms={"a": {"protocol": "tcp"}, "b": {"protocol": "tcp-bbr"}})
    runs = experiment.load(path, congestion_control="reno")
    assert {run.protocol.congestion_control for run in runs} == {"reno"}


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ({"protocol": "dblp"}, ("zero", "zero")),
        ({"protocol": "dblp-stream"}, ("rescale", "error-feedback")),
        ({"protocol": "dblp", "filling": "previous"}, ("previous", "previous")),
        ({"protocol": "dblp-stream", "filling": {"gather": "zero"}}, ("zero", "error-feedback")),
        (
            {"protocol": "dblp", "filling": {"gather": "rescale:by=fraction"}},
            ("rescale:by=fraction", "zero"),
        ),
    ],
)
def test_filling_is_chosen_per_leg_and_has_a_default_per_protocol(tmp_path, arm, expected):
    (run, _) = experiment.load(write(tmp_path, arms={"x": arm}))
    assert run.config()["filling"] == {"gather": expected[0], "broadcast": expected[1]}
    assert "filling" not in run.config()["protocol"]


def test_the_key_depends_on_the_filling(tmp_path):
    arms = {"x": {"protocol": "dblp"}}
    plain = experiment.load(write(tmp_path, arms=arms))[0].key
    assert experiment.load(write(tmp_path, arms=arms), overrides=["arms.x.filling=zero"])[
        0
    ].key == (plain)
    changed = experiment.load(write(tmp_path, arms=arms), overrides=["arms.x.filling=rescale"])
    assert changed[0].key != plain


def test_tolerances_may_be_written_as_mappings(tmp_path):
    gather = {"policy": "per-layer", "default": 0.1, "tensors": {"*.bias": 0}}
    (run, _) = experiment.load(
        write(tmp_path, arms={"x": {"protocol": "dblp", "gather": gather, "order": "rotating"}})
    )
    assert run.config()["protocol"]["gather"] == "per-layer:default=0.1,tensors=*.bias@0.0"
    assert run.config()["protocol"]["order"] == "rotating"


def test_set_replaces_a_value(tmp_path):
    runs = experiment.load(write(tmp_path), overrides=["topology.rate_bps=50000000"])
    assert runs[0].config()["topology"]["rate_bps"] == 50_000_000


def test_every_experiment_that_comes_with_the_lab_is_valid():
    assert "quick" in experiment.names()
    for name in experiment.names():
        runs = experiment.load(name)
        found = experiment.summary(name)
        assert (found.runs, found.description) == (len(runs), runs[0].experiment.description)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rouns": 3}, "rouns: unknown key; valid: arms, controller, datapath, description,"),
        ({"rounds": 0}, "rounds: 0: must be a whole number from 1 to 1_000_000"),
        ({"topology": {"name": "star", "rate_bps": 0}}, "topology.rate_bps: 0: "),
        ({"topology": {"name": "star", "workers": 0}}, "topology.workers: 0: "),
        ({"topology": {"name": "ring"}}, "topology.name: unknown topology 'ring'; valid: "),
        ({"topology": {"name": "star", "speed": 1}}, "topology.speed: unknown key; valid: core,"),
        ({"arms": {"x": {"protocol": "dblpp"}}}, "unknown protocol 'dblpp'; valid: dblp,"),
        ({"arms": {"x": {"protocol": "dblp", "high": 1.0}}}, "arms.x.high: 1.0; valid: 0"),
        (
            {"arms": {"x": {"protocol": "dblp", "hihg": 0.5}}},
            "arms.x.hihg: protocol 'dblp' has no such key; valid: low, high",
        ),
        (
            {"arms": {"x": {"protocol": "dblp", "filling": "zeros"}}},
            "arms.x.filling: unknown filling 'zeros'; valid: zero, ",
        ),
        (
            {"arms": {"x": {"protocol": "dblp", "filling": {"both": "zero"}}}},
            "arms.x.filling.both: unknown key; valid: broadcast, gather",
        ),
        (
            {"arms": {"x": {"protocol": "tcp", "filing": "zero"}}},
            "arms.x.filing: protocol 'tcp' has no such key; valid: name, carrier, gather, "
            "broadcast, repair, order, congestion_control, control, marks, keep, coding, filling",
        ),
        (
            {"arms": {"x": {"protocol": "dblp", "filling": 3}}},
            "arms.x.filling: 3: ",
        ),
        (
            {"arms": {"x": {"protocol": "dblp", "order": "shuffle"}}},
            "arms.x.order: unknown chunk order 'shuffle'; valid: in-order, rotating, shuffled,",
        ),
        (
            {"transport": {"chunk_bytes": 8192}},
            "transport.chunk_bytes: 8192: the lab's links carry packets of 1500 bytes, headers "
            "included; valid: multiples of 4 up to 1456",
        ),
        (
            {"transport": {"chunk_bytes": 0}},
            "transport.chunk_bytes: 0: must be a whole number of 4 or more, in bytes",
        ),
        ({"seeds": [1, 1]}, "seeds: [1, 1]: must be distinct"),
        (
            {"impairments": [{"kind": "lost", "rounds": [1]}]},
            "impairments.0",
        ),
        (
            {"impairments": [{"kind": "loss", "rounds": [1], "q": 1.5}]},
            "impairments.0.q: 1.5: ",
        ),
        (
            {"impairments": [{"kind": "loss", "rounds": [1], "q": 0.5, "Q": 1}]},
            "impairments.0.Q: unknown key; valid: at_most_s, at_s, duration_s,",
        ),
        (
            {"impairments": [{"kind": "loss", "rounds": [1], "q": 0.5, "host": "worker-9"}]},
            "unknown host 'worker-9'; valid: server, worker-1, worker-2",
        ),
        (
            {"impairments": [{"kind": "loss", "rounds": [10], "q": 0.5}]},
            "round 10 is never reached; valid: 0 to 9",
        ),
        (
            {
                "arms": {"some": {"protocol": "top-k", "keep": 0.2}},
                "training": {"resynchronise_every": 4},
            },
            "training.resynchronise_every: 4 sends whole replicas, but arms.some keeps 0.2 of the",
        ),
        (
            {"arms": {"a": {"protocol": "top-k", "keep": 0}}},
            "arms.a.keep: 0; valid: above 0, up to",
        ),
        ({"arms": {"a": {"protocol": "dblp", "keep": 0.5}}}, "keep is 0.5; our own transport's"),
        (
            {"arms": {"a": {"protocol": "one-bit"}}, "training": {"resynchronise_every": 4}},
            "training.resynchronise_every: 4 sends whole replicas, but arms.a sends two values of",
        ),
        (
            {"arms": {"a": {"protocol": "one-bit", "filling": {"gather": "zero"}}}},
            "filling.gather: zero; coding two-values sends payloads with two values in each chunk; "
            "valid: signs, ./FILE.py",
        ),
        (
            {"arms": {"a": {"protocol": "ltp", "filling": "signs"}}},
            "filling.gather: signs; ltp gives up chunks of this leg, which would be owed by nobody",
        ),
        (
            {"arms": {"a": {"protocol": "top-k", "filling": {"broadcast": "signs"}}}},
            "filling.broadcast: signs; top-k gives up chunks of this leg",
        ),
        (
            {"arms": {"a": {"protocol": "one-bit", "coding": "bits"}}},
            "arms.a.coding: 'bits'; valid: plain, two-values",
        ),
        ({"factors": {"rounds": 3}}, "factors.rounds: 3: must be a list of at least one value"),
    ],
)
def test_bad_input_is_a_line_each_that_names_file_key_and_what_is_valid(
    tmp_path, changes, expected
):
    path = write(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        experiment.load(path)
    assert all(each.startswith(f"{path}: ") for each in caught.value.args)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a: [", "not closed"), ("just text", "must be a mapping"), ("\x00", "line 1: .*U.0000")],
)
def test_a_file_that_is_no_yaml_mapping_is_named(tmp_path, text, expected):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"broken.yaml: .*{expected}"):
        experiment.load(str(path))


@pytest.mark.parametrize("text", ["rounds", "=3", "topology.star.x=1=", "seeds.7=1"])
def test_a_bad_set_option_is_refused(tmp_path, text):
    with pytest.raises(InputError):
        experiment.load(write(tmp_path), overrides=[text])


def test_unknown_names_list_what_exists(tmp_path):
    with pytest.raises(InputError, match=r"unknown experiment 'quik'; valid: .*quick"):
        experiment.load("quik")
    with pytest.raises(InputError, match=r"unknown arm 'x'; valid: dblp, tcp-reno"):
        experiment.load(write(tmp_path), arms=["x"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": {"pace": "fast"}}, "training.pace.kind: unknown pace 'fast'; valid: real"),
        (
            {"training": {"pace": {"kind": "./my.py"}}},
            "'./my.py'; valid: real, paced, payload-only",
        ),
        ({"training": {"split": {"name": "dirichlet"}}}, "training.split.alpha: this key is miss"),
        (
            {
                "impairments": [
                    {"kind": "crash", "host": "worker-1", "rounds": {"every": 2, "x": 1}}
                ]
            },
            "rounds.x: unknown key",
        ),
    ],
)
def test_a_section_that_a_name_decides_says_what_is_wrong_with_it(tmp_path, changes, said):
    with pytest.raises(InputError) as caught:
        experiment.load(write(tmp_path, **changes))
    assert said in str(caught.value)
    assert not str(caught.value).endswith("valid: ")


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


def test_a_problem_names_the_option_that_it_comes_from(tmp_path):
    path = write(tmp_path)
    options = ["seeds=[3]", "rounds=abc"]
    with pytest.raises(InputError, match=r"^--set rounds=abc: \S*small\.yaml: rounds: 'abc'"):
        experiment.load(path, overrides=options)
    with pytest.raises(
        InputError, match=r"^--set arms.dblp.repair=x: \S*small.yaml: arms\.dblp\.repair: "
    ):
        experiment.load(path, overrides=[*options[:1], "arms.dblp.repair=x"])
    with pytest.raises(
        InputError,
        match=r"^--set seeds.7=1: seeds.7: there is no entry '7' in seeds; valid: 0 to 1",
    ):
        experiment.load(path, overrides=["seeds.7=1"])
    with pytest.raises(InputError, match=r"^--controller x: \S*small\.yaml: controller: 'x'"):
        experiment.load(path, overrides=options[:1], controller="x")
    with pytest.raises(InputError, match=r"^\S*small\.yaml: rounds: 'abc'"):
        experiment.load(write(tmp_path, rounds="abc"), overrides=options[:1])


def test_an_unknown_arm_comes_with_the_one_that_is_near(tmp_path):
    with pytest.raises(InputError, match=r"^--arms: .*'dblpp'.*; did you mean 'dblp'\?$"):
        experiment.load(write(tmp_path), arms=["dblpp"])
