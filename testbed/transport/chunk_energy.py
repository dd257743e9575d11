"""The energy of chunks, the sum of their elements' squares, as a level of one byte each.

`MUST`, the highest bit, marks a chunk that must arrive in any case. The rest is the energy in
sixths of a power of two below the payload's largest, which is 127; 1 is all that is less, 0
nothing. So sums are known between bounds that are at most a factor of 1.13 apart.
"""

import math

import numpy as np
from numpy.typing import NDArray

from testbed.transport.errors import ProtocolError
from testbed.transport.layout import PayloadLayout

MUST = 128
_LARGEST = MUST - 1
_STEPS = 6  # to a power of two
_ROUNDING = 1e-5  # of sums in single precision
_BLOCK = 1024  # chunks that are squared at a time: they stay in a cache
# Below, squares in single precision lose digits.
_LEAST = 1e-30


def _bounds() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    most = 2.0 ** ((np.arange(MUST) - _LARGEST) / _STEPS)
    least = np.roll(most, 1) * (1 - _ROUNDING)
    most[0] = least[0] = least[1] = 0.0
    return np.tile(least, 2), np.tile(most, 2)


# By byte: the energy in parts of the payload's largest, at the least and at the most.
LEAST, MOST = _bounds()


def energies(rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns the energy of each chunk, shape (chunk_count,); NaN where an element is NaN."""
    floats = rows.view("<f4")
    energy = np.empty(len(floats), dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for first in range(0, len(floats), _BLOCK):
            part = floats[first : first + _BLOCK]
            np.einsum("ij,ij->i", part, part, out=energy[first : first + _BLOCK], casting="safe")
        unsure = np.flatnonzero(~((energy > _LEAST) & (energy < np.inf)))
        exact = floats[unsure].astype(np.float64)
        energy[unsure] = np.einsum("ij,ij->i", exact, exact)
    return energy


def by_tensor(
    energy: NDArray[np.float64], rows: NDArray[np.uint8], layout: PayloadLayout
) -> NDArray[np.float64]:
    """Returns the energy of each chunk in parts of its tensors' mean energy per element."""
    pieces = layout.pieces
    first = np.flatnonzero(np.diff(pieces.chunk, prepend=-1))
    several = np.diff(first, append=len(pieces.chunk))[pieces.chunk] > 1
    sums = energy[pieces.chunk]
    mixed = pieces.chunk[several]
    if len(mixed):
        chunks, place = np.unique(mixed, return_inverse=True)
        squares = np.square(rows[chunks].view("<f4"), dtype=np.float64)
        ends = np.cumsum(pieces.elements)
        starts = (ends - pieces.elements)[several] - mixed * layout.elements_per_chunk
        sums[several] = np.add.reduceat(squares.reshape(-1), place * squares.shape[1] + starts)
    sound = np.where(np.isfinite(sums), sums, 0.0)
    mean = np.bincount(pieces.tensor, sound) / np.maximum(
        np.bincount(pieces.tensor, pieces.elements), 1
    )
    mean[mean == 0] = 1.0
    parts: NDArray[np.float64] = sums / mean[pieces.tensor]
    return np.bincount(pieces.chunk, parts, minlength=len(energy)).astype(np.float64)


def encode(energy: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Returns the levels of energies; only those that are no finite numbers are MUST."""
    levels = np.zeros(len(energy), dtype=np.uint8)
    some = np.isfinite(energy) & (energy > 0)
    if some.any():
        parts = np.maximum(energy[some] / energy[some].max(), 1e-300)
        # A little more than nothing: rounding must not put one above its bound.
        steps = np.ceil(_LARGEST + _STEPS * np.log2(parts) - 1e-9)
        levels[some] = np.clip(steps, 1, _LARGEST)
    levels[~np.isfinite(energy)] = MUST
    return levels


def decode(body: bytes, *, chunk_count: int, repeated: bool) -> NDArray[np.uint8]:
    """Returns the levels of an ENERGY message, shape (chunk_count,); a transfer has only one."""
    if repeated or len(body) != chunk_count:
        raise ProtocolError(
            f"ENERGY with a body of {len(body)} bytes; valid: {chunk_count}, once a transfer"
        )
    return np.frombuffer(body, dtype=np.uint8)


def by_level(levels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Returns the chunks' numbers: what must arrive, then the most energy, equal ones ascending."""
    return np.argsort(~levels, kind="stable")


def needed_chunks(
    levels: NDArray[np.uint8], share: float, at_most: float = 1.0
) -> tuple[int, float]:
    """Returns how many chunks, in the order `by_level`, suffice, and the share that they hold."""
    first = by_level(levels)
    got = np.cumsum(LEAST[levels][first])
    lost = np.append(MOST[levels][first][::-1].cumsum()[::-1][1:], 0.0)
    fewest = int(np.argmax(lost * share <= got * (1 - share))) + 1
    must = int(np.count_nonzero(levels >= MUST))
    most = max(must, math.ceil(at_most * len(levels)))
    if fewest <= most:
        return max(fewest, must), share
    held, missing = got[most - 1], lost[most - 1]
    # A little less: whoever sums in another order must find that they hold it.
    return most, float(held / (held + missing)) * (1 - _ROUNDING)
