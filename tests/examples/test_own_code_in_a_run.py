"""A user's own code counts in the key of a run, wherever it lies and however it is named."""

import hashlib
import json
import shutil

import pytest
from typer.testing import CliRunner

import topologies
from testbed.cli.verbs import app
from tests.examples.places import EXAMPLES, PLACES, good, load, load_all, place

# Where a run's configuration has each kind that is no setting of the protocol.
PARTS = {
    "filling": "filling",
    "impairment": "impairments",
    "topology": "topology",
    "detector": "phases",
    **dict.fromkeys(("model", "dataset", "optimiser", "schedule"), "training"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_run_names_the_file_and_its_hash_and_depends_on_it(tmp_path, kind):
    path = place(tmp_path, kind)
    first = load(tmp_path, kind)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert first.config()["code"] == {str(path): sha256}
    assert str(path) in json.dumps(first.config()[PARTS.get(kind, "protocol")])
    assert load(tmp_path, kind).key == first.key
    place(tmp_path, kind, good(kind) + "# another content\n")
    assert load(tmp_path, kind).key != first.key


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


def test_the_example_is_planned_names_all_its_files_and_needs_no_folder(tmp_path):
    done = CliRunner().invoke(
        app, ["plan", str(EXAMPLES / "own.yaml"), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    runs = load_all(EXAMPLES / "own.yaml")
    used = {place.rpartition("/")[2] for run in runs for place in run.code}
    assert used == {path.name for path in EXAMPLES.glob("own_*.py")}
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    assert [run.key for run in load_all(tmp_path / "own.yaml")] == [run.key for run in runs]
