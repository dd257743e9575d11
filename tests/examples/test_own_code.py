"""Each kind of a user's own code loads, counts in the run's key, and is refused in one line."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import topologies
from testbed.__main__ import main
from testbed.cli.verbs import app
from testbed.shared import own_code
from testbed.shared.yaml_input import InputError
from testbed.training import datasets, optimisers, prerequisites
from testbed.training.filling import FILLINGS
from testbed.training.learning_rate import Position
from testbed.training.phases import Observation
from testbed.transport import (
    CONGESTION_CONTROLS,
    ORDERS,
    REPAIRS,
    OrderContext,
    ProtocolConfig,
    as_policy,
)
from tests.examples.places import EXAMPLES, PLACES, good, load, write
from tests.training.one_round import LAYOUT, estimate, gradients_of
from tests.transport.virtual import Network, bernoulli, layout_of, random_payload, transfer


@pytest.fixture(autouse=True)
def _expect_nothing_afterwards():
    yield
    own_code.expect({})


def place(folder, kind, text=None):
    path = folder / "mine.py"
    path.write_text(good(kind) if text is None else text)
    return path


# Its place in a run.


@pytest.mark.parametrize("kind", PLACES)
def test_a_run_names_the_file_and_its_hash_and_depends_on_it(tmp_path, kind):
    path = place(tmp_path, kind)
    first = load(tmp_path, kind)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert first.config()["code"] == {str(path): sha256}
    assert str(path) in json.dumps(first.config()[config_key(kind)])
    assert load(tmp_path, kind).key == first.key
    place(tmp_path, kind, good(kind) + "# another content\n")
    assert load(tmp_path, kind).key != first.key


def config_key(kind):
    arm = ("tolerance", "repair", "order", "congestion_control")
    keys = {"filling": "filling", "impairment": "impairments", "topology": "topology"}
    return (
        "protocol"
        if kind in arm
        else keys.get(kind, "phases" if kind == "detector" else "training")
    )


@pytest.mark.parametrize("kind", PLACES)
def test_the_same_files_in_another_folder_are_the_same_run(tmp_path, kind):
    keys = set()
    drawn: set[str] = set()
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        place(folder, kind)
        run = load(folder, kind)
        keys.add(run.key)
        drawn.update(str(each["rounds"]) for each in run.config()["impairments"])
    assert len(keys) == 1
    assert len(drawn) <= 1


@pytest.mark.parametrize("kind", PLACES)
def test_the_module_form_and_a_name_will_do(tmp_path, kind):
    package = tmp_path / f"package_of_{kind}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(good(kind))
    place(tmp_path, kind)
    name = name_in(tmp_path, kind)
    by_name = load(tmp_path, kind, f"./mine.py:{name}")
    assert list(by_name.config()["code"]) == [str(tmp_path / "mine.py")]
    by_module = load(tmp_path, kind, f"{package.name}.parts:{name}")
    assert list(by_module.config()["code"]) == [f"{tmp_path}/{package.name}.parts"]
    (package / "__init__.py").write_text("# counts too\n")
    assert load(tmp_path, kind, f"{package.name}.parts:{name}").key != by_module.key


def name_in(folder, kind):
    names = {
        "tolerance": "AfterPasses",
        "repair": "LostLast",
        "order": "Interleaved",
        "congestion_control": "Aimd",
        "filling": "Faded",
        "impairment": "FlappingRate",
        "topology": "Topology",
        "detector": "Parameters",
        "model": "build",
        "dataset": "load",
        "optimiser": "Mine",
        "schedule": "Halves",
    }
    return names[kind]


@pytest.mark.parametrize("kind", PLACES)
def test_a_process_of_the_run_refuses_a_file_that_has_changed(tmp_path, kind):
    path = place(tmp_path, kind)
    planned = load(tmp_path, kind).config()["code"]
    own_code.expect(planned)
    place(tmp_path, kind, good(kind) + "# changed\n")
    with pytest.raises(InputError, match=r"mine\.py: has changed since the run was planned"):
        own_code.load(str(path), axis=kind, default="", base=None)
    with pytest.raises(InputError, match=r"mine\.py: has changed since the run was planned"):
        own_code.expect(planned)


# What it does.


def lossy(seed=3):
    return Network(survives=bernoulli(0.2, seed))


def test_an_own_congestion_control_order_and_repair_carry_a_transfer(tmp_path):
    layout = layout_of(300)
    payload = random_payload(layout)
    protocol = ProtocolConfig(
        name="mine",
        repair=str(EXAMPLES / "own_repair.py"),
        order={"name": str(EXAMPLES / "own_order.py"), "stride": 5},  # type: ignore[arg-type]
        congestion_control=f"{EXAMPLES}/own_congestion_control.py:Aimd:decrease=0.7",
    )
    control = CONGESTION_CONTROLS.create(protocol.congestion_control, datagram_bytes=60)
    outcome = transfer(
        payload,
        layout,
        network=lossy(),
        congestion=control,
        order=ORDERS.create(protocol.order),
        repair=REPAIRS.create(protocol.repair),
    )
    assert np.array_equal(outcome.into, payload)
    assert control.window_bytes != 600  # it has heard of the path
    described: dict[str, Any] = protocol.describe()
    assert ProtocolConfig(**described) == protocol


def test_an_own_order_is_a_permutation(tmp_path):
    order = ORDERS.create(f"{EXAMPLES}/own_order.py:stride=4")

    layout = layout_of(10)
    rows = layout.rows(layout.new_buffer())
    found = order.permutation(OrderContext(transfer=0, layout=layout, rows=rows))
    assert found.tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]


def test_an_own_tolerance_stops_a_transfer_by_its_own_rule():
    policy = as_policy({"policy": str(EXAMPLES / "own_tolerance.py"), "share": 0.5, "passes": 3})
    layout = layout_of(200)
    outcome = transfer(
        random_payload(layout),
        layout,
        rule=policy.stop_rule(critical=False)(layout),
        network=Network(survives=lambda sequence, nth: sequence < 150),
    )
    assert outcome.sender.report("x").passes == 3
    assert outcome.receiver.received_count == 150
    assert as_policy(str(policy)) == policy
    assert str(policy).endswith("own_tolerance.py:share=0.5,passes=3")


def test_a_tolerance_that_derives_from_a_built_in_one_does_not_pass_for_it(tmp_path):
    """A run is described by text: one that names `fixed` would run `fixed`."""
    text = "from testbed.transport.tolerance import Fixed\nclass Mine(Fixed): pass\n"
    path = place(tmp_path, "tolerance", text)
    assert str(as_policy(f"{path}:tolerance=0.1")) == f"{path}:tolerance=0.1"
    place(tmp_path, "tolerance", text.replace("pass", "__str__ = lambda self: 'fixed'"))
    with pytest.raises(InputError, match="Mine must not define __str__"):
        as_policy(f"{path}:tolerance=0.1")


def test_an_own_filling_fills_a_round():
    filling = FILLINGS.create(f"{EXAMPLES}/own_filling.py:fade=0.25")
    gradients = gradients_of(1)
    buffers = [LAYOUT.new_buffer()]
    first = estimate(filling, gradients, [np.ones(4, dtype=bool)], buffers=buffers).copy()
    second = estimate(filling, gradients, [np.zeros(4, dtype=bool)], buffers=buffers)
    assert np.allclose(second, 0.25 * first)


def test_an_own_detector_watches_rounds(tmp_path):
    place(tmp_path, "detector")
    detector = load(tmp_path, "detector").experiment.phases.create(rounds_per_epoch=10)
    seen = []
    for number, size in enumerate((4.0, 1.0, 3.0)):
        gradient = np.full(4, size, dtype=np.float32)
        detector.observe(
            Observation(
                round_number=number, gradient=gradient, learning_rate=0.1, next_learning_rate=0.1
            )
        )
        seen.append(detector.critical)
    assert seen == [True, False, True]
    assert detector.state()["_largest"] == pytest.approx(8.0)


def test_an_own_model_learns_own_data(tmp_path):
    for kind in ("model", "dataset", "optimiser", "schedule"):
        (tmp_path / f"{kind}.py").write_text(good(kind))
    training = {
        "model": "./model.py",
        "dataset": {"name": "./dataset.py", "arguments": {"noise": 0.1}},
        "optimiser": "./optimiser.py",
        "schedule": {"kind": "./schedule.py"},
    }
    (run,) = load_all(write(tmp_path, "model", training=training))
    assert set(run.config()["code"]) == {str(tmp_path / f"{each}.py") for each in training}
    prerequisites.prepare([run.training_need], print)
    found = run.experiment.training
    data = datasets.load(found.dataset)
    from testbed.training.learner import Replica
    from testbed.training.models import build

    learner = Replica(
        build(found.model, 1, classes=data.classes, input_shape=data.input_shape),
        dataset=data,
        batches=datasets.batches(np.arange(1000), 32, 1, 0),
        optimiser={
            "name": found.optimiser,
            "learning_rate": 0.1,
            "momentum": 0.5,
            "weight_decay": 0.0,
        },
    )
    gradient = np.empty(sum(each.numel() for each in learner._trained), dtype=np.float32)
    rate = found.schedule.factor(Position(round_number=0, rounds=9, rounds_per_epoch=3))
    assert rate == 0.5
    for _ in range(20):
        learner.gradient(gradient)
        learner.apply(gradient, 0.1 * rate)
    assert learner.evaluate() > 0.9


def load_all(path):
    from testbed import experiment

    return experiment.load(str(path))


def test_an_own_topology_is_built(tmp_path):
    place(tmp_path, "topology")
    topology = topologies.build(load(tmp_path, "topology").experiment.topology)
    assert topology.switches() == ["s1", "s2", "s3"]
    assert sorted(topology.hosts()) == ["server", "worker-1", "worker-2"]


def test_an_own_impairment_has_a_short_label_and_keys_of_its_own(tmp_path):
    place(tmp_path, "impairment")
    (entry,) = load(tmp_path, "impairment").config()["impairments"]
    assert entry["kind"] == str(tmp_path / "mine.py")
    assert entry["name"] == "mine-server"
    assert entry["share"] == 0.25


@pytest.mark.parametrize("framework_free", [True, False])
def test_a_controller_by_hand_takes_an_own_impairment_that_needs_openflow_alone(
    tmp_path, framework_free
):
    import yaml

    from controllers import lab_file
    from tests.controllers.test_lab_file import EXAMPLE

    place(tmp_path, "impairment", good("impairment") + f"    openflow_only = {framework_free}\n")
    document = yaml.safe_load(EXAMPLE.read_text())
    host = next(iter(document["hosts"]))
    document["impairments"] = [{"kind": "./mine.py", "host": host, "at_s": [1], "duration_s": 1}]
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(document))
    if framework_free:
        assert lab_file.read(path)["impairments"][0]["kind"] == str(tmp_path / "mine.py")
    else:
        with pytest.raises(InputError, match=r"impairments\.0\.kind: .*mine\.py.* valid: burst"):
            lab_file.read(path)


# Options, as text and as a mapping.

OPTIONS = {
    "tolerance": ("gather", "share", 0.4),
    "repair": ("repair", "interval_s", 0.002),
    "order": ("order", "stride", 3),
    "congestion_control": ("congestion_control", "decrease", 0.7),
    "filling": ("filling", "fade", 0.75),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_are_a_text_or_a_mapping(tmp_path, kind):
    key, option, value = OPTIONS[kind]
    path = place(tmp_path, kind)
    found = set()
    for given in (
        f"./mine.py:{option}={value}",
        {"name": "./mine.py", option: value},
        {"name": str(path), option: value},
    ):
        arms = {"mine": {"protocol": "dblp", key: given}}
        (run,) = load_all(write(tmp_path, kind, arms=arms))
        config = run.config()
        found.add(config["filling"]["gather"] if kind == "filling" else config["protocol"][key])
    assert found == {f"{path}:{option}={value}"}
    for wrong in (f"./mine.py:no_such={value}", {"name": "./mine.py", "no_such": value}):
        arms = {"mine": {"protocol": "dblp", key: wrong}}
        with pytest.raises(InputError, match="has no option 'no_such'; valid options: .*" + option):
            load_all(write(tmp_path, kind, arms=arms))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("congestion_control", {"name": "cubic", "beta": 0.8}, "cubic:beta=0.8"),
        ("order", {"name": "rotating", "share": 0.5}, "rotating:share=0.5"),
        ("repair", {"name": "passes"}, "passes"),
        ("gather", {"name": "fixed", "tolerance": 0.1}, "fixed:tolerance=0.1"),
    ],
)
def test_built_in_entries_may_be_mappings_too(tmp_path, key, value, text):
    arms = {"mine": {"protocol": "dblp", key: value}}
    (run,) = load_all(write(tmp_path, "order", arms=arms))
    assert run.config()["protocol"][key] == text


@pytest.mark.parametrize("key", ["congestion_control", "order", "repair"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"beta": 0.8}, "or a mapping with the key 'name'"),
        (3, "or a mapping with the key 'name'"),
        ({"name": "nothing"}, "unknown"),
        ({"name": "./mine.py", "text": "a,b=c"}, "texts without commas"),
    ],
)
def test_a_mapping_that_names_nothing_is_one_line(tmp_path, key, value, said):
    place(tmp_path, key)
    arms = {"mine": {"protocol": "dblp", key: value}}
    with pytest.raises(InputError, match=said) as caught:
        load_all(write(tmp_path, "order", arms=arms))
    assert "\n" not in str(caught.value)


# Bad input.

BROKEN = {
    "no such file": (None, "./mine.py", "no such file"),
    "no such module": ("", "no_such_package_here:Name", "no module 'no_such_package_here'"),
    "syntax": ("x = (\n", "./mine.py", "mine.py: line 1: '(' was never closed"),
    "raises": ("\n1 / 0\n", "./mine.py", "mine.py: line 2: ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(3)\n", "./mine.py", "mine.py: line 1: SystemExit: 3"),
    "needs": ("import no_such_thing\n", "./mine.py", "line 1: ModuleNotFoundError"),
    "empty": ("", "./mine.py", "mine.py: defines no "),
    "no such name": ("", "./mine.py:Name", "mine.py: defines no 'Name'; expected "),
    "not what was asked for": ("Name = 3\n", "./mine.py:Name", "mine.py: Name is int; expected "),
    "another class": ("class Name: pass\n", "./mine.py:Name", "mine.py: Name is a class of anot"),
}


# Any class may be called for a model or a data set, so for these there is no wrong one.
CASES = [
    (kind, broken)
    for kind in PLACES
    for broken in BROKEN
    if not (kind in ("model", "dataset") and broken == "another class")
]


@pytest.mark.parametrize(("kind", "broken"), CASES)
def test_what_is_wrong_with_own_code_is_one_line_and_nothing_is_begun(
    tmp_path, monkeypatch, capsys, kind, broken
):
    text, reference, said = BROKEN[broken]
    if text is not None:
        place(tmp_path, kind, text)
    path = write(tmp_path, kind, reference)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["lab", "run", str(path), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each.startswith("lab: ")]
    assert str(path) in line
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize("kind", ["tolerance", "congestion_control", "order", "filling", "repair"])
def test_a_class_that_lacks_a_method_and_one_that_raises_are_one_line(tmp_path, kind):
    bases = {
        "tolerance": "from testbed.transport import TolerancePolicy as Base",
        "congestion_control": "from testbed.transport import CongestionControl as Base",
        "order": "from testbed.transport import ChunkOrder as Base",
        "filling": "from testbed.training.filling import Filling as Base",
        "repair": "from testbed.transport import Repair as Base",
    }
    place(tmp_path, kind, f"{bases[kind]}\nclass Mine(Base): pass\n")
    with pytest.raises(InputError, match=r"mine\.py: Mine lacks .*, which every "):
        load(tmp_path, kind)
    methods = [
        "tolerance",
        "rate_bps",
        "on_feedback",
        "permutation",
        "estimate_mean",
        "sender",
        "receiver",
    ]
    body = "".join(f"    def {each}(self, *_): pass\n" for each in methods)
    raising = "    def __init__(self): raise KeyError('width')\n"
    place(tmp_path, kind, f"{bases[kind]}\nclass Mine(Base):\n{body}{raising}")
    with pytest.raises(InputError, match=r"mine\.py: line \d+: KeyError: 'width'"):
        load(tmp_path, kind)


def test_a_file_with_two_candidates_asks_which(tmp_path):
    second = good("order").replace("class Interleaved", "class Other").partition("class Other")[2]
    place(tmp_path, "order", good("order") + "\n\nclass Other" + second)
    with pytest.raises(InputError, match=r"defines Interleaved, Other; say which .*:Interleaved"):
        load(tmp_path, "order")
    assert load(tmp_path, "order", "./mine.py:Other").protocol.order.endswith("mine.py:Other")


def test_the_file_is_executed_once_for_each_content(tmp_path):
    counted = (
        "from pathlib import Path\n"
        "with Path(__file__).with_name('n').open('a') as file: file.write('x')\n"
    )
    place(tmp_path, "order", counted + good("order"))
    for _ in range(3):
        load(tmp_path, "order")
    assert (tmp_path / "n").read_text() == "x"


def test_what_is_validated_elsewhere_needs_no_folder(tmp_path, monkeypatch):
    """A resolved configuration is read by processes that run in other folders."""
    place(tmp_path, "topology")
    config = load(tmp_path, "topology").config()
    monkeypatch.chdir("/")
    assert topologies.parse(config["topology"]).host_names()[0] == "server"


def test_the_optimisers_of_a_user_get_what_they_take(tmp_path):
    import torch

    text = (
        "import torch\n"
        "class Plain(torch.optim.Optimizer):\n"
        "    def __init__(self, params, lr): super().__init__(params, {'lr': lr})\n"
        "    def step(self):\n"
        "        for group in self.param_groups:\n"
        "            for each in group['params']: each.data -= group['lr'] * each.grad\n"
    )
    path = place(tmp_path, "optimiser", text)
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    found = optimisers.build(str(path), [weight], learning_rate=0.5, momentum=0.9, weight_decay=0.1)
    weight.grad = torch.tensor([1.0])
    found.step()
    assert weight.item() == 0.5


# The example as a whole.


def test_the_example_is_planned_and_names_all_its_files(tmp_path):
    done = CliRunner().invoke(
        app, ["plan", str(EXAMPLES / "own.yaml"), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    used = set()
    for run in load_all(EXAMPLES / "own.yaml"):
        used |= {place.rpartition("/")[2] for place in run.code}
    assert used == {path.name for path in EXAMPLES.glob("*.py")}


def test_the_examples_need_nothing_of_the_folder_they_are_in(tmp_path):
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    here = [run.key for run in load_all(tmp_path / "own.yaml")]
    assert here == [run.key for run in load_all(EXAMPLES / "own.yaml")]
