"""Large values first, so that the receiver gives up the least important chunks.

MLT (NSDI 2024) protects large gradients in its switches. Without such switches, the sender can
achieve something similar by sending them first.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.order import ChunkOrder, OrderContext

Measure = Literal["mean", "max"]


@dataclass(frozen=True, kw_only=True)
class LargestMagnitudeFirst(ChunkOrder):
    """Descending by the mean or maximum of a chunk's absolute values; equal chunks ascending.

    A chunk with a NaN or an infinity comes first, so that the receiver learns of it.

    Args:
        by: `mean` or `max` of the absolute values.
    """

    by: Measure = "mean"

    def __post_init__(self) -> None:
        if self.by not in get_args(Measure):
            raise ValueError(f"by is {self.by!r}; valid: {', '.join(get_args(Measure))}")

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        values = np.abs(context.rows.view("<f4"))
        if self.by == "max":
            score = values.max(axis=1).astype(np.float64)
        else:
            # Double precision keeps the sum of large floats finite.
            elements = context.layout.chunk_lengths / values.itemsize  # without the padding
            score = values.sum(axis=1, dtype=np.float64) / elements
        score[~np.isfinite(score)] = np.inf
        return np.argsort(-score, kind="stable")
