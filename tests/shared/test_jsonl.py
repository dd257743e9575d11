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
    with log.open("ab") as file:
        file.write(b'{"name": "c')
        file.flush()
        assert len(jsonl.read(log)) == 1
        file.write(b"\n")
    with pytest.raises(ValueError, match="Unterminated"):
        jsonl.read(log)
