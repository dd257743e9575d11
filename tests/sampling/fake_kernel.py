"""A netlink socket whose answers a test makes, in the kernel's own format."""

from __future__ import annotations

import struct
from collections.abc import Callable

from testbed.lab.kernel import netlink
from testbed.lab.kernel.link_counters import STATS2, STATS_BASIC, STATS_QUEUE
from testbed.lab.kernel.rtnetlink import NEW_QDISC, ROOT, TCMSG

MULTI = 0x2


def packed(kind: int, content: bytes, number: int, flags: int = MULTI) -> bytes:
    """One message of an answer to request `number`."""
    header = netlink.HEADER.pack(netlink.HEADER.size + len(content), kind, flags, number, 0)
    whole = header + content
    return whole + bytes(-len(whole) % 4)


def queue(interface: int, number: int, *, sent: int, backlog: int = 0, packets: int = 0) -> bytes:
    """The root queue of an interface with these counters."""
    basic = netlink.attribute(STATS_BASIC, struct.pack("=QIxxxx", sent, sent // 1514))
    counters = netlink.attribute(STATS_QUEUE, struct.pack("=IIIII", packets, backlog, 0, 0, 0))
    content = TCMSG.pack(0, interface, 1 << 16, ROOT, 2) + netlink.attribute(
        STATS2, basic + counters
    )
    return packed(NEW_QDISC, content, number)


def done(number: int) -> bytes:
    """The end of a dump."""
    return packed(netlink.DONE, bytes(4), number)


class FakeSocket:
    """Answers each request by the datagrams that `answer` makes for its number.

    Attributes:
        waiting: datagrams that are not read yet.
    """

    def __init__(self, answer: Callable[[int], list[bytes]]) -> None:
        self.answer = answer
        self.waiting: list[bytes] = []
        self.sequence = 0
        self.strangers = 0

    def send(self, request: bytes | bytearray) -> int:
        self.waiting += self.answer(netlink.number_of(bytes(request)))
        return len(request)

    def recv_into(self, room: memoryview) -> int:
        data = self.recv(len(room))
        room[: len(data)] = data
        return len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(0)[:size]
