"""The profiles for larger machines run: three rounds of each replay, with data that are at hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import experiment
from testbed.experiment import files
from testbed.shared import yaml_input
from tests.experiment.test_expansion import PAPER_ITEMS

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("unchanged_host"),
]
ROUNDS, BATCH = 3, 32
LIKE_CIFAR10 = """
import numpy as np

def part(count):
    return np.random.default_rng(count).random((count, 3, 32, 32)), np.arange(count) % 10

def load():
    return *part(500), *part(100)
"""


def shortened(name: str, profile: str, folder: Path) -> dict[str, Any]:
    """An experiment as a profile has it, with one arm, one point, three rounds, one of them hit."""
    document = yaml_input.read(experiment.find(name))
    files.apply_profile(document, profile)
    arms = [name for name in document["arms"] if name != "none"]
    arm = "dblp" if "dblp" in arms else arms[0]
    factors = {
        factor: [_level(levels[-1], arm) if isinstance(levels[-1], dict) else levels[-1]]
        for factor, levels in document.get("factors", {}).items()
    }
    document = _few_rounds(document)
    document |= {"rounds": ROUNDS, "seeds": [1], "factors": factors, "profiles": {}}
    document["arms"] = {arm: document["arms"][arm]}
    document.setdefault("limits", {})["run_timeout_s"] = 900
    training = document["training"]
    training["evaluate_every"] = ROUNDS
    training["batch_size"] = min(training.get("batch_size", BATCH), BATCH)  # for two processors
    if training.get("dataset") == "cifar10":
        (folder / "like_cifar10.py").write_text(LIKE_CIFAR10, encoding="utf-8")
        training["dataset"] = str(folder / "like_cifar10.py")
    return document


def _level(level: dict[str, Any], arm: str) -> dict[str, Any]:
    """A level without what it says of the number of rounds and of other arms."""
    return {
        key: _few_rounds(value, key.rpartition(".")[2])
        for key, value in level.items()
        if key != "rounds" and (not key.startswith("arms.") or key.split(".")[1] == arm)
    }


def _few_rounds(value: Any, key: str = "") -> Any:
    """The same with the first round critical and the second one hit, where it names rounds."""
    if key == "critical_rounds":
        return [[0, 0]]
    if key == "rounds" and not isinstance(value, int):
        return [1]
    if isinstance(value, dict):
        return {inner: _few_rounds(entry, inner) for inner, entry in value.items()}
    return [_few_rounds(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("profile", ["server", "paper"])
@pytest.mark.parametrize("name", PAPER_ITEMS)
def test_a_replay_runs_with_the_sizes_of_a_larger_machine(name, profile, tmp_path):
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump(shortened(name, profile, tmp_path), sort_keys=False))
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.execute", str(path), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    (status,) = (tmp_path / "out").glob("*/*/status.json")
    result = json.loads(status.read_text())
    assert result["verdict"] in ("ok", "invalid"), result["reason"] + done.stdout + done.stderr
    rounds = (status.parent / "events" / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == ROUNDS, done.stdout
