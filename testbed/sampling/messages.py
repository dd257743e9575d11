"""Netlink's messages as far as reading statistics needs them (linux/netlink.h)."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

REQUEST, ECHO, DUMP = 0x1, 0x8, 0x300
ERROR, DONE = 2, 3
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")


class NetlinkError(OSError):
    """The kernel refused a request or answered in a form that is not understood."""


# No answer takes so long; a `settimeout` would cost another system call at every read.
_PATIENCE = struct.pack("ll", 1, 0)


def ready(opened: socket.socket) -> socket.socket:
    """Make a netlink socket ready for use."""
    opened.bind((0, 0))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
    return opened


def pack(kind: int, flags: int, content: bytes) -> bytes:
    """A request."""
    return HEADER.pack(HEADER.size + len(content), kind, REQUEST | flags, 0, 0) + content


def attributes(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The attributes between two offsets: type, and where the value begins and ends."""
    while begin + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if length < _ATTRIBUTE.size or begin + length > end:
            raise NetlinkError(errno.EBADMSG, "a netlink attribute is longer than its message")
        yield kind & 0x3FFF, begin + _ATTRIBUTE.size, begin + length
        begin += (length + 3) & ~3


def messages(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The messages between two offsets: type, and where the content begins and ends."""
    while begin + HEADER.size <= end:
        length, kind, *_ = HEADER.unpack_from(data, begin)
        if length < HEADER.size or begin + length > end:
            raise NetlinkError(errno.EBADMSG, "a netlink message is cut off")
        yield kind, begin + HEADER.size, begin + length
        begin += (length + 3) & ~3


def refusal(data: memoryview, begin: int) -> NetlinkError:
    """What the content of an error message, which begins at an offset, says."""
    (code,) = struct.unpack_from("=i", data, begin)
    return NetlinkError(-code, os.strerror(-code))
