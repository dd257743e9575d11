"""Memory that all training processes share, to compare what arrived with what was sent.

The emulated network must carry nothing but the training's own traffic, and a file would cost time:
anonymous shared memory, made before the processes are forked, does neither. Nobody waits for
anybody here; the barriers of a round order writing and reading.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class SharedVectors:
    """Flat float32 vectors of `elements` elements for each worker.

    Attributes:
        gradients: what each worker computed in this round, before anything was lost.
        updates: what each worker received and applied.
        weights: each worker's replica after the update.
    """

    def __init__(self, workers: Sequence[str], elements: int) -> None:
        self.gradients = {name: _vector(elements) for name in workers}
        self.updates = {name: _vector(elements) for name in workers}
        self.weights = {name: _vector(elements) for name in workers}


def _vector(elements: int) -> NDArray[np.float32]:
    """Zeros in memory that children of this process share; untouched pages take no room."""
    return np.frombuffer(mmap.mmap(-1, 4 * elements), dtype=np.float32)
