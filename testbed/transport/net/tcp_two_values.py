"""Payloads whose chunks have two values each, as kernel TCP carries them: a bit for each element.

Of each chunk a block has

    f32 first element | f32 the other value | a bit for each element, 1 = the other one

with the least significant bit first, and zeros up to a whole byte. Values are copied bit by bit, so
NaNs, infinities and zeros of either sign arrive as they are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.shared.input_error import InputError
from testbed.transport.core.layout import ELEMENT_BYTES, PayloadLayout

_VALUES_BYTES = 2 * ELEMENT_BYTES


@dataclass(frozen=True)
class TwoValues:
    """Sends all chunks, and no payload with more values; see `tcp_compression`."""

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
