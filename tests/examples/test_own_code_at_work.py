"""Each kind of a user's own code does in a run what its author wrote, with the options given."""

from typing import Any

import numpy as np
import pytest
import torch

from testbed.shared.yaml_input import InputError
from testbed.training import datasets, prerequisites
from testbed.training.datasets import splits
from testbed.training.fillings import FILLINGS
from testbed.training.models import build
from testbed.training.phases import Observation
from testbed.training.settings import Position
from testbed.training.state import Replica, build_optimiser
from testbed.transport import (
    CONGESTION_CONTROLS,
    ORDERS,
    REPAIRS,
    ProtocolConfig,
    as_policy,
)
from tests.examples.places import EXAMPLES, good, load, load_all, place, write
from tests.training.one_round import LAYOUT, estimate, gradients_of
from tests.transport.virtual import Network, bernoulli, layout_of, random_payload, transfer


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
        network=Network(survives=bernoulli(0.2, 3)),
        congestion=control,
        order=ORDERS.create(protocol.order),
        repair=REPAIRS.create(protocol.repair),
    )
    assert np.array_equal(outcome.into, payload)
    assert control.window_bytes != 600  # it has heard of the path
    described: dict[str, Any] = protocol.describe()
    assert ProtocolConfig(**described) == protocol


def test_an_own_tolerance_stops_a_transfer_by_its_own_rule():
    policy = as_policy(
        {"policy": str(EXAMPLES / "own_tolerance.py"), "tolerated": 0.5, "passes": 3}
    )
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
    assert str(policy).endswith("own_tolerance.py:tolerated=0.5,passes=3")


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
        detector.observe(Observation(round_number=number, gradient=gradient, learning_rate=0.1))
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
    assert set(run.config()["code"]) == {str(tmp_path / f"{part}.py") for part in training}
    prerequisites.prepare([run.training_need], print)
    training_settings = run.experiment.training
    data = datasets.load(training_settings.dataset)
    learner = Replica(
        build(training_settings.model, 1, classes=data.classes, input_shape=data.input_shape),
        dataset=data,
        batches=splits.batches(np.arange(1000), 32, 1, 0),
        optimiser={
            "name": training_settings.optimiser,
            "learning_rate": 0.1,
            "momentum": 0.5,
            "weight_decay": 0.0,
        },
    )
    gradient = np.empty(sum(parameter.numel() for parameter in learner._trained), dtype=np.float32)
    rate = training_settings.schedule.factor(Position(round_number=0, rounds=9, rounds_per_epoch=3))
    assert rate == 0.5
    for _ in range(20):
        learner.gradient(gradient)
        learner.apply(gradient, 0.1 * rate)
    assert learner.evaluate() > 0.9


def test_an_own_impairment_has_a_short_label_and_keys_of_its_own(tmp_path):
    place(tmp_path, "impairment")
    (entry,) = load(tmp_path, "impairment").config()["impairments"]
    assert entry["kind"] == str(tmp_path / "mine.py")
    assert entry["name"] == "mine-server"
    assert entry["share"] == 0.25


def test_the_optimisers_of_a_user_get_what_they_take(tmp_path):
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
    optimiser = build_optimiser(
        str(path), [weight], learning_rate=0.5, momentum=0.9, weight_decay=0.1
    )
    weight.grad = torch.tensor([1.0])
    optimiser.step()
    assert weight.item() == 0.5


OPTIONS = {
    "tolerance": ("gather", "tolerated", 0.4),
    "order": ("order", "stride", 3),
    "congestion_control": ("congestion_control", "decrease", 0.7),
    "filling": ("filling", "fade", 0.75),
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_are_a_text_or_a_mapping(tmp_path, kind):
    key, option, value = OPTIONS[kind]
    path = place(tmp_path, kind)
    described = set()
    for reference in (
        f"./mine.py:{option}={value}",
        {"name": "./mine.py", option: value},
        {"name": str(path), option: value},
    ):
        arms = {"mine": {"protocol": "dblp", key: reference}}
        (run,) = load_all(write(tmp_path, kind, arms=arms))
        config = run.config()
        described.add(config["filling"]["gather"] if kind == "filling" else config["protocol"][key])
    assert described == {f"{path}:{option}={value}"}
    for wrong in (f"./mine.py:no_such={value}", {"name": "./mine.py", "no_such": value}):
        arms = {"mine": {"protocol": "dblp", key: wrong}}
        with pytest.raises(InputError, match="has no option 'no_such'; valid options: .*" + option):
            load_all(write(tmp_path, kind, arms=arms))


@pytest.mark.parametrize("key", ["congestion_control", "order", "repair"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"beta": 0.8}, "or a mapping with the key 'name'"),
        (3, "or a mapping with the key 'name'"),
        ({"name": "nothing"}, "unknown"),
        ({"name": "./mine.py", "text": "a,b=c"}, "texts without commas"),
    ],
)
def test_a_mapping_that_names_nothing_is_one_line(tmp_path, key, value, message):
    place(tmp_path, key)
    arms = {"mine": {"protocol": "dblp", key: value}}
    with pytest.raises(InputError, match=message) as caught:
        load_all(write(tmp_path, "order", arms=arms))
    assert "\n" not in str(caught.value)
