"""Event logs: one JSON object per line, with the schema's version, never buffered."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import IO, Any, ClassVar
from weakref import WeakKeyDictionary

from testbed.shared.run_directory import open_file

SCHEMA = 1
# Systems allow 1024 files in a process or more, and a simulation of 10,000 workers has 20,000 logs.
MOST_OPEN = 512


def read(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file, but for a cut-off last line; none where there is no file."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines if line.strip()]


class JsonLinesWriter:
    """Appends records to a file that this process alone writes."""

    _open: ClassVar[WeakKeyDictionary[JsonLinesWriter, None]] = WeakKeyDictionary()

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: IO[bytes] | None = None
        self._opened()

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            if len(self._open) >= MOST_OPEN:
                next(iter(self._open)).close()
            self._file = open_file(self._path, "ab", buffering=0)
            self._open[self] = None
        return self._file

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps({"schema": SCHEMA, **record}, allow_nan=False).encode() + b"\n"
        if self._opened().write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        """Close the file; another record opens it again."""
        self._open.pop(self, None)
        file, self._file = self._file, None
        if file is not None:
            file.close()
