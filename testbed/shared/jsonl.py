"""Event logs: one JSON object per line, with the schema's version, never buffered."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from testbed.shared.unlinked import open_file

SCHEMA = 1


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a file: none where there is no such file, nor of a cut-off last line.

    Raises:
        ValueError: a whole line is no JSON.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


class JsonLinesWriter:
    """Appends records to a file that this process alone writes.

    A line is written by one call, so that a killed process leaves at most one cut-off last line.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_file(path, "ab", buffering=0)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record."""
        line = json.dumps({"schema": SCHEMA, **record}, allow_nan=False).encode() + b"\n"
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
