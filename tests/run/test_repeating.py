"""A run is repeated from what it stored, beside the old one, and what differs is said."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from testbed.cli import rerun_view
from testbed.run import planning, repeating, runner
from testbed.shared.input_error import InputError
from testbed.shared.run_directory import read_json, write_json, write_status
from tests.examples.places import good, load

MADE_BY_SCRIPT = {"adjustable": False}


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """A finished run with own code, and the configurations that labs have executed."""
    (tmp_path / "mine.py").write_text(good("order"))
    run = load(tmp_path, "order")
    executed = []
    facts = {"kernel": "6.1.0", "commit": "aaaa", "packages": {"torch": "2.1", "numpy": "1"}}

    def in_sandbox(directory, on_progress):
        executed.append(read_json(directory / "config.json"))
        write_json(directory / "manifest.json", facts)
        write_status(directory, "ok", wall_s=7.0)
        return 0

    monkeypatch.setattr(runner, "_in_sandbox", in_sandbox)
    monkeypatch.setattr(rerun_view.capabilities, "require", lambda: None)
    results = tmp_path / "runs"
    planning.extend(results, [run])
    outcome = runner.execute(results, run, lambda record: None)
    facts |= {"kernel": "6.18.44", "packages": {"torch": "2.2", "numpy": "1"}}
    return outcome.directory, executed


def repeated(directory):
    screen = io.StringIO()
    done = rerun_view.rerun(directory, Console(file=screen, width=80))
    return done, screen.getvalue()


def test_the_same_configuration_runs_beside_the_old_run_and_the_differences_are_told(ended):
    directory, executed = ended
    done, said = repeated(directory)
    first, second = executed
    assert done
    assert first == second
    beside = directory.parents[1] / repeating.FOLDER / "small" / directory.name
    assert read_json(beside / "status.json")["verdict"] == "ok"
    assert read_json(directory / "manifest.json")["kernel"] == "6.1.0"  # the old run is whole
    assert "differs: kernel: 6.1.0, now 6.18.44" in said
    assert "differs: packages torch: 2.1, now 2.2" in said
    assert "numpy" not in said
    assert "commit" not in said
    assert "now: ok, 7 s" in said
    assert [each["key"] for each in planning.read(beside.parent)["runs"]] == [directory.name]
    assert len(planning.read(directory.parent)["runs"]) == 1


def test_a_further_repetition_keeps_the_one_before(ended):
    directory, executed = ended
    repeated(directory)
    repeated(directory)
    folder = directory.parents[1] / repeating.FOLDER / "small"
    assert sorted(each.name for each in folder.glob("mine-*")) == [
        directory.name,
        f"{directory.name}.attempt1",
    ]
    assert len(executed) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_text("x = 1\n"), r"mine\.py: has changed since this run, so noth"),
        (lambda path: path.unlink(), r"its own code has gone: .*mine\.py: No such file"),
    ],
)
def test_own_code_that_has_changed_or_gone_is_refused_and_nothing_is_begun(
    ended, tmp_path, change, said
):
    directory, executed = ended
    change(tmp_path / "mine.py")
    with pytest.raises(InputError, match=said):
        repeated(directory)
    assert len(executed) == 1
    assert not (directory.parents[1] / repeating.FOLDER).exists()


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no configuration that can be read"):
        repeated(tmp_path)


def test_a_run_of_a_script_is_refused_in_one_line(ended):
    directory, executed = ended
    write_json(directory / "config.json", read_json(directory / "config.json") | MADE_BY_SCRIPT)
    with pytest.raises(InputError, match=r"^\S+: a script made this run; run the script again$"):
        repeated(directory)
    assert len(executed) == 1
