"""An order of chunks: every n-th chunk, then the next ones, so that bursts hit chunks far apart.

`order: ./own_order.py`, or with options `order: "./own_order.py:stride=16"`
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport import ChunkOrder, OrderContext


@dataclass(frozen=True, kw_only=True)
class Interleaved(ChunkOrder):
    """The fields are the options."""

    stride: int = 8

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride is {self.stride!r}; valid: 1 or more")

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        chunks = np.arange(context.layout.chunk_count, dtype=np.int64)
        return np.concatenate([chunks[first :: self.stride] for first in range(self.stride)])
