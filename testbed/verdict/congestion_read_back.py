"""Compares the congestion control that a run's endpoints used with the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from testbed.shared import jsonl, run_directory

KEY = "congestion_control"


def difference(directory: Path, wanted: str) -> str:
    """Where an endpoint used another congestion control, in words; empty where none did."""
    found = [
        f"{record.get('host')} towards {peer} used {facts[KEY]!r}"
        for path in sorted((directory / "events").glob("endpoint-*.jsonl"))
        for record in jsonl.read(path)
        for peer, facts in record.get("facts", {}).items()
        if facts.get(KEY, wanted) != wanted
    ]
    if not found:
        return ""
    more = f", and {len(found) - 1} more" if found[1:] else ""
    return f"congestion control {wanted!r} was asked for, and {found[0]}{more}"


def difference_of_hosts(directory: Path, wanted: Mapping[str, str]) -> str:
    """Where a host's connection used another congestion control, in words; empty: nowhere."""
    sampled = run_directory.read_or_empty(directory / "samples" / "sampler.json")
    for each in sampled.get("congestion_controls", []):
        asked = wanted.get(each["host"], each[KEY])
        if each[KEY] != asked:
            return (
                f"congestion control {asked!r} was asked for, and a connection of {each['host']} "
                f"towards {each['peer']} used {each[KEY]!r}"
            )
    return ""
