"""Ascending order, as in DBLP."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.order import ChunkOrder, OrderContext


@dataclass(frozen=True, kw_only=True)
class InOrder(ChunkOrder):
    """Ascending. A receiver that stops early always gives up the last parameters."""

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        return np.arange(context.layout.chunk_count, dtype=np.int64)

    def arranger(self, context: OrderContext) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        return lambda missing: missing  # ascending already
