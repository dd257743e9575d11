"""What kernel TCP carries in place of a payload, where a protocol compresses: a block of bytes.

A block's `size(layout)` and the chunks that arrive, `count(layout)`, follow from the layout alone.
`pack` gives which chunks those are, shape (chunk_count,), and the block; `unpack` puts them in
their places, or raises ProtocolError.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.shared.input_error import InputError
from testbed.transport.core import worth
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.layout import ELEMENT_BYTES, PayloadLayout
from testbed.transport.core.messages import pack_bitmap, unpack_bitmap
from testbed.transport.protocols import ProtocolConfig

_VALUES_BYTES = 2 * ELEMENT_BYTES


@dataclass(frozen=True)
class TwoValues:
    """All chunks, each as its first element (f32), the other value (f32), and a bit per element."""

    def count(self, layout: PayloadLayout) -> int:
        return layout.chunk_count

    def size(self, layout: PayloadLayout) -> int:
        return layout.chunk_count * _coded_bytes(layout)

    def pack(
        self, layout: PayloadLayout, payload: NDArray[np.uint8]
    ) -> tuple[NDArray[np.bool_], memoryview]:
        """Raises InputError, before anything is sent, for a chunk with more than two values."""
        words = layout.rows(payload).view("<u4")
        first = words[:, :1]
        others = words != first
        others[-1, _elements_of_last(layout) :] = False
        other = np.take_along_axis(words, others.argmax(axis=1, keepdims=True), axis=1)
        further = others & (words != other)
        if further.any():
            raise InputError(
                f"coding is two-values, and chunk {int(further.any(axis=1).argmax())} of a payload "
                "has more; valid: payloads with two values in each chunk at most"
            )
        block = np.empty((layout.chunk_count, _coded_bytes(layout)), dtype=np.uint8)
        block[:, :_VALUES_BYTES] = np.hstack([first, other]).view(np.uint8)
        block[:, _VALUES_BYTES:] = np.packbits(others, axis=1, bitorder="little")
        return np.ones(layout.chunk_count, dtype=np.bool_), block.reshape(-1).data

    def unpack(
        self, layout: PayloadLayout, block: NDArray[np.uint8], rows: NDArray[np.uint8]
    ) -> NDArray[np.bool_]:
        coded = block.reshape(layout.chunk_count, -1)
        values = np.ascontiguousarray(coded[:, :_VALUES_BYTES]).view("<u4")
        others = np.unpackbits(
            coded[:, _VALUES_BYTES:], axis=1, count=layout.elements_per_chunk, bitorder="little"
        )
        words = rows.view("<u4")
        words[:] = np.where(others, values[:, 1:], values[:, :1])
        words[-1, _elements_of_last(layout) :] = 0
        return np.ones(layout.chunk_count, dtype=np.bool_)


def _coded_bytes(layout: PayloadLayout) -> int:
    """Of one chunk."""
    return _VALUES_BYTES + -(-layout.elements_per_chunk // 8)


def _elements_of_last(layout: PayloadLayout) -> int:
    """The last chunk's; zeros follow."""
    return int(layout.chunk_lengths[-1]) // ELEMENT_BYTES


@dataclass(frozen=True)
class Selection:
    """The part `keep` of the chunks, one at least: a bitmap of them, then those, ascending."""

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


Compression = Selection | TwoValues


def compression_of(protocol: ProtocolConfig) -> Compression | None:
    """A protocol's; None where payloads travel as they are."""
    if protocol.coding == "two-values":
        return TwoValues()
    return None if protocol.keep == 1 else Selection(protocol.keep)
