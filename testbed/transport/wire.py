"""The format of a data datagram: a 16-byte header, then one chunk of the payload.

    u32 session | u32 sequence | u32 transfer | u16 length | u16 stamp | chunk, zero-padded

In network order, as in DBLP (arXiv 2605.01989). All have the same size, because segmentation
offload cuts a send into equal pieces. `sequence` holds the chunk's number in its lower 26 bits.
`stamp` has the *send index* in its lower 15, the datagram's place among all that the transfer has
sent, and asks for an ACK by its highest. The six highest bits of `sequence` continue the send index
to a *number* of 21 bits, by which a receiver takes each datagram once.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 16
# With 14 + 20 + 8 bytes of lower headers this fills an Ethernet frame of MTU 1500.
DEFAULT_CHUNK_BYTES = 1456
# Ethernet, IPv4 and UDP headers: what a rate limiter at layer 2 counts besides the datagram.
WIRE_OVERHEAD_BYTES = 14 + 20 + 8
# The most that one UDP datagram can carry over IPv4.
MAX_DATAGRAM_BYTES = 65507
U32_MAX = 2**32 - 1
# Every data port of a run is one of these: the first of the server's, and one more per worker.
DATA_PORTS = (47000, 47999)
ACK_REQUESTED = 1 << 15
SEND_INDEX_BITS = 15
SEND_INDEX_MODULUS = 1 << SEND_INDEX_BITS
CHUNK_BITS = 26
NUMBER_MODULUS = 1 << (32 - CHUNK_BITS + SEND_INDEX_BITS)


@lru_cache(maxsize=16)
def datagram_dtype(chunk_bytes: int) -> np.dtype:
    """The structure of one datagram; its itemsize is HEADER_BYTES + chunk_bytes."""
    return np.dtype(
        [
            ("session", ">u4"),
            ("sequence", ">u4"),
            ("transfer", ">u4"),
            ("length", ">u2"),
            ("stamp", ">u2"),
            ("chunk", "u1", (chunk_bytes,)),
        ]
    )


def new_frames(count: int, chunk_bytes: int, *, tag_bytes: int = 0) -> NDArray[np.uint8]:
    """Memory for `count` datagrams, shape (count, HEADER_BYTES + chunk_bytes).

    Behind each there is room for its tag.
    """
    datagram_bytes = HEADER_BYTES + chunk_bytes
    return np.zeros((count, datagram_bytes + tag_bytes), dtype=np.uint8)[:, :datagram_bytes]


def fields(frames: NDArray[np.uint8], chunk_bytes: int) -> NDArray[np.void]:
    """A view of the same memory with one record per datagram, shape (k,)."""
    return frames.view(datagram_dtype(chunk_bytes))[:, 0]


def stamps_of(records: NDArray[np.void]) -> NDArray[np.uint32]:
    """The stamps of datagrams, with what `sequence` has of their numbers above them."""
    upper = records["sequence"].astype(np.uint32) >> np.uint32(CHUNK_BITS)
    return upper << np.uint32(16) | records["stamp"].astype(np.uint32)


def numbers_of(stamps: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The numbers that `stamps_of` holds."""
    wide = stamps.astype(np.int64)
    return wide >> 16 << SEND_INDEX_BITS | wide & SEND_INDEX_MODULUS - 1


def ahead_of(numbers: NDArray[np.int64] | int, newest: int) -> NDArray[np.int64]:
    """Returns how far numbers are ahead of the newest; negative for behind."""
    half = NUMBER_MODULUS // 2
    return (np.asarray(numbers, dtype=np.int64) - newest + half) % NUMBER_MODULUS - half


def wire_bytes(datagrams: int, chunk_bytes: int) -> int:
    """Bytes that `datagrams` datagrams occupy on an Ethernet link, frame check sums excluded."""
    return datagrams * (HEADER_BYTES + chunk_bytes + WIRE_OVERHEAD_BYTES)
