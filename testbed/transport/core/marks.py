"""The interface of marks: which chunks switches are to drop last.

Each datagram of a marked payload carries one of two values in its IP header, those of
`testbed.shared.dscp`. Write a subclass of `Marks` (the package's docstring says where), usually a
frozen dataclass whose fields are its options.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.order import Arranger, ChunkOrder, OrderContext

# A batch is of one class, so chunks of a class are sent together, in blocks of the order of so
# many: enough that batches are rarely cut, few enough that both classes are on the way at a time.
_BLOCK = 64


class Marks(ABC):
    """Gives each chunk one of two classes. It has no state; one object serves all transfers."""

    @abstractmethod
    def protected(self, context: OrderContext) -> NDArray[np.bool_]:
        """Which chunks are to be dropped last, shape (chunk_count,)."""


class MarkedOrder(ChunkOrder):
    """An order whose chunks have classes, protected ones first within each block."""

    def __init__(self, order: ChunkOrder, marks: Marks) -> None:
        """`order` must not tell what chunks are worth: its receiver counts on the exact order."""
        if order.tells_worth:
            raise ValueError("an order that tells what chunks are worth cannot be marked")
        self._order = order
        self._marks = marks

    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        return self._arranged(context, self._marks.protected(context))

    def arranger(self, context: OrderContext) -> Arranger:
        protected = self._marks.protected(context)
        return Arranger(self._arranged(context, protected), protected=protected)

    def _arranged(self, context: OrderContext, protected: NDArray[np.bool_]) -> NDArray[np.int64]:
        chunks = np.arange(context.layout.chunk_count, dtype=np.int64)
        ordered = self._order.arranger(context)(chunks)
        place = chunks // _BLOCK * 2 + ~protected[ordered]
        return ordered[np.argsort(place, kind="stable")]
