"""A randomised Hadamard transform: a lost chunk becomes a little noise in all elements.

OptiReduce (NSDI 2025) transforms what it sends, so that what is lost is spread; the receiver turns
it back. Here the whole payload is turned, not each tensor: signs from a fixed seed, as in the
released code, then the Walsh-Hadamard transform, scaled so that lengths stay the same. That needs a
power of two. So with m the largest one, up to the n elements of a payload, the first m elements are
turned, and then the last m: at least half of the elements are turned twice. Each step is orthogonal
and can be undone exactly, so without loss the mean is that of what was sent, to rounding.

What is missing counts as zero. Let a share q of the last m turned elements have arrived, and a
number r of those before them. Then, over the draws of the signs, the expectation of an element is

    ((2m - n) q + r) / m    of its value, for the first m;    q    for the others

whatever chunks are lost, as long as that does not depend on the signs. The estimate is divided by
it, which makes it unbiased. That is ours; what OptiReduce does is not known to us.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.training.filling.base import (
    Buffer,
    Buffers,
    Filling,
    Masks,
    SenderMemory,
    zero_missing,
)
from testbed.training.vectors import Vector, sum_into
from testbed.transport import PayloadLayout

# So many of the transform's steps are one product of matrices, of so many rows at a time. A larger
# product would take more than one thread, and a host of a lab has one.
_BITS, _ROWS = 5, 128


@functools.cache
def _matrix(bits: int) -> Vector:
    """The orthonormal Hadamard matrix of 2**bits rows."""
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.sqrt(2)
    return matrix.astype(np.float32)


def walsh_hadamard(vector: Vector) -> Vector:
    """The orthonormal transform of 2**k elements; it undoes itself."""
    bits, done = len(vector).bit_length() - 1, 0
    while done < bits:
        more = min(_BITS, bits - done)
        rows = min(_ROWS, len(vector) >> more)
        steps = vector.reshape(-1, rows, 1 << more) @ _matrix(more)
        # The lowest bits of each index become the highest; in the end all are where they were.
        vector = steps.reshape(-1, 1 << more).T.reshape(-1)
        done += more
    return vector


class Rotation:
    """An orthogonal transform of so many elements, drawn by a seed."""

    def __init__(self, elements: int, seed: int) -> None:
        self.size = 1 << (elements.bit_length() - 1)
        self._rest = elements - self.size
        draws = np.random.default_rng(seed)
        first, last = 2 * draws.integers(0, 2, (2, self.size), dtype=np.int8) - 1
        self._steps = [(slice(self.size), first), (slice(self._rest, None), last)]

    def turn(self, vector: Vector) -> None:
        """Transforms it in place."""
        for part, signs in self._steps:
            vector[part] = walsh_hadamard(vector[part] * signs)

    def turn_back(self, vector: Vector) -> None:
        """Undoes `turn`, in place."""
        for part, signs in reversed(self._steps):
            vector[part] = walsh_hadamard(vector[part]) * signs

    def shares(self, arrived: NDArray[np.bool_]) -> tuple[float, float]:
        """The expectations of the first `size` elements and of the others, as parts of them."""
        others = float(np.count_nonzero(arrived[self._rest :])) / self.size
        before = int(np.count_nonzero(arrived[: self._rest]))
        return ((self.size - self._rest) * others + before) / self.size, others


@functools.lru_cache(maxsize=4)
def rotation(elements: int, seed: int) -> Rotation:
    """Both sides draw the same one."""
    return Rotation(elements, seed)


class Turned(SenderMemory):
    """Sends a gradient turned."""

    shared = True

    def __init__(self, layout: PayloadLayout, seed: int) -> None:
        self._layout, self._seed = layout, seed
        self._payload = layout.new_buffer()

    def payload(self, gradient: Buffer) -> Buffer:
        turned = self._layout.floats(self._payload)
        turned[:] = self._layout.floats(gradient)
        rotation(len(turned), self._seed).turn(turned)
        return self._payload


@dataclass(frozen=True, kw_only=True)
class Hadamard(Filling):
    """Sends payloads turned by a randomised Hadamard transform, and turns back what arrived.

    Args:
        seed: draws the signs; the same on both sides.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.seed, int) and self.seed >= 0):
            raise ValueError(f"seed is {self.seed!r}; valid: a whole number from 0")

    def estimate_mean(
        self, layout: PayloadLayout, buffers: Buffers, received: Masks, out: Buffer
    ) -> None:
        zero_missing(layout, buffers, received)
        turned, mean = rotation(layout.element_count, self.seed), layout.floats(out)
        payloads = [layout.floats(buffer) for buffer in buffers]
        # Those that are whole need no factor of their own, and are turned back together.
        whole = [each for each, mask in zip(payloads, received, strict=True) if mask.all()]
        if whole:
            sum_into(whole, mean)
            turned.turn_back(mean)
        else:
            mean[:] = 0
        for payload, mask in zip(payloads, received, strict=True):
            if mask.all():
                continue
            turned.turn_back(payload)
            first, others = turned.shares(layout.element_mask(mask))
            payload[: turned.size] *= np.float32(1 / first if first else 0)
            payload[turned.size :] *= np.float32(1 / others if others else 0)
            mean += payload
        mean /= np.float32(len(payloads))

    def sender_memory(self, layout: PayloadLayout) -> Turned:
        return Turned(layout, self.seed)
