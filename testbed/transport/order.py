"""In which order the missing chunks of a pass are sent.

It decides what is lost: a receiver that stops early gives up whatever comes last. To add an
order, write a subclass of `ChunkOrder` and add it to ORDERS; its constructor's parameters are
its options.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.layout import PayloadLayout
from testbed.transport.registry import Registry


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderContext:
    """What an order may depend on.

    Attributes:
        transfer: the transfer's number; the same in every pass.
        layout: which tensor lies where.
        rows: the payload, shape (chunk_count, chunk_bytes); not to be written to.
    """

    transfer: int
    layout: PayloadLayout
    rows: NDArray[np.uint8]


class ChunkOrder(ABC):
    """Arranges chunks for sending."""

    @abstractmethod
    def arrange(self, missing: NDArray[np.int64], context: OrderContext) -> NDArray[np.int64]:
        """A permutation of `missing`, which is ascending, in the order of sending."""


class InOrder(ChunkOrder):
    """Ascending, as DBLP's sender walks its chunks."""

    def arrange(self, missing: NDArray[np.int64], context: OrderContext) -> NDArray[np.int64]:
        return missing


ORDERS: Registry[ChunkOrder] = Registry("chunk order", {"in-order": InOrder})
