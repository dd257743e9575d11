"""A copy of each shipped part and example, edited in one place, takes the original's place."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import topologies
from controllers.impairments import KINDS
from testbed import experiment
from testbed.shared.registry import Registry
from testbed.shared.yaml_input import InputError
from testbed.training import models
from testbed.training.datasets import DATASETS
from testbed.training.fillings import FILLINGS
from testbed.training.phases import DETECTORS
from testbed.transport import CONGESTION_CONTROLS, REPAIRS
from tests.examples.places import ONE_RUN, PLACES
from tests.experiment import small

REGISTRIES: dict[str, Registry[Any]] = {
    "repair": REPAIRS,
    "congestion_control": CONGESTION_CONTROLS,
    "filling": FILLINGS,
    "impairment": KINDS,
    "topology": topologies.TOPOLOGIES,
    "detector": DETECTORS,
    "model": models.BUILDERS,
    "dataset": DATASETS,
}
SHIPPED = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]

# The keys that an entry needs beside its name.
NEEDS: dict[str, dict[str, Any]] = {
    "loss": {"q": 0.5},
    "sender-drop": {"q": 0.5, "leg": "broadcast"},
    "queue": {"rate_bps": 5_000_000},
    "delay": {"delay_s": 0.01},
    "background": {"from": "worker-1"},
    "straggler": {"host": "worker-1", "factor": 2},
    "crash": {"host": "worker-1"},
    "schedule": {"critical_rounds": [[0, 2]]},
    "gpt2-small": {"dataset": "stdlib-text"},
    "gpt2-tiny": {"dataset": "stdlib-text"},
    "gpt2-mini": {"dataset": "stdlib-text"},
    "word-embedding": {"dataset": "verses"},
    "stdlib-text": {"sequence_length": 32},
}
# Where a file holds one entry and helpers of its kind, the name says which one is meant.
NAMES = {"stdlib-text": "Parameters"}


def place_of(kind: str, name: str, reference: str, needs: dict[str, Any]) -> dict[str, Any]:
    place = PLACES[kind](reference)
    if kind in ("topology", "impairment", "detector"):
        (section,) = place.values()
        (section[0] if isinstance(section, list) else section).update(needs)
    elif kind == "dataset":
        model = "gpt2-tiny" if name == "stdlib-text" else "mlp"
        place["training"] = {"model": model, "dataset": {"name": reference, **needs}}
    elif kind == "model":
        place["training"].update(needs)
    elif needs:
        place["arms"]["mine"][kind] = {"name": reference, **needs}
    return place


def load(folder: Path, kind: str, name: str, reference: str) -> experiment.Run:
    needs = NEEDS.get(name, {})
    training = {"pace": {"kind": "payload-only", "compute_s": 0.01}}
    place = place_of(kind, name, reference, needs)
    (run,) = experiment.load(small.write(folder, **{**ONE_RUN, "training": training, **place}))
    return run


def copied(folder: Path, kind: str, name: str) -> str:
    """A reference to a copy of an entry's file, with another first line of its own."""
    registry = REGISTRIES[kind]
    entry = registry.entry(name)
    file = inspect.getfile(entry)
    source = Path(file).read_text(encoding="utf-8")
    (folder / "mine.py").write_text(re.sub(r'\A"""', '"""My own: ', source))
    files = [inspect.getfile(registry.entry(other)) for other in registry]
    named = NAMES.get(name) if files.count(file) == 1 else entry.__name__
    return f"./mine.py:{named}" if named else "./mine.py"


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_a_copy_is_planned_wherever_the_original_is(tmp_path, kind, name):
    reference = copied(tmp_path, kind, name)
    try:
        original = load(tmp_path, kind, name, name)
    except InputError as refused:
        # A part that needs more than this experiment has: the copy is told the same.
        with pytest.raises(InputError) as caught:
            load(tmp_path, kind, name, reference)
        message = str(caught.value).replace(f"{tmp_path}/mine.py", name).replace("mine.py", name)
        assert re.sub(rf"{name}:\w+", name, message) == str(refused)
        assert name not in NEEDS
        return
    run = load(tmp_path, kind, name, reference)
    assert list(run.code) == [str(tmp_path / "mine.py")]
    assert run.key != original.key


COUNTED = ["burst", "loss", "sender-drop", "link-down", "crash"]


@pytest.mark.parametrize("name", COUNTED)
def test_a_copied_impairment_counts_as_the_original(tmp_path, name):
    run = load(tmp_path, "impairment", name, copied(tmp_path, "impairment", name))
    (entry,) = run.config()["impairments"]
    copy: Any = KINDS.entry(entry["kind"])
    original: Any = KINDS.entry(name)
    assert copy.counts_as == original.counts_as == name
    assert copy.changes_rates == original.changes_rates != "anywhere"
