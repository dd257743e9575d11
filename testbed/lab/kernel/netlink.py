"""Netlink's wire format: messages, attributes, dumps and refusals (linux/netlink.h).

pyroute2 0.9.7 takes 80 times the processor time for a change of a rate and 10 times for a dump of
queues: impairments are punctual, samples come at 100 Hz.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

from testbed.lab.kernel.namespaces import entered

ROUTE, SOCK_DIAG = 0, 4  # protocols
REQUEST, ACK, ECHO, DUMP = 0x1, 0x4, 0x8, 0x300  # flags
ERROR, DONE = 2, 3  # types of messages, in every protocol
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port

_ATTRIBUTE = struct.Struct("=HH")
_NUMBER, _NUMBER_AT = struct.Struct("=I"), 8  # nlmsg_seq, within a header
_TIMEOUT_S = 1  # no answer of the kernel takes so long
_RECEIVE_BYTES = 1 << 16  # the kernel sends at most half of that at a time
_SOL_NETLINK, _JOIN, _CAP_ACK, _EXT_ACK = 270, 1, 10, 11
_CHANGED_QUEUES = 4  # RTNLGRP_TC
_ATTACH_FILTER = 26
# Flags of answers: a dump that a change made inconsistent; a refusal without the request, and with
# attributes.
_INTERRUPTED, _CAPPED, _HAS_WORDS = 0x10, 0x100, 0x200
_WORDS = 1  # NLMSGERR_ATTR_MSG
_MOST_DUMPS = 10


class NetlinkError(OSError):
    """The kernel refused a request or answered in a form that is not understood."""


class Socket(socket.socket):
    """A netlink socket: the number of its latest request, and its answers to none of the latest."""

    sequence = 0
    stale_answers = 0


def connect(protocol: int, pid: int | None = None) -> Socket:
    """Open a netlink socket in the network namespace of process `pid` (None: the present one)."""
    with entered(pid):
        opened = Socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    opened.bind((0, 0))
    # `settimeout` would cost another system call at every read.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _TIMEOUT_S, 0))
    for option in (_EXT_ACK, _CAP_ACK):  # refusals say why, and do not repeat the request
        opened.setsockopt(_SOL_NETLINK, option, 1)
    return opened


def listen(pid: int | None = None) -> Socket:
    """Open a socket on which the kernel reports changes of a namespace's queues and classes."""
    # It would also report each root queue that anybody asks for, as the sampler does hundreds of
    # times a second: those messages are left out, unless the root is a new one.
    opened = connect(ROUTE, pid)
    # Half-words and words are loaded in network order: unless it is a NEW_QDISC (36) whose parent,
    # 28 bytes from the begin, is the root, take all of it.
    code = [(0x28, 0, 0, 4), (0x15, 0, 3, socket.htons(36)), (0x20, 0, 0, 28)]
    code += [(0x15, 0, 1, 0xFFFFFFFF), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)]
    program = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    )
    described = struct.pack("HL", len(code), ctypes.addressof(program))
    opened.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)
    opened.setsockopt(_SOL_NETLINK, _JOIN, _CHANGED_QUEUES)
    return opened


def changes(opened: Socket) -> Iterator[tuple[int, memoryview]]:
    """Read type and content of the messages on a `listen` socket; ENOBUFS: some are lost."""
    with contextlib.suppress(BlockingIOError):
        while True:
            data = memoryview(opened.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT))
            for kind, begin, end in messages(data, 0, len(data)):
                yield kind, data[begin:end]


def pack(kind: int, flags: int, content: bytes, sequence: int = 0) -> bytes:
    header = HEADER.pack(HEADER.size + len(content), kind, REQUEST | flags, sequence, 0)
    return _padded(header + content)


def number(request: bytearray, opened: Socket) -> int:
    """Give a packed request the socket's next number, and return that; costs little."""
    opened.sequence = (opened.sequence + 1) & 0xFFFFFFFF
    _NUMBER.pack_into(request, _NUMBER_AT, opened.sequence)
    return opened.sequence


def number_of(data: memoryview | bytes) -> int:
    return int(_NUMBER.unpack_from(data, _NUMBER_AT)[0])


