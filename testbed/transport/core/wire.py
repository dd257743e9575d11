"""The format of a data datagram: a 16-byte header, then one chunk of the payload.

    u32 session | u32 sequence | u32 transfer | u16 length | u16 stamp | chunk, zero-padded

All header fields are in network order. `sequence`, `transfer` and `length` are the three fields
that DBLP describes (arXiv 2605.01989: position within the round, round counter, data length);
`session` keeps two runs apart. Every datagram of a transfer has the same size, including the last,
because the kernel's segmentation offload cuts one large send into equal pieces. `length` says how
many of the chunk's bytes are payload.

`stamp` tells the transmissions of one chunk apart. Its lower 15 bits are the *send index*: the
datagram's place among all that the transfer has sent (0, 1, 2, ...), modulo 2^15. Its highest bit
asks the receiver for an ACK at once. ACKs name datagrams by their send index. Repair in passes
needs neither; its receiver ignores the stamp.

A batch is an array of bytes with one datagram per row, so reading and writing headers costs a few
numpy operations per batch and none per datagram.
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
SEND_INDEX_MODULUS = 1 << 15


def check_chunk_bytes(chunk_bytes: int) -> None:
    """Raises ValueError unless chunks of this size fit a datagram and hold whole floats."""
    limit = MAX_DATAGRAM_BYTES - HEADER_BYTES
    if not 4 <= chunk_bytes <= limit or chunk_bytes % 4:
        raise ValueError(
            f"chunk_bytes is {chunk_bytes}; valid: a multiple of 4 from 4 to {limit // 4 * 4}"
        )


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


def new_frames(count: int, chunk_bytes: int) -> NDArray[np.uint8]:
    """Memory for `count` datagrams, shape (count, HEADER_BYTES + chunk_bytes)."""
    return np.zeros((count, HEADER_BYTES + chunk_bytes), dtype=np.uint8)


def fields(frames: NDArray[np.uint8], chunk_bytes: int) -> NDArray[np.void]:
    """A view of the same memory with one record per datagram, shape (k,).

    `frames` has shape (k, HEADER_BYTES + chunk_bytes) and contiguous rows.
    """
    return frames.view(datagram_dtype(chunk_bytes))[:, 0]


def wire_bytes(datagrams: int, chunk_bytes: int) -> int:
    """Bytes that `datagrams` datagrams occupy on an Ethernet link, frame check sums excluded."""
    return datagrams * (HEADER_BYTES + chunk_bytes + WIRE_OVERHEAD_BYTES)
