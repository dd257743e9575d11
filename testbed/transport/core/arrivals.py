"""The body of BITMAP and LATE_BITMAP: the chunks that arrived since the receiver's last answer.

    u8 0 | u32 first chunk | bits      a range; bit i (least significant first) is chunk first + i
    u8 1 | u32 chunk | u32 chunk ...   a list, ascending; an empty one when nothing arrived

The receiver takes the smaller form. The control stream is reliable, so each arrival is named once.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import ARRIVALS_HEAD_BYTES

_RANGE, _LIST = 0, 1
_HEAD = struct.Struct("!BI")
assert _HEAD.size == ARRIVALS_HEAD_BYTES


def pack_arrivals(chunks: NDArray[np.int64]) -> bytes:
    """The body for these chunk numbers, which ascend."""
    if len(chunks):
        first = int(chunks[0])
        span = int(chunks[-1]) - first + 1
        if _HEAD.size + -(-span // 8) <= 1 + 4 * len(chunks):
            bits = np.zeros(span, dtype=np.bool_)
            bits[chunks - first] = True
            return _HEAD.pack(_RANGE, first) + np.packbits(bits, bitorder="little").tobytes()
    return bytes([_LIST]) + chunks.astype(">u4").tobytes()


def unpack_arrivals(body: bytes, chunk_count: int) -> NDArray[np.int64]:
    """The chunk numbers that a body names, ascending; its work is proportional to the body."""
    form = body[0] if body else None
    if form == _RANGE and len(body) > _HEAD.size:
        _, first = _HEAD.unpack_from(body)
        if not (body[_HEAD.size] & 1 and body[-1]):
            raise ProtocolError("range of arrivals that is longer than what arrived")
        bits = np.frombuffer(body, dtype=np.uint8, offset=_HEAD.size)
        chunks = first + np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    elif form == _LIST and len(body) % 4 == 1:
        chunks = np.frombuffer(body, dtype=">u4", offset=1).astype(np.int64)
        if (chunks[1:] <= chunks[:-1]).any():
            raise ProtocolError("list of arrivals that does not ascend")
    else:
        raise ProtocolError(f"arrivals of form {form} in {len(body)} bytes")
    if len(chunks) and chunks[-1] >= chunk_count:
        raise ProtocolError(f"arrival of chunk {chunks[-1]}, beyond the last of {chunk_count}")
    return chunks
