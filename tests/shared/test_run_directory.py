"""Run directories and logs: nothing half-written passes for a result, nothing is overwritten."""

import os
import signal
from pathlib import Path

import pytest

from testbed.shared import jsonl
from testbed.shared.jsonl import JsonLinesWriter
from testbed.shared.run_directory import (
    InUseError,
    RunDirectory,
    read_json,
    write_json,
    write_status,
    write_text,
)


def test_a_run_appears_under_its_name_only_with_a_verdict(tmp_path):
    place = RunDirectory(tmp_path / "x" / "key")
    with place.open({"a": 1}) as directory:
        assert directory.name == "key.partial"
        assert not place.path.exists()
        assert place.verdict() is None
        write_status(directory, "ok")
    assert place.verdict() == "ok"
    assert read_json(place.path / "config.json") == {"a": 1}
    assert not place.partial.exists()


def test_the_next_attempt_keeps_what_was_left_behind_as_interrupted(tmp_path):
    place = RunDirectory(tmp_path / "key")
    with pytest.raises(RuntimeError), place.open({"attempt": 1}):
        raise RuntimeError
    assert place.verdict() is None
    assert place.partial.exists()
    with place.open({"attempt": 2}) as directory:
        write_status(directory, "ok")
    kept = tmp_path / "key.attempt1"
    assert read_json(kept / "status.json")["verdict"] == "interrupted"
    assert read_json(kept / "config.json") == {"attempt": 1}
    assert read_json(place.path / "config.json") == {"attempt": 2}


def killed_after_its_verdict(place, verdict):
    """Leave what a command does that SIGKILL ends before it gives the run its name."""
    pid = os.fork()
    if not pid:
        with place.open({"attempt": "killed"}) as directory:
            write_status(directory, verdict)
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert place.partial.exists()


def test_a_run_whose_command_is_killed_after_the_verdict_is_finished_later(tmp_path):
    place = RunDirectory(tmp_path / "key")
    with place.open({"attempt": 1}) as directory:
        write_status(directory, "invalid")
    killed_after_its_verdict(place, "ok")
    assert place.verdict() == "invalid"
    assert place.finish_left_over()
    assert place.verdict() == "ok"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.attempt1"]
    assert not place.finish_left_over()
    killed_after_its_verdict(place, "interrupted")  # a full disk, or Ctrl-C before
    assert not place.finish_left_over()
    with place.open({"attempt": 3}) as directory:
        with pytest.raises(InUseError):
            place.finish_left_over()
        write_status(directory, "ok")


def test_a_new_attempt_keeps_a_run_that_was_killed_after_the_verdict(tmp_path):
    place = RunDirectory(tmp_path / "key")
    killed_after_its_verdict(place, "invalid")
    with place.open({"attempt": 2}) as directory:
        write_status(directory, "ok")
    assert read_json(tmp_path / "key.attempt1" / "status.json")["verdict"] == "invalid"


def test_a_failed_run_is_set_aside_and_not_overwritten(tmp_path):
    place = RunDirectory(tmp_path / "key")
    for verdict in ("failed", "invalid", "ok"):
        with place.open({}) as directory:
            write_status(directory, verdict)
    assert place.verdict() == "ok"
    verdicts = [read_json(tmp_path / f"key.attempt{n}/status.json")["verdict"] for n in (1, 2)]
    assert verdicts == ["failed", "invalid"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"verdict": "great"}'])
def test_a_status_that_cannot_be_read_is_no_verdict(tmp_path, text):
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "status.json").write_text(text)
    assert RunDirectory(tmp_path / "key").verdict() is None


def test_a_file_is_replaced_whole_and_what_cannot_be_written_leaves_it_as_it_was(tmp_path):
    for text in ("before", "as it was"):
        write_text(tmp_path / "a.yaml", text)
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.yaml", "much that can be encoded" * 10_000 + "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]
    assert (tmp_path / "a.yaml").read_text() == "as it was"


def test_a_full_disk_is_an_error_and_not_a_shorter_log():
    with pytest.raises(OSError, match="No space left"):
        JsonLinesWriter(Path("/dev/full")).write({"round": 1})


def test_a_planted_link_leads_nowhere(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    for name in ("status.json", "rounds.jsonl"):
        (tmp_path / name).symlink_to(elsewhere)
    write_json(tmp_path / "status.json", {"a": 1})
    assert read_json(tmp_path / "status.json") == {"a": 1}
    assert not (tmp_path / "status.json").is_symlink()
    with pytest.raises(OSError, match="symbolic links"):
        JsonLinesWriter(tmp_path / "rounds.jsonl")
    assert elsewhere.read_text() == "kept"


def test_a_cut_off_last_line_is_no_record_and_a_wrong_whole_line_is_an_error(tmp_path: Path):
    log = tmp_path / "some.jsonl"
    assert jsonl.read(log) == []
    writer = jsonl.JsonLinesWriter(log)
    writer.write({"name": "a"})
    assert jsonl.read(log) == [{"schema": jsonl.SCHEMA, "name": "a"}]
    with pytest.raises(ValueError, match="JSON"):
        writer.write({"loss": float("nan")})
    with log.open("ab") as file:
        file.write(b'{"name": "c')
        file.flush()
        assert len(jsonl.read(log)) == 1
        file.write(b"\n")
    with pytest.raises(ValueError, match="Unterminated"):
        jsonl.read(log)


def test_very_many_writers_do_not_keep_as_many_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "MOST_OPEN", 3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    writers = [jsonl.JsonLinesWriter(tmp_path / f"{number}.jsonl") for number in range(20)]
    for part in range(3):
        for number, writer in enumerate(writers):
            writer.write({"number": number, "part": part})
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3
    for number in range(20):
        read = jsonl.read(tmp_path / f"{number}.jsonl")
        assert [(line["number"], line["part"]) for line in read] == [(number, p) for p in range(3)]
