"""Compares the congestion control that a run's endpoints used with the one that its arm asks for.

Each endpoint writes what it used into `events/endpoint-HOST.jsonl`: for kernel TCP what the kernel
says of every socket after the last round, for our own transport what its senders were built with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

KEY = "congestion_control"


def difference(directory: Path, wanted: str) -> str:
    """Where another congestion control was in use, in words; empty where none was.

    Args:
        directory: of the run, whose training has ended.
        wanted: the `congestion_control` of the run's protocol.
    """
    found = [(place, used) for place, used in _in_use(directory) if used != wanted]
    if not found:
        return ""
    place, used = found[0]
    more = f", and {len(found) - 1} more" if found[1:] else ""
    return f"congestion control {wanted!r} was asked for, and {place} used {used!r}{more}"


def _in_use(directory: Path) -> Iterator[tuple[str, str]]:
    """The endpoints' peers in words, each with the congestion control towards it."""
    for path in sorted((directory / "events").glob("endpoint-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            for peer, facts in record.get("facts", {}).items():
                if KEY in facts:
                    yield f"{record.get('host')} towards {peer}", facts[KEY]
