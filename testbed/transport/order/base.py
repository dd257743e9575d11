"""What a chunk order is: a permutation of a transfer's chunks.

It decides what is lost: a receiver that stops early gives up whatever comes last. To add an
order, write one file beside this one with a subclass of `ChunkOrder`, usually a frozen dataclass
whose fields are its options, and add it to ORDERS in `__init__.py`. A field named `seed` is
supplied from the endpoint's configuration when the user does not set it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.layout import PayloadLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderContext:
    """What an order may depend on.

    Attributes:
        transfer: the transfer's number; `Leg.round_of` makes it the round's.
        layout: which tensor lies where.
        rows: the payload, shape (chunk_count, chunk_bytes); not to be written to.
    """

    transfer: int
    layout: PayloadLayout
    rows: NDArray[np.uint8]


class ChunkOrder(ABC):
    """Arranges chunks for sending. Holds no state: one object serves all transfers and peers."""

    @abstractmethod
    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        """All chunk numbers of a transfer in the order of sending, shape (chunk_count,)."""

    def arranger(self, context: OrderContext) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """What puts missing chunks, ascending, in order: the same for every pass of a transfer.

        The permutation is computed once, so what is sent again keeps its place relative to the
        others although an order may be costly or random.
        """
        permutation = self.permutation(context)

        def arrange(missing: NDArray[np.int64]) -> NDArray[np.int64]:
            wanted = np.zeros(len(permutation), dtype=np.bool_)
            wanted[missing] = True
            return permutation[wanted[permutation]]

        return arrange
