"""Whatever a user's own code does wrong during a run: one line with file, line and what it was."""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from testbed.shared import failure, own_code
from testbed.training.filling import estimate_mean, payload_of
from testbed.training.fillings import FILLINGS
from testbed.training.phases import Observation, observe
from testbed.training.state import Replica, RunContext
from testbed.transport import CONGESTION_CONTROLS, ORDERS, REPAIRS
from tests.examples.places import load
from tests.training.one_round import LAYOUT
from tests.transport.virtual import Network, bernoulli, layout_of, random_payload, transfer

BASES = """
import math, time
import numpy as np
import torch
from dataclasses import dataclass
from testbed.transport import *
from testbed.transport import Repair, SenderRepair
from testbed.transport.repair import Selective
from testbed.training.filling import Filling, SenderMemory
from testbed.training.phases import Detector, DetectorParameters
from testbed.training.settings import Schedule
"""


@pytest.fixture(autouse=True)
def _expect_nothing_afterwards():
    yield
    own_code.expect({})


def use(path, text):
    path.write_text(text)
    own_code.expect({str(path): own_code.fingerprint(str(path))})


def fault(act, tmp_path, text):
    """The line that a run's status would have after own code of this text has acted."""
    path = tmp_path / "mine.py"
    use(path, BASES + text)
    with pytest.raises(BaseException) as caught:
        act(str(path))
    words = failure.in_words(caught.value)
    assert "\n" not in words
    assert words.startswith(f"{path}: line "), words
    line = int(words.removeprefix(f"{path}: line ").partition(":")[0])
    assert "HERE" in (BASES + text).splitlines()[line - 1], words
    return words


def sent(**own: Any) -> None:
    layout = layout_of(100)
    transfer(random_payload(layout), layout, network=Network(survives=bernoulli(0.3, 1)), **own)


def by_kind(registry, key):
    """Sends by the policy of this key that the own code implements."""
    return lambda path: sent(**{key: registry.create(path)})


congestion = by_kind(CONGESTION_CONTROLS, "congestion")
order, repair = by_kind(ORDERS, "order"), by_kind(REPAIRS, "repair")


def filling(path):
    made = FILLINGS.create(path)
    buffers = [LAYOUT.new_buffer()]
    payload_of(made.sender_memory(LAYOUT), buffers[0])
    missing = [np.ones(LAYOUT.chunk_count, dtype=bool)]
    estimate_mean(made, LAYOUT, buffers, missing, out=LAYOUT.new_buffer())


def detector(path, tmp_path):
    built = load(tmp_path, "detector").experiment.phases.create(rounds_per_epoch=3)
    gradient = np.ones(4, dtype=np.float32)
    seen = Observation(round_number=0, gradient=gradient, learning_rate=1)
    observe(built, seen)


def schedule(path, tmp_path):
    training = load(tmp_path, "schedule").config()["training"]
    context: Any = SimpleNamespace(training=training, rounds=3, rounds_per_epoch=3)
    context._schedule = vars(RunContext)["_schedule"].func(context)
    RunContext.learning_rate(context, 0)


def model(path):
    from testbed.training import datasets, models
    from testbed.training.datasets import splits

    data = datasets.load("digits")
    built = models.build(path, 1, classes=data.classes, input_shape=data.input_shape)
    batches = splits.batches(np.arange(64), 8, 1, 0)
    sgd = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    learner = Replica(built, dataset=data, batches=batches, optimiser=sgd)
    learner.gradient(np.empty(sum(p.numel() for p in built.parameters()), dtype=np.float32))


rate = """\
class Mine(CongestionControl):
    def on_feedback(self, feedback): pass
    @property  # HERE
    def rate_bps(self): return {}
""".format

feedback = """\
class Mine(CongestionControl):
    rate_bps = 1e8
    def on_feedback(self, feedback): {}  # HERE
""".format

permutation = """\
class Mine(ChunkOrder):
    def permutation(self, context): return {}  # HERE
""".format

sends = """\
from testbed.transport.repair.selective import SelectiveSender
class Half(SelectiveSender):
    def upcoming(self, limit): return {}  # HERE
@dataclass(frozen=True, kw_only=True)
class Mine(Selective):
    def sender(self, **given): return Half(**given)
""".format

fills = """\
class Mine(Filling):
    def estimate_mean(self, layout, buffers, received, out): {}  # HERE
""".format

remembers = """\
class Memory(SenderMemory):
    def payload(self, gradient): return {}  # HERE
class Mine(Filling):
    def estimate_mean(self, layout, buffers, received, out): pass
    def sender_memory(self, layout): return Memory()
""".format

detects = """\
class Mine(Detector):
    def observe(self, seen): {}  # HERE
class Parameters(DetectorParameters):
    def create(self, rounds_per_epoch): return Mine()
""".format

factor = """\
class Mine(Schedule):
    def _factor(self, at): return {}  # HERE
""".format

network = """\
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64, 10))
    def forward(self, inputs): return {}  # HERE
def build(classes, input_shape): return Model()
""".format


FAULTS: dict[str, tuple[Any, str, str]] = {
    "rate negative": (congestion, rate("-1e6"), "Mine.rate_bps is -1000000.0; expected bit/s"),
    "feedback raises": (congestion, feedback("raise RuntimeError('my bug')"), "Error: my bug"),
    "order short": (order, permutation("np.arange(3)"), "of shape (3,) and type int64; expected"),
    "repair beyond": (repair, sends("np.array([10**6])"), "from 0 to 99"),
    "filling returns": (filling, fills("return out"), "Mine.estimate_mean returned ndarray of sh"),
    "filling raises in numpy": (filling, fills("np.ones(3) + np.ones(4)"), "ValueError: operands"),
    "payload short": (filling, remembers("gradient[1:]"), "Memory.payload returned ndarray of sh"),
    "detector raises": (detector, detects("seen.no"), "AttributeError: "),
    "schedule NaN": (schedule, factor("math.nan"), "Mine._factor returned nan; expected a number"),
    "model raises": (model, network("inputs @ self.weight"), "RuntimeError: mat1 and mat2"),
}


@pytest.mark.parametrize(("act", "text", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_own_code_names_its_file_and_line_and_what_it_was(tmp_path, act, text, words):
    further = {"tmp_path": tmp_path} if act in (detector, schedule) else {}
    assert words in fault(functools.partial(act, **further), tmp_path, text)


def test_a_detector_that_decides_nothing_is_named(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(BASES + detects("self.critical = 'perhaps'"))
    with pytest.raises(own_code.InputError, match=r"Mine\.critical is 'perhaps'; expected True or"):
        detector(str(path), tmp_path)


def test_what_nobody_expected_names_the_type_the_place_and_the_own_code_in_use(tmp_path):
    path = tmp_path / "mine.py"
    use(path, "x = 1\n")
    with pytest.raises(ValueError, match="broadcast") as caught:
        np.ones(3) + np.ones(4)
    words = failure.in_words(caught.value)
    assert words.startswith("ValueError: operands could not be broadcast")
    assert "(tests/run/test_own_code_faults.py: line " in words
    assert words.endswith(f"; the run uses {path}")
