"""Results are found by an experiment's name, its YAML file, or a folder, in every verb alike."""

import io
import json
import shutil
from pathlib import Path

import pytest
import yaml

from testbed.cli import places
from testbed.cli.places import Place
from testbed.shared.input_error import InputError

KEY = "dblp-s1-0123456789"


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    """`out/small` holds a run, `small.yaml` is its file."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "out" / "small" / KEY
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run.parent / "plan.json").write_text("{}")
    (tmp_path / "small.yaml").write_text("name: small\n")
    return Path("out")


@pytest.mark.parametrize("what", ["small", "small.yaml", "out/small", "out/small/"])
def test_an_experiment_is_found_by_name_file_and_folder(results, what):
    assert places.find(what, results) == Place(results=results, experiment="small")


def test_a_folder_of_results_and_one_of_a_run_are_told_apart(results, monkeypatch):
    assert places.find("out", Path("runs")) == Place(results=results)
    assert places.find(None, results) == Place(results=results)
    assert places.find("out", Path("missing")) == Place(results=Path("missing"), experiment="out")
    (results / "small" / "plan.json").unlink()
    assert places.find("out/small", Path("runs")) == Place(results=results, experiment="small")
    run = places.find(f"out/small/{KEY}", Path("runs"))
    assert run == Place(results=results, experiment="small", key=KEY)
    monkeypatch.chdir("out/small")
    assert places.find(".", Path("runs")).experiment == "small"
    assert places.find(KEY, Path("runs")).folder == Path.cwd() / KEY
    for what, message in (("no/where", "no/where: no such folder"), ("other.yaml", "No such file")):
        with pytest.raises(InputError, match=message):
            places.find(what, Path("runs"))


@pytest.mark.parametrize("what", ["small", "small.yaml", "out/small"])
def test_an_experiment_s_results_are_deleted_with_their_report(results, what, in_process):
    (results / "report").mkdir()
    (results / "report" / "summary.json").write_text(json.dumps({"experiment": "small"}))
    status, out, err = in_process("clean", what, "--out", "out", "--yes")
    assert status == 0, err
    assert out.startswith("removed out/small (")
    assert not (results / "small").exists()
    assert not (results / "report").exists()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("n\n", "nothing was removed"),
        ("", "nothing was removed; --yes does not ask"),
        (None, "nothing was removed; --yes does not ask"),  # standard input is closed
    ],
)
def test_nothing_is_deleted_without_a_yes(results, answer, message, in_process, monkeypatch):
    monkeypatch.setattr("sys.stdin", None if answer is None else io.StringIO(answer))
    status, out, err = in_process("clean", "out/small")
    assert status == 1, err
    assert out.splitlines()[1:] == [message]
    assert (results / "small").exists()


def test_folders_that_hold_no_results_are_not_removed(results, in_process):
    for name in ("mine", "empty"):
        (results / name).mkdir()
    (results / "mine" / "topology.svg").write_text("")
    (results / "mine" / "thesis.tex").write_text("")
    for name in ("mine", "empty", f"small/{KEY}"):
        status, _, err = in_process("clean", f"out/{name}", "--yes")
        assert status == 2, err
        assert (results / name).is_dir()


@pytest.mark.parametrize("name", ["../victim/gate", "..", "/etc", "a/b", "", 7, None])
def test_a_name_in_a_file_is_never_a_path(results, tmp_path, in_process, name):
    for folder in ("victim/gate", "out/a/b"):
        shutil.copytree(results / "small", tmp_path / folder)
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump({"name": name, "rounds": 2, "seeds": [1]}))
    before = sorted(tmp_path.rglob("*"))
    verbs = ("run", "simulate", "plan", "watch", "report", "explain")
    for verb in (*verbs, "report --format=zip -o x.zip", "clean --yes"):
        words = (*verb.split(), "bad.yaml", "--out", "out")
        status, _, err = in_process(*words)
        assert status == 2 and "bad.yaml" in err and "name" in err, (verb, err)
    for place in ({"experiment": name}, {"experiment": "small", "key": name}):
        if name is not None:
            with pytest.raises(InputError, match="no path"):
                Place(results=results, **place)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("what", ["first", "./first/", "."])
def test_the_report_of_a_scripts_run_lies_in_the_folder_that_is_named(
    tmp_path, what, in_process, monkeypatch
):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        config = {"schema": 1, "arm": "script", "seed": 1, "adjustable": True}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        status = {"schema": 1, "verdict": "failed", "reason": "it broke", "gates": []}
        (tmp_path / name / "status.json").write_text(json.dumps(status))
    monkeypatch.chdir(tmp_path / "first" if what == "." else tmp_path)
    status, out, err = in_process("report", what)
    assert status == 0, err
    assert f"report: {tmp_path}/first/report/index.html" in out
    assert f"./lab explain {tmp_path}/first says why" in out
    summary = json.loads((tmp_path / "first" / "report" / "summary.json").read_text())
    assert summary["verdicts"]["failed"] == sum(summary["verdicts"].values()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]
