"""`./lab new`: each kind of file is planned as it was written, and bad names are one line."""

import shlex

import pytest
import yaml
from typer.testing import CliRunner

from testbed import experiment
from testbed.cli import maintenance
from testbed.cli.verbs import app
from testbed.shared.input_error import InputError
from tests.examples.places import EXAMPLES


def lab(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def commands(printed: str) -> list[list[str]]:
    return [
        shlex.split(line.partition("./lab ")[2])
        for line in printed.splitlines()
        if "./lab " in line
    ]


@pytest.mark.parametrize("kind", maintenance.KINDS)
def test_a_new_part_is_planned_by_the_command_and_by_the_line_that_are_told(tmp_path, kind):
    printed = lab("new", kind, "my_part")
    assert printed.startswith("wrote my_part.py\n")
    text = (tmp_path / "my_part.py").read_text()
    assert "own_" not in text
    assert text.startswith('"""')
    (command,) = commands(printed)
    assert command[:-1] == ["plan", "quick", "--arms", "dblp", "--set"]
    (run, *_) = experiment.load("quick", arms=["dblp"], overrides=[command[-1]])
    assert list(run.code) == [str(tmp_path / "my_part.py")]

    lab("new", "experiment", "mine")
    suggested = yaml.safe_load(printed.splitlines()[1].partition("in an experiment beside it: ")[2])
    if "training" in suggested:
        suggested["training"]["batch_size"] = 8
    document = yaml.safe_load((tmp_path / "mine.yaml").read_text()) | suggested
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(document))
    assert str(tmp_path / "my_part.py") in {
        place for run in experiment.load("mine.yaml") for place in run.code
    }


def test_a_new_experiment_is_planned_and_says_what_to_type(tmp_path):
    printed = lab("new", "experiment", "my-first")
    assert commands(printed) == [["plan", "my-first.yaml"], ["run", "my-first.yaml"]]
    run, *others = experiment.load("my-first.yaml")
    assert len(others) == 3
    assert run.experiment.name == "my-first"
    assert run.experiment.topology.rate_bps == 50_000_000
    assert run.experiment.topology.core.delay_s == 0.002


def test_what_a_new_experiment_suggests_in_comments_works(tmp_path):
    """With the marks of comments taken away, and the files that it tells to write."""
    lab("new", "experiment", "all")
    text = (tmp_path / "all.yaml").read_text()
    for kind, name in (("congestion-control", "my_control"), ("impairment", "my_impairment")):
        assert f"./lab new {kind} {name}" in text
        lab("new", kind, name)
    for start in ("mine: {", "- { kind: ./my_", "factors: {"):
        assert f"# {start}" in text
        text = text.replace(f"# {start}", start)
    (tmp_path / "all.yaml").write_text(text)
    runs = experiment.load("all.yaml")
    assert len(runs) == 3 * 2 * 3
    assert {arm for run in runs for arm in run.experiment.arms} == {"dblp", "fixed-low", "mine"}


def test_every_example_begins_a_file_of_its_kind():
    assert {maintenance.example(kind) for kind in maintenance.KINDS} == {
        path.stem for path in EXAMPLES.glob("own_*.py")
    }


def test_a_folder_and_the_ending_may_stand_in_the_name(tmp_path):
    (tmp_path / "parts").mkdir()
    printed = lab("new", "topology", "parts/ring.py")
    assert (tmp_path / "parts" / "ring.py").is_file()
    assert "to do" in lab(*commands(printed)[0], "--out", "out")


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.py").write_text("precious")
    with pytest.raises(InputError, match=r"mine\.py: is there already; choose another name"):
        maintenance.write_new("order", "mine")
    assert (tmp_path / "mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("topolgy", "x1", "unknown kind 'topolgy'; valid: experiment, topology, .*'topology'"),
        ("topology", "my-topo", "cannot name a Python file; .*, such as my_part$"),
        ("topology", "class", "cannot name a Python file"),
        ("topology", "", "cannot name a Python file"),
        ("topology", "random", "Python has a module of that name; choose another, my_random"),
        ("experiment", "My_First", "cannot name an experiment; .*, such as my-experiment$"),
    ],
)
def test_a_name_that_does_not_fit_is_one_line_and_nothing_is_written(tmp_path, kind, name, message):
    with pytest.raises(InputError, match=message):
        maintenance.write_new(kind, name)
    assert not list(tmp_path.iterdir())
