"""The controller's order to a sender to leave datagrams out: memory that both processes map.

The controller writes the share that is to vanish, the sender the counts: each word has one writer.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORDS = 3


class DropOrder:
    """One order: `met` datagrams came while it was in force, and `left_out` of them did not go."""

    def __init__(self, path: Path, seed: str = "") -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8 * _WORDS)
        self._share: NDArray[np.float64] = np.frombuffer(self._memory, np.float64, 1)
        self._counts: NDArray[np.int64] = np.frombuffer(self._memory, np.int64, 2, offset=8)
        self._random = np.random.default_rng(list(hashlib.sha256(seed.encode()).digest()))

    @classmethod
    def make(cls, folder: Path, name: str, host: str) -> DropOrder:
        """Make the controller's order of the impairment `name` for the sender `host`."""
        path = _place(folder, name, host)
        path.write_bytes(bytes(8 * _WORDS))
        path.chmod(0o666)  # the workload's processes are not root's
        return cls(path)

    def set(self, share: float) -> None:
        """Let this share vanish from now on; 0 for none."""
        self._share[0] = share

    @property
    def met(self) -> int:
        return int(self._counts[0])

    @property
    def left_out(self) -> int:
        return int(self._counts[1])

    def draw(self, count: int) -> NDArray[np.bool_] | None:
        """Draw for the sender which of `count` datagrams vanish, shape (count,); None: none."""
        share = self._share[0]
        if not share:
            return None
        gone = self._random.random(count) < share
        self._counts[0] += count
        self._counts[1] += np.count_nonzero(gone)
        return gone


def orders(folder: Path, host: str, impairments: Collection[Mapping[str, Any]]) -> list[DropOrder]:
    """Open a sender's orders that the controller has made, of a run's resolved impairments."""
    return [
        DropOrder(path, seed=f"{impairment.get('seed', '')}/{host}")
        for impairment in impairments
        if (path := _place(folder, impairment["name"], host)).exists()
    ]


def _place(folder: Path, name: str, host: str) -> Path:
    key = hashlib.sha256(f"{name}/{host}".encode()).hexdigest()
    return folder / f"sender-drop-{key[:16]}"
