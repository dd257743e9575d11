"""Which chunks of a payload kernel TCP carries, where a protocol keeps only the largest.

A block has a bitmap of them, and then those alone, each of them whole, ascending.
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
    """The part `keep` of the chunks, above 0 and up to 1, one at least; see `tcp_compression`."""

    keep: float

    def count(self, layout: PayloadLayout) -> int:
        return max(1, math.ceil(self.keep * layout.chunk_count))

    def size(self, layout: PayloadLayout) -> int:
        return _bitmap_bytes(layout) + self.count(layout) * layout.chunk_bytes

    def pack(
        self, layout: PayloadLayout, payload: NDArray[np.uint8]
    ) -> tuple[NDArray[np.bool_], memoryview]:
        """Those with the most energy, the first of equals."""
        rows = layout.rows(payload)
        energy = worth.energies(rows)
        energy[~np.isfinite(energy)] = np.inf
        chosen = np.zeros(layout.chunk_count, dtype=np.bool_)
        chosen[np.argsort(-energy, kind="stable")[: self.count(layout)]] = True
        block, bitmap = np.empty(self.size(layout), dtype=np.uint8), _bitmap_bytes(layout)
        block[:bitmap] = np.frombuffer(pack_bitmap(chosen), dtype=np.uint8)
        np.compress(chosen, rows, axis=0, out=block[bitmap:].reshape(-1, layout.chunk_bytes))
        return chosen, block.data

    def unpack(
        self, layout: PayloadLayout, block: NDArray[np.uint8], rows: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        """ProtocolError unless its bitmap names as many chunks as are sent."""
        bitmap = _bitmap_bytes(layout)
        chosen = unpack_bitmap(block[:bitmap].tobytes(), layout.chunk_count)
        named = int(np.count_nonzero(chosen))
        if named != self.count(layout):
            raise ProtocolError(f"a bitmap of {named} chunks instead of {self.count(layout)}")
        rows[chosen] = block[bitmap:].reshape(named, layout.chunk_bytes)
        return chosen


def _bitmap_bytes(layout: PayloadLayout) -> int:
    return -(-layout.chunk_count // 8)
