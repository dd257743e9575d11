"""Ascending from a different start in every round, so that losses hit different chunks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.leg import Leg
from testbed.transport.core.order import ChunkOrder, OrderContext

# With the golden ratio the starts of successive rounds cover the payload most evenly.
GOLDEN_SHARE = 0.618


@dataclass(frozen=True, kw_only=True)
class Rotating(ChunkOrder):
    """Round r begins at the fraction r * share (modulo 1) of the payload and wraps around.

    Consecutive chunks stay together, so whole batches are still copied at once.

    Args:
        share: of the payload: how much later each round starts; above 0 and below 1.
    """

    share: float = GOLDEN_SHARE

    def __post_init__(self) -> None:
        if not (isinstance(self.share, int | float) and 0 < self.share < 1):
            raise ValueError(f"share is {self.share!r}; valid: above 0 and below 1")

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        chunks = np.arange(context.layout.chunk_count, dtype=np.int64)
        advance = Leg.round_of(context.transfer) * self.share % 1.0
        return np.roll(chunks, -int(advance * len(chunks)))
