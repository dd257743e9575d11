"""Which chunks of a payload kernel TCP carries, where a protocol keeps only the largest.

A bitmap of them goes before their bytes; see `tcp_data`. Both sides know how many there are.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core import worth
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.messages import pack_bitmap, unpack_bitmap


@dataclass(frozen=True)
class Selection:
    """The part `keep` of the chunks, above 0 and up to 1, one at least."""

    keep: float

    @property
    def whole(self) -> bool:
        """Whether all chunks are sent, without a bitmap."""
        return self.keep == 1

    def count(self, layout: PayloadLayout) -> int:
        """How many chunks of a payload are sent."""
        return max(1, math.ceil(self.keep * layout.chunk_count))

    def choose(
        self, layout: PayloadLayout, payload: NDArray[np.uint8]
    ) -> tuple[NDArray[np.bool_], bytes, memoryview]:
        """Those with the most energy, the first of equals.

        Returns which they are, shape (chunk_count,), the bitmap, and their bytes, ascending. One
        with a NaN or an infinity has the most, so that the receiver learns of it.
        """
        rows = layout.rows(payload)
        energy = worth.energies(rows)
        energy[~np.isfinite(energy)] = np.inf
        chosen = np.zeros(layout.chunk_count, dtype=np.bool_)
        chosen[np.argsort(-energy, kind="stable")[: self.count(layout)]] = True
        return chosen, pack_bitmap(chosen), rows[chosen].reshape(-1).data

    def chosen(self, layout: PayloadLayout, bitmap: bytes) -> NDArray[np.bool_]:
        """What a bitmap says; ProtocolError unless it names as many as are sent."""
        chosen = unpack_bitmap(bitmap, layout.chunk_count)
        named = int(np.count_nonzero(chosen))
        if named != self.count(layout):
            raise ProtocolError(f"a bitmap of {named} chunks instead of {self.count(layout)}")
        return chosen
