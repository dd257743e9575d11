"""recvmmsg and sendmmsg through ctypes: many messages per system call, wherever their bytes lie.

All that the kernel reads and writes lies in numpy arrays that are allocated once. 64-bit Linux.
"""

import ctypes
import os
import socket
import sys

import numpy as np

from testbed.transport.native.hot_path import address_of

# struct mmsghdr and iovec of a 64-bit Linux.
MESSAGE = np.dtype(
    {
        "names": [
            *("name", "name_bytes", "vectors", "vector_count"),
            *("control", "control_bytes", "flags", "bytes"),
        ],
        "formats": ["u8", "u4", "u8", "u8", "u8", "u8", "i4", "u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
VECTOR = np.dtype([("base", "u8"), ("bytes", "u8")])
# One cmsghdr with an int, padded.
CONTROL = np.dtype(
    [("bytes", "u8"), ("level", "i4"), ("type", "i4"), ("data", "u4"), ("pad", "u4")]
)


def _load() -> ctypes.CDLL | None:
    fits = sys.byteorder == "little" and ctypes.sizeof(ctypes.c_void_p) == 8
    if not sys.platform.startswith("linux") or not fits:
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        receive, send = library.recvmmsg, library.sendmmsg
    except (OSError, AttributeError):
        return None
    # Addresses are passed as integers, which ctypes converts fastest.
    integer, address = ctypes.c_int, ctypes.c_void_p
    receive.argtypes = [integer, address, ctypes.c_uint, integer, address]
    send.argtypes = [integer, address, ctypes.c_uint, integer]
    return library


_LIBRARY = _load()


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class Messages:
    """`count` message headers, each with `vectors` buffers."""

    def __init__(self, count: int, vectors: int = 1) -> None:
        if _LIBRARY is None:
            raise OSError("this system has no recvmmsg and sendmmsg as 64-bit Linux has them")
        self._library = _LIBRARY
        self.count = count
        self.headers = np.zeros(count, dtype=MESSAGE)
        self.vectors = np.zeros((count, vectors), dtype=VECTOR)
        self.address = address_of(self.headers)
        steps = np.arange(count, dtype=np.uint64)
        self.headers["vectors"] = address_of(self.vectors) + steps * (vectors * VECTOR.itemsize)
        self.headers["vector_count"] = vectors

    def receive(self, descriptor: int, first: int, limit: int) -> int:
        """Receives into messages from `first` on; returns how many."""
        at = self.address + first * MESSAGE.itemsize
        count = self._library.recvmmsg(descriptor, at, limit, socket.MSG_DONTWAIT, None)
        if count < 0:
            error = _failed()
            if isinstance(error, BlockingIOError):
                return 0
            raise error
        return int(count)

    def send(self, descriptor: int, first: int, count: int) -> int:
        """Sends messages from `first` on; returns how many the kernel took. OSError when none."""
        at = self.address + first * MESSAGE.itemsize
        taken = self._library.sendmmsg(descriptor, at, count, socket.MSG_DONTWAIT)
        if taken < 0:
            raise _failed()
        return int(taken)
