"""Netlink's wire format: messages, attributes, dumps and refusals (linux/netlink.h).

All that speaks netlink uses this codec: `rtnetlink` (links and queues), `link_counters` and
`sampling.queue_reader` (queue statistics) and `sampling.tcp_reader` (TCP connections). pyroute2
0.9.7 was tried instead: it needs 80 times the processor time for a change of a rate (0.7 ms), 10
times for a parsed dump of queues (100 times the sampler's, which parses later) and 12 times for
TCP_INFO of 36 connections (`tests/benchmarks/netlink_cost.py`). Impairments have to be punctual,
and samples come 100 times a second.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

from testbed.lab.kernel.namespaces import socket_in

ROUTE, SOCK_DIAG = 0, 4  # protocols
REQUEST, ACK, ECHO, DUMP = 0x1, 0x4, 0x8, 0x300  # flags
ERROR, DONE = 2, 3  # types of messages, in every protocol
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port

_ATTRIBUTE = struct.Struct("=HH")
_RECEIVE_BYTES = 1 << 16  # the kernel sends at most half of that at a time


class NetlinkError(OSError):
    """The kernel refused a request or answered in a form that is not understood."""


def connect(
    protocol: int, pid: int | None = None, *, timeout_s: int | None = None
) -> socket.socket:
    """A netlink socket in the network namespace of process `pid` (None: the present one).

    With `timeout_s` a read that takes longer raises BlockingIOError.
    """
    opened = socket_in(pid, socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    opened.bind((0, 0))
    if timeout_s is not None:  # `settimeout` would cost another system call at every read
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", timeout_s, 0))
    return opened


def pack(kind: int, flags: int, content: bytes, sequence: int = 0) -> bytes:
    header = HEADER.pack(HEADER.size + len(content), kind, REQUEST | flags, sequence, 0)
    return _padded(header + content)


def attribute(kind: int, value: bytes) -> bytes:
    return _padded(_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value)


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def messages(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The messages between two offsets: type, and where the content begins and ends."""
    while begin + HEADER.size <= end:
        length, kind, *_ = HEADER.unpack_from(data, begin)
        if length < HEADER.size or begin + length > end:
            raise NetlinkError(errno.EBADMSG, "a netlink message is cut off")
        yield kind, begin + HEADER.size, begin + length
        begin += (length + 3) & ~3


def attributes(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The attributes between two offsets: type, and where the value begins and ends."""
    while begin + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if length < _ATTRIBUTE.size or begin + length > end:
            raise NetlinkError(errno.EBADMSG, "a netlink attribute is longer than its message")
        yield kind & 0x3FFF, begin + _ATTRIBUTE.size, begin + length
        begin += (length + 3) & ~3


def error_number(data: memoryview, begin: int) -> int:
    """The errno in the content of an ERROR message; 0: it is an acknowledgement."""
    (code,) = struct.unpack_from("=i", data, begin)
    return -int(code)


def refusal(data: memoryview, begin: int) -> NetlinkError:
    """The content of an ERROR message as an exception."""
    number = error_number(data, begin)
    return NetlinkError(number, os.strerror(number))


def dump(opened: socket.socket, request: bytes) -> Iterator[tuple[int, memoryview]]:
    """Send a request with the flag DUMP; yields type and content of each message of the answer.

    A content is valid until the next one is asked for.

    Raises:
        NetlinkError: the kernel refused.
    """
    opened.send(request)
    data = memoryview(bytearray(_RECEIVE_BYTES))
    while True:
        size = opened.recv_into(data)
        for kind, begin, end in messages(data, 0, size):
            if kind == DONE:
                return
            if kind == ERROR:
                raise refusal(data, begin)
            yield kind, data[begin:end]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
