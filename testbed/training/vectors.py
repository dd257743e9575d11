"""Flat float32 vectors: sums and means in rank order, and memory that training processes share."""

import math
import mmap
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

# So many elements of a few vectors fit a processor's cache, so each is read from memory once.
_BLOCK = 1 << 14


def finite(value: float) -> float | None:
    """The value, or None when it is NaN or infinite (JSON has neither)."""
    return value if math.isfinite(value) else None


def all_finite(vector: Vector) -> bool:
    """Whether no element is NaN or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum alone would do, but it may overflow. It needs no memory.
        return bool(np.isfinite(vector.sum()) or np.isfinite(vector).all())


def drop_nonfinite(vector: Vector) -> None:
    """Set elements that are NaN or infinite to zero."""
    if not all_finite(vector):
        vector[~np.isfinite(vector)] = 0


def sum_into(gradients: Sequence[Vector], out: Vector) -> None:
    """Write the sum of equally long vectors to `out`, which may be one of them."""
    for block in _blocks(out):
        _sum_block(gradients, out, block)


def mean_into(gradients: Sequence[Vector], out: Vector) -> None:
    """Write the mean of equally long vectors to `out`, with the same order of additions."""
    count = np.float32(len(gradients))
    for block in _blocks(out):
        _sum_block(gradients, out, block)
        out[block] /= count


def _blocks(vector: Vector) -> Iterator[slice]:
    return (slice(at, at + _BLOCK) for at in range(0, len(vector), _BLOCK))


# In a fixed order, so that every reliable transport gives the same bits.
def _sum_block(gradients: Sequence[Vector], out: Vector, block: slice) -> None:
    if len(gradients) == 1:
        out[block] = gradients[0][block]
        return
    total = gradients[0][block] + gradients[1][block]
    for gradient in gradients[2:]:
        total += gradient[block]
    out[block] = total


class SharedVectors:
    """Vectors for each worker, in memory that children share, to compare arrived with sent."""

    def __init__(self, workers: Sequence[str], elements: int) -> None:
        self.gradients = {name: _shared(elements) for name in workers}
        self.updates = {name: _shared(elements) for name in workers}
        self.weights = {name: _shared(elements) for name in workers}


def _shared(elements: int) -> Vector:
    """Zeros in memory that children of this process share; untouched pages take no memory."""
    return np.frombuffer(mmap.mmap(-1, 4 * elements), dtype=np.float32)
