"""Reads the state of TCP connections in any namespace fast, through sock_diag.

Formats: linux/inet_diag.h, and struct tcp_info of linux/tcp.h, to which fields are only appended.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.lab.kernel import netlink

# Columns of a connection's state. The window is in bytes: segments times their size; the rate is
# the kernel's latest sample of the delivery rate, 0 before the first; retransmits are segments sent
# again, and acked_bytes what the other end has confirmed, since the connection began.
STATE = ("cwnd_bytes", "rtt_s", "rate_bps", "retransmits", "acked_bytes")

_SOCK_DIAG_BY_FAMILY = 20
_ESTABLISHED = 1 << 1
_WANT_INFO, _INFO = 1 << 1, 2
_WANT_CONGESTION_CONTROL, _CONGESTION_CONTROL = 1 << 3, 4
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_NO_COOKIE = b"\xff" * 8
_IDENTITY_BYTES = 48  # ports, addresses, interface, cookie
_MESSAGE_BYTES = 72
_IDENTITY = slice(4, 4 + _IDENTITY_BYTES)  # of an inet_diag_msg
_SND_MSS, _RTT_US, _CWND, _RETRANSMITS, _ACKED_BYTES, _DELIVERY_RATE = 16, 68, 80, 100, 120, 160
_ANSWER_BYTES = 2048
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address as one of IPv6 (RFC 4291)
_TIMEOUT_S = 1  # no answer of the kernel takes so long


@dataclass(frozen=True, slots=True)
class Connection:
    """An established IPv4 connection, seen from one of its ends."""

    address: str
    port: int
    peer_address: str
    peer_port: int
    congestion_control: str = ""

    @property
    def reversed(self) -> Connection:
        """The same seen from the other end."""
        return Connection(self.peer_address, self.peer_port, self.address, self.port)

    def lookup(self) -> bytes:
        """The request with which `TcpReader.ask` asks for it."""
        identity = (
            struct.pack("!HH", self.port, self.peer_port)
            + socket.inet_aton(self.address).ljust(16, b"\0")
            + socket.inet_aton(self.peer_address).ljust(16, b"\0")
            + bytes(4)
            + _NO_COOKIE
        )
        content = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, _WANT_INFO, _ESTABLISHED)
        return netlink.pack(_SOCK_DIAG_BY_FAMILY, 0, content + identity)


class TcpReader:
    """Reads connections of the namespace of process `pid`."""

    def __init__(self, pid: int) -> None:
        self._socket = netlink.connect(netlink.SOCK_DIAG, pid, timeout_s=_TIMEOUT_S)

    def connections(self, first_port: int, last_port: int) -> list[Connection]:
        """Established connections with either port in a range; OSError when the kernel refuses."""
        return [
            found
            for family in (socket.AF_INET, socket.AF_INET6)
            for found in self._connections(family)
            if first_port <= found.port <= last_port or first_port <= found.peer_port <= last_port
        ]

    def _connections(self, family: int) -> Iterator[Connection]:
        """All of IPv4; a socket of IPv6 that accepts both families may hold them."""
        request = _REQUEST.pack(
            family, socket.IPPROTO_TCP, _WANT_CONGESTION_CONTROL, _ESTABLISHED
        ) + bytes(_IDENTITY_BYTES)
        for _, message in netlink.dump(self._socket, _SOCK_DIAG_BY_FAMILY, request):
            identity = bytes(message[_IDENTITY])
            ends = identity[4:20], identity[20:36]
            if family == socket.AF_INET6:
                if not all(end.startswith(_MAPPED) for end in ends):
                    continue
                ends = ends[0][len(_MAPPED) :], ends[1][len(_MAPPED) :]
            address, peer = (socket.inet_ntoa(end[:4]) for end in ends)
            port, peer_port = struct.unpack_from("!HH", identity, 0)
            yield Connection(address, port, peer, peer_port, _congestion_control(message))

    def ask(self, request: bytes) -> bytes:
        """The kernel's answer to a `lookup`, for `decode`; OSError when it gives none."""
        numbered = bytearray(request)
        wanted = netlink.number(numbered, self._socket)
        self._socket.send(numbered)
        while netlink.number_of(answer := self._socket.recv(_ANSWER_BYTES)) != wanted:
            self._socket.strangers += 1  # of an answer that was given up
        return answer

    @property
    def strangers(self) -> int:
        """Answers to requests that had been given up; they were dropped."""
        return self._socket.strangers

    def close(self) -> None:
        self._socket.close()


def decode(answers: Sequence[bytes]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The answers that hold a connection's state, and the states: shape (k, 5), columns STATE."""
    which, states = [], []
    lengths = np.array([len(each) for each in answers])
    for length in np.unique(lengths):
        alike = np.flatnonzero(lengths == length)
        begin = _info_offset(answers[int(alike[0])])
        if begin is None:
            continue
        joined = b"".join(answers[index] for index in alike.tolist())
        table = np.frombuffer(joined, dtype=np.uint8).reshape(len(alike), length)[:, begin:]

        def column(
            offset: int, kind: str = "u4", table: NDArray[np.uint8] = table
        ) -> NDArray[np.float64]:
            size = np.dtype(kind).itemsize
            field = np.ascontiguousarray(table[:, offset : offset + size]).view(kind)
            return field[:, 0].astype(np.float64)

        values = (
            column(_CWND) * column(_SND_MSS),
            column(_RTT_US) * 1e-6,
            column(_DELIVERY_RATE, "u8") * 8,
            column(_RETRANSMITS),
            column(_ACKED_BYTES, "u8"),
        )
        which.append(alike)
        states.append(np.stack(values, axis=1))
    if not which:
        return np.empty(0, dtype=np.intp), np.empty((0, len(STATE)))
    order = np.argsort(np.concatenate(which))
    return np.concatenate(which)[order], np.concatenate(states)[order]


def _congestion_control(message: memoryview) -> str:
    for each, first, last in netlink.attributes(message, _MESSAGE_BYTES, len(message)):
        if each == _CONGESTION_CONTROL:
            return bytes(message[first:last]).rstrip(b"\0").decode(errors="replace")
    return ""


def _info_offset(answer: bytes) -> int | None:
    """Where struct tcp_info begins in an answer; None if it holds none that is long enough."""
    view = memoryview(answer)
    length, kind, *_ = netlink.HEADER.unpack_from(view, 0)
    if kind != _SOCK_DIAG_BY_FAMILY:
        return None
    begin = netlink.HEADER.size + _MESSAGE_BYTES
    for each, first, last in netlink.attributes(view, begin, min(length, len(view))):
        # Before Linux 4.9 there was no delivery rate.
        if each == _INFO and last - first >= _DELIVERY_RATE + 8:
            return first
    return None
