"""Reads what has been added to JSON-lines files since the last look."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_AT_ONCE_BYTES = 1 << 16


class Tail:
    """Follows one file that may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._rest = b""

    def lines(self) -> list[bytes]:
        """The whole lines that are new, at most 64 KiB of them."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY)
            except OSError:
                return []
        data = os.read(self._descriptor, _AT_ONCE_BYTES)
        if not data:
            return []
        *whole, self._rest = (self._rest + data).split(b"\n")
        return whole

    def records(self) -> Iterator[dict[str, Any]]:
        """The new lines that hold a JSON object."""
        for line in self.lines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record