def attribute(kind: int, value: bytes) -> bytes:
    return _padded(_ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value)


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def messages(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Find the messages between two offsets: type, and where the content begins and ends."""
    return _parts(data, begin, end, HEADER, "message")


def attributes(data: memoryview, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Find the attributes between two offsets: type, and where the value begins and ends."""
    return _parts(data, begin, end, _ATTRIBUTE, "attribute")


def _parts(
    data: memoryview, begin: int, end: int, header: struct.Struct, what: str
) -> Iterator[tuple[int, int, int]]:
    while begin + header.size <= end:
        length, kind, *_ = header.unpack_from(data, begin)
        if length < header.size or begin + length > end:
            raise NetlinkError(errno.EBADMSG, f"a netlink {what} is cut off")
        yield kind & 0x3FFF, begin + header.size, begin + length
        begin += (length + 3) & ~3


def values(data: memoryview, begin: int = 0) -> dict[int, memoryview]:
    """Read the values of the attributes from an offset on, by their types."""
    return {kind: data[first:last] for kind, first, last in attributes(data, begin, len(data))}


def string(value: memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def error_number(data: memoryview, begin: int) -> int:
    """Read the errno in an ERROR message's content; 0: it is an acknowledgement."""
    (code,) = struct.unpack_from("=i", data, begin)
    return -int(code)


def refusal(data: memoryview, begin: int) -> NetlinkError:
    """Return the error in an ERROR or DONE message, in the kernel's words where it has some."""
    number = error_number(data, begin)
    length, message, flags, *_ = HEADER.unpack_from(data, begin - HEADER.size)
    at, end = begin + 4, begin - HEADER.size + length
    if message == ERROR:  # it repeats the request, or the request's header alone
        repeated, *_ = HEADER.unpack_from(data, at)
        at += HEADER.size if flags & _CAPPED else (repeated + 3) & ~3
    about = values(data[:end], at) if flags & _HAS_WORDS else {}
    words = f": {string(about[_WORDS])}" if _WORDS in about else ""
    return NetlinkError(number, os.strerror(number) + words)


def request(
    opened: Socket, requests: Sequence[tuple[int, int, bytes]]
) -> list[NetlinkError | None]:
    """Send requests (type, flags, content); returns each one's refusal, None if granted."""
    first = opened.sequence + 1
    opened.sequence += len(requests)
    opened.send(
        b"".join(
            pack(kind, flags | ACK, content, number)
            for number, (kind, flags, content) in enumerate(requests, first)
        )
    )
    refusals: dict[int, NetlinkError | None] = {}
    for sequence, kind, _, data, begin in _answers(opened, first):
        if kind == ERROR:
            refusals[sequence] = refusal(data, begin) if error_number(data, begin) else None
        else:
            opened.stale_answers += 1
        if len(refusals) == len(requests):
            break
    return [refusals[number] for number in range(first, opened.sequence + 1)]


def ask(opened: Socket, kind: int, content: bytes) -> memoryview:
    """Ask for one thing; return the content of the answer."""
    opened.sequence += 1
    # ECHO makes older kernels send the answer to us as well as to those who listen.
    opened.send(pack(kind, ECHO, content, opened.sequence))
    _, answer, _, data, begin = next(_answers(opened, opened.sequence))
    if answer == ERROR:
        raise refusal(data, begin)
    return data[begin:]


def dump(opened: Socket, kind: int, content: bytes) -> list[tuple[int, memoryview]]:
    """Ask for a whole table; return type and content of each message of the answer."""
    for _ in range(_MOST_DUMPS):
        opened.sequence += 1
        opened.send(pack(kind, DUMP, content, opened.sequence))
        table = _dumped(opened)
        if table is not None:
            return table
    raise NetlinkError(errno.EINTR, f"the table changed during each of {_MOST_DUMPS} dumps")


def _dumped(opened: Socket) -> list[tuple[int, memoryview]] | None:
    """Return the answer to the latest request for a table; None when it changed meanwhile."""
    table: list[tuple[int, memoryview]] = []
    interrupted = False
    for _, kind, flags, data, begin in _answers(opened, opened.sequence):
        interrupted = interrupted or bool(flags & _INTERRUPTED)
        # A table that cannot be read to its end has an error's number in its DONE.
        if kind == ERROR or (kind == DONE and error_number(data, begin) > 0):
            raise refusal(data, begin)
        if kind == DONE:
            break
        table.append((kind, data[begin:]))
    return None if interrupted else table


def _answers(opened: Socket, first: int) -> Iterator[tuple[int, int, int, memoryview, int]]:
    """Yield answers from a request on: its number, type, flags, message, content's begin."""
    while True:
        data = memoryview(_receive(opened))
        for kind, begin, end in messages(data, 0, len(data)):
            _, _, flags, sequence, _ = HEADER.unpack_from(data, begin - HEADER.size)
            if first <= sequence <= opened.sequence:
                yield sequence, kind, flags, data[:end], begin
            else:
                opened.stale_answers += 1


def _receive(opened: Socket) -> bytes:
    try:
        return opened.recv(_RECEIVE_BYTES)
    except BlockingIOError:
        older = f", but {opened.stale_answers} older ones came" if opened.stale_answers else ""
        raise NetlinkError(errno.ETIMEDOUT, f"the kernel's answer is missing{older}") from None


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
