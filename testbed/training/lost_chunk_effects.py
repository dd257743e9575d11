"""Measures the effects of loss on a round: on layers, on the gradient, on the workers' replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.training.vectors import Vector, finite
from testbed.transport import PayloadLayout

# Vectors are read in pieces, which avoids a copy of a whole model in double precision.
_PIECE = 1 << 18


def tensor_loss(layout: PayloadLayout, received: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Compute the share of each tensor's elements that did not arrive, shape (tensors,).

    Args:
        layout: the places of tensors in the chunks.
        received: one flag per chunk.
    """
    pieces = layout.pieces
    lost = np.where(received[pieces.chunk], 0, pieces.elements)
    counts = np.array([count for _, count in layout.tensors], dtype=np.int64)
    missing = np.bincount(pieces.tensor, weights=lost, minlength=len(counts))
    return missing / np.maximum(counts, 1)


@dataclass(frozen=True)
class Deviation:
    """How a vector differs from a reference.

    Attributes:
        relative_error: L2 norm of the difference over that of the reference; 0 where both are 0.
        cosine: of the angle between them; None where one of them is 0.
        norm_ratio: L2 norm over that of the reference; None where the reference is 0.
    """

    relative_error: float | None
    cosine: float | None
    norm_ratio: float | None


def deviation(vector: Vector, reference: Vector) -> Deviation:
    """Compare a gradient with the same gradient without loss; both flat and of equal length."""
    difference = own = norm = product = 0.0
    for start in range(0, len(reference), _PIECE):
        one = vector[start : start + _PIECE].astype(np.float64)
        two = reference[start : start + _PIECE].astype(np.float64)
        own += float(one @ one)
        norm += float(two @ two)
        product += float(one @ two)
        one -= two
        difference += float(one @ one)
    if norm == 0:
        return Deviation(0.0 if own == 0 else None, None, None)
    return Deviation(
        relative_error=finite((difference / norm) ** 0.5),
        cosine=finite(product / (own * norm) ** 0.5) if own else None,
        norm_ratio=finite((own / norm) ** 0.5),
    )


def divergence(replicas: Sequence[Vector]) -> float | None:
    """Compute how far the workers' weights have drifted apart.

    The root mean square, over the replicas, of the L2 distance from their mean, over the mean's L2
    norm; 0 when all are equal.
    """
    spread = norm = 0.0
    for start in range(0, len(replicas[0]), _PIECE):
        # Relative to the first, so that equal replicas give exactly 0.
        first = replicas[0][start : start + _PIECE].astype(np.float64)
        offsets = [replica[start : start + _PIECE] - first for replica in replicas]
        shift = sum(offsets[1:], start=offsets[0]) / len(replicas)
        spread += sum(float(np.square(each - shift).sum()) for each in offsets)
        norm += float(np.square(first + shift).sum())
    if norm == 0:
        return 0.0 if spread == 0 else None
    return finite((spread / len(replicas) / norm) ** 0.5)
