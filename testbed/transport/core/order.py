"""The interfaces of chunk orders, permutations of a transfer's chunks, and of marks.

Write a subclass of `ChunkOrder` or `Marks`, usually a frozen dataclass whose fields are its
options. The endpoint supplies `seed` to an order that has it, where the user does not set it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.shared import own_code
from testbed.transport.core.layout import PayloadLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderContext:
    """The information that an order may use.

    Attributes:
        transfer: the transfer's number; `Leg.round_of` gives its round.
        layouts: how many layouts take turns from round to round.
        layout: the places of the tensors.
        rows: the payload, shape (chunk_count, chunk_bytes); must not be modified.
        shared: whether the payload goes to several peers at once.
        overdue: chunks that had to arrive in the peer's last transfer of this layout and did not,
            shape (chunk_count,); None: there are none, or the payload is `shared`.
    """

    transfer: int
    layout: PayloadLayout
    rows: NDArray[np.uint8]
    layouts: int = 1
    shared: bool = False
    overdue: NDArray[np.bool_] | None = None


class Arranger:
    """Arranges the chunks of one payload, in all passes of its transfer.

    Attributes:
        worth: what each chunk is worth, shape (chunk_count,), in the bytes of `core.worth`; None
            where the order does not say.
        enough: so many chunks, the first in the order, are probably all that the receiver needs.
        urgent: chunks that a repair may send again before they are known to be lost, shape
            (chunk_count,).
        protected: chunks that switches are to drop last, shape (chunk_count,); or None.
    """

    def __init__(
        self,
        permutation: NDArray[np.int64],
        worth: NDArray[np.uint8] | None = None,
        enough: int | None = None,
        urgent: NDArray[np.bool_] | None = None,
        protected: NDArray[np.bool_] | None = None,
    ) -> None:
        """`permutation` has each chunk's number once, in the order of sending."""
        self.worth = worth
        self.protected = protected
        self.urgent = np.zeros(len(permutation), np.bool_) if urgent is None else urgent
        self.enough = len(permutation) if enough is None else enough
        self._permutation = permutation

    def __call__(self, missing: NDArray[np.int64]) -> NDArray[np.int64]:
        """Puts ascending chunk numbers in the order of sending."""
        if len(missing) == len(self._permutation):
            return self._permutation
        wanted = np.zeros(len(self._permutation), dtype=np.bool_)
        wanted[missing] = True
        return self._permutation[wanted[self._permutation]]


class ChunkOrder(ABC):
    """Arranges chunks for sending. It has no state; one object serves all transfers and peers."""

    tells_worth = False  # whether its arrangers say what chunks are worth

    @abstractmethod
    def permutation(self, context: OrderContext) -> NDArray[np.int64]:
        """All chunk numbers of a transfer in the order of sending, shape (chunk_count,)."""

    def arranger(self, context: OrderContext) -> Arranger:
        """Returns the function that arranges ascending chunk numbers, in all passes."""
        permutation, count = self.permutation(context), context.layout.chunk_count
        if not np.array_equal(np.sort(permutation), np.arange(count)):  # some would never be sent
            expected = f"each number from 0 to {count - 1} once, in an array"
            raise own_code.unfit(self, "permutation", permutation, expected)
        return Arranger(np.asarray(permutation, dtype=np.int64))


# A batch is of one class, so chunks of a class are sent together, in blocks of the order of so
# many: enough that batches are rarely cut, few enough that both classes are on the way at a time.
_BLOCK = 64


class Marks(ABC):
    """Gives each chunk one of two classes, which datagrams carry in the IP header (`shared.dscp`).

    It has no state; one object serves all transfers.
    """

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
