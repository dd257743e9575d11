"""A run whose endpoints used another congestion control than its arm asks for is not ok."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from testbed.verdict.congestion_read_back import difference


def endpoint(directory: Path, host: str, facts: Mapping[str, Mapping[str, object]]) -> None:
    (directory / "events").mkdir(exist_ok=True)
    record = {"schema": 1, "host": host, "facts": facts, "ignored": {}}
    (directory / "events" / f"endpoint-{host}.jsonl").write_text(json.dumps(record) + "\n")


def test_what_differs_from_what_was_asked_for_is_named_with_its_place(tmp_path):
    assert difference(tmp_path, "bbr") == ""  # nobody says anything
    endpoint(tmp_path, "server", {"worker-1": {"congestion_control": "bbr"}, "worker-2": {}})
    assert difference(tmp_path, "bbr") == ""
    peers = {f"worker-{rank}": {"congestion_control": "cubic"} for rank in (1, 2)}
    endpoint(tmp_path, "server", peers)
    assert difference(tmp_path, "bbr") == (
        "congestion control 'bbr' was asked for, and server towards worker-1 used 'cubic', "
        "and 1 more"
    )
