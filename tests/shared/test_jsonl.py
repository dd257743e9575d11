"""Event logs that are read while, or after, they are written."""

from pathlib import Path

import pytest

from testbed.shared import jsonl


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
        assert [(each["number"], each["part"]) for each in read] == [(number, p) for p in range(3)]
