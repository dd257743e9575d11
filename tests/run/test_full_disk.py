"""A full disk ends a sweep in one line, and what was done stays."""

import errno
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed import experiment
from testbed.__main__ import main
from testbed.cli import execution
from testbed.run import runner, supervisor
from testbed.shared import messages, run_directory
from testbed.shared.run_directory import BALLAST, BALLAST_BYTES, read_json, write_status
from tests.experiment.small import write


def free(monkeypatch, *amounts):
    """The disk has these numbers of free bytes, one after the other; the last stays."""
    left = list(amounts)

    def disk_usage(path):
        assert path.exists()
        return SimpleNamespace(free=left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)


@pytest.fixture
def path(tmp_path):
    return Path(write(tmp_path))


@pytest.fixture
def run(path):
    return experiment.load(str(path), arms=["dblp"], seeds=1)[0]


def sweep(monkeypatch, path, *arguments):
    argv = ["lab", *arguments, str(path), "--out", str(path.parent / "o")]
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(execution.capabilities, "require", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_run_holds_room_for_its_verdict_and_gives_it_back(run, tmp_path):
    place = runner.directory_of(tmp_path, run)
    with place.open(run.config()) as directory:
        assert (directory / BALLAST).stat().st_blocks * 512 >= BALLAST_BYTES
        write_status(directory, "ok")
    assert not (place.path / BALLAST).exists()


def test_without_room_nothing_is_begun(path, monkeypatch, capsys):
    free(monkeypatch, 5_000_000)
    assert sweep(monkeypatch, path, "run") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lab: ")
    assert "the disk is full: 5.0 MB are free, and the next run of small may take 32 MB" in line
    assert "./lab clean" in line and "the same command again" in line
    assert not (path.parent / "o").exists()


def test_a_disk_that_fills_up_ends_the_sweep_and_the_same_command_goes_on(
    path, monkeypatch, capsys
):
    verdicts: list[run_directory.Verdict] = ["ok", "interrupted", "ok", "ok", "ok", "ok"]
    began = []

    def in_sandbox(directory, on_progress, *, last):
        began.append(directory)
        reason = run_directory.DISK_FULL if verdicts[0] == "interrupted" else ""
        write_status(directory, verdicts.pop(0), reason)
        return ""

    monkeypatch.setattr(runner, "_in_sandbox", in_sandbox)
    free(monkeypatch, *[10**12] * 4, 10**6)
    assert sweep(monkeypatch, path, "run") == 2
    output = capsys.readouterr()
    assert "interrupted: the disk is full" in output.out
    assert output.err.count("\n") == 1
    assert "may take 32 MB; make room" in output.err
    assert len(began) == 2
    free(monkeypatch, 10**12)
    monkeypatch.setattr("testbed.cli.report_view.write", lambda *_, **__: [])
    assert sweep(monkeypatch, path, "run") == 0
    follows = "goes on with the others; --anew executes what is ok again"
    line = f"{path.parent}/o/small: of 4 runs 1 ok, 1 interrupted: {follows}"
    assert line in capsys.readouterr().out
    assert began.count(began[0]) == 1  # was ok
    assert began.count(began[1]) == 2


def test_the_next_run_needs_twice_what_the_largest_took(run, tmp_path, monkeypatch):
    other = runner.directory_of(tmp_path, run).path.with_name("other")
    other.mkdir(parents=True)
    write_status(other, "ok")
    (other / "large").touch()
    with (other / "large").open("r+b") as file:
        file.truncate(10**9)
    free(monkeypatch, 1_900_000_000)
    with pytest.raises(runner.DiskFullError, match=r"1\.9 GB are free, .* may take 2\.0 GB"):
        runner.require_space(tmp_path, run)
    free(monkeypatch, 2_100_000_000)
    runner.require_space(tmp_path, run)


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_on_a_full_disk_is_interrupted_whatever_could_not_be_written(
    tmp_path, monkeypatch, fails
):
    def execute(directory, progress, *, last):
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device", "events/rounds.jsonl")
        return [], ""

    monkeypatch.setattr(supervisor, "execute", execute)
    monkeypatch.setattr(run_directory, "disk_is_full", lambda directory: True)
    supervisor.in_sandbox({"directory": str(tmp_path), "last": True}, messages.pair()[0])
    status = read_json(tmp_path / "status.json")
    assert status["verdict"] == "interrupted"
    assert status["reason"].startswith("the disk is full")
    assert ("events/rounds.jsonl" in status["reason"]) is fails
