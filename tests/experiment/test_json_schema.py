"""The JSON schema takes what the lab takes, and refuses what it refuses."""

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from testbed.cli.verbs import app
from testbed.experiment import EXPERIMENTS, json_schema, load
from testbed.shared import yaml_input
from testbed.shared.yaml_input import InputError

_SHIPPED = [
    path
    for folder in (EXPERIMENTS, EXPERIMENTS.parent / "examples")
    for path in sorted(folder.rglob("*.yaml"))
    if not {"results", "profiles"} & set(path.parts)
]
SCHEMA = json_schema.build()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_verb_prints_a_valid_schema_of_the_draft() -> None:
    result = CliRunner().invoke(app, ["schema"])
    printed = json.loads(result.stdout)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed == json.loads(json.dumps(SCHEMA))


@pytest.mark.parametrize("path", _SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_experiment_is_valid_and_tells_editors_of_a_file_that_exists(
    path: Path,
) -> None:
    document = yaml_input.read(path)
    assert [iter_error.message for iter_error in VALIDATOR.iter_errors(document)] == []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# yaml-language-server: $schema="):
            assert (path.parent / line.partition("=")[2]).is_file()


_WRONG: list[tuple[str, Any]] = [
    ("rouns", 3),
    ("rounds", "many"),
    ("topology.k", 4),  # of another topology
    ("topology.links", {"s1--server": {"delay": 1}}),
    ("training.optimiser", "lion"),
    ("training.dataset", {"name": "digits", "size": 3}),
    ("training.split", {"name": "dirichlet"}),
    ("training.pace", {"kind": "paced"}),
    ("phases.epochs_back", 3),  # of another detector
    ("phases", {"detector": "schedule"}),
    ("arms.dblp.protocol", "quic"),
    ("arms.dblp.tolerance", 0.3),  # of another protocol
    ("arms.dblp.high", -0.5),
    ("impairments.0.kind", "earthquake"),
    ("impairments.0.rate_factor", 3),  # of another kind
    ("limits.waive", ["rate_eror"]),
]
_RIGHT: list[tuple[str, Any]] = [
    ("topology", {"name": "fat-tree", "k": 4, "workers": 3, "core": {"delay_s": 0.001}}),
    ("training.split", {"name": "dirichlet", "alpha": 0.5}),
    ("training.pace", "payload-only"),
    ("phases", {"detector": "schedule", "critical_rounds": [[0, 3]]}),
    ("arms.dblp", {"protocol": "dblp", "order": "shuffled:seed=5", "low": 0.01}),
    ("arms.dblp", {"protocol": "ltp", "deadline_s": 0.2, "gather": 0.2}),
    ("arms.dblp.gather", {"policy": "phased", "low": 0.1, "high": 0.2}),
    ("arms.dblp.filling", "hadamard:seed=3"),
    ("impairments.0.rounds", {"every": 5, "from": 2}),
    ("factors", {"impairments.0.q": [0.5, 0.9]}),
    ("factors", {"k": [{"label": 1, "arms.dblp.high": 0.2}, {"label": "b"}]}),
    (
        "profiles",
        {"server": {"topology.rate_bps": 1_000_000_000, "arms.none": {"protocol": "none"}}},
    ),
]


@pytest.mark.parametrize(("key", "value"), [*_WRONG, *_RIGHT], ids=lambda value: str(value)[:40])
def test_the_schema_refuses_what_the_lab_refuses_and_takes_the_rest(
    key: str, value: Any, tmp_path: Path
) -> None:
    document = yaml_input.read(EXPERIMENTS / "quick.yaml")
    yaml_input.replace(document, key, value)
    (path := tmp_path / "experiment.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    wrong = (key, value) in _WRONG
    errors = [iter_error.message for iter_error in VALIDATOR.iter_errors(document)]
    assert bool(errors) is wrong, errors
    with pytest.raises(InputError) if wrong else contextlib.nullcontext():
        load(str(path))
