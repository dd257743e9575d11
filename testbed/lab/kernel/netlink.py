"""The kernel's routing socket, spoken directly: links and queues without starting a program.

`tc` and `ip` take about 5 ms each to start; a message takes some microseconds. Only the messages
that labs need are here. A conversation keeps the network namespace that it was opened in, so one
process can speak with those of all hosts. Formats: linux/rtnetlink.h, linux/pkt_sched.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from types import TracebackType

from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.namespaces import socket_in

_NEWLINK, _SETLINK, _NEWQDISC, _NEWCLASS = 16, 19, 36, 40
_REQUEST, _ACK, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_ERROR_MESSAGE = 2
_UP, _NO_ARP = 0x1, 0x80
_ROOT = 0xFFFFFFFF
# Time in queueing disciplines' messages counts in these.
_TICK_S = 64e-9
_GET_INDEX, _ETHTOOL = 0x8933, 0x8946  # ioctl
# By ethtool's names: how to ask for them, and how to set them (ETHTOOL_G..., ETHTOOL_S...).
_OFFLOADS = {
    "tx": (0x16, 0x17),
    "rx": (0x14, 0x15),
    "tso": (0x1E, 0x1F),
    "gso": (0x23, 0x24),
    "gro": (0x2B, 0x2C),
}


class NetlinkError(CommandError):
    """The kernel refused a message; `number` is its errno."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what}: {os.strerror(number)}")
        self.number = number


class Message:
    """One request, and what it is about for the error message."""

    def __init__(self, kind: int, flags: int, body: bytes, what: str) -> None:
        self.kind = kind
        self.flags = flags
        self.body = body
        self.what = what


class Netlink:
    """A conversation with the kernel in one network namespace.

    Args:
        pid: a process in the namespace; None is the caller's own.
    """

    def __init__(self, pid: int | None = None) -> None:
        arguments = (socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket = socket.socket(*arguments) if pid is None else socket_in(pid, *arguments)
        self._socket.bind((0, 0))

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the conversation."""
        self._socket.close()

    def send(self, messages: Sequence[Message]) -> None:
        """Have the kernel do all of it, in order.

        Raises:
            NetlinkError: it refused one; those before it are done, those behind it as well.
        """
        for start in range(0, len(messages), 64):
            self._send_some(messages[start : start + 64])

    def _send_some(self, messages: Sequence[Message]) -> None:
        packed = []
        for number, message in enumerate(messages):
            flags = message.flags | _REQUEST | _ACK
            header = struct.pack("=IHHII", 16 + len(message.body), message.kind, flags, number, 0)
            packed.append(_padded(header + message.body))
        self._socket.send(b"".join(packed))
        refused: NetlinkError | None = None
        answered = 0
        while answered < len(messages):
            data = self._socket.recv(1 << 16)
            while len(data) >= 16:
                length, kind, _, number, _ = struct.unpack_from("=IHHII", data)
                if kind == _ERROR_MESSAGE:
                    answered += 1
                    (status,) = struct.unpack_from("=i", data, 16)
                    if status and refused is None:
                        refused = NetlinkError(messages[number].what, -status)
                data = data[(length + 3) & ~3 :]
        if refused is not None:
            raise refused

    def index(self, interface: str) -> int:
        """The number by which the kernel knows an interface of this namespace.

        Raises:
            NetlinkError: there is none of this name.
        """
        request = bytearray(struct.pack("=16s24x", interface.encode()))
        try:
            fcntl.ioctl(self._socket, _GET_INDEX, request)
        except OSError as error:
            raise NetlinkError(f"interface {interface}", error.errno or errno.ENODEV) from None
        return int(struct.unpack_from("=i", request, 16)[0])

    def disable_offloads(self, interface: str) -> None:
        """Queues shall see single packets, with real checksums: OVS's user datapath needs both."""
        for _, command in _OFFLOADS.values():
            self._ethtool(interface, command)

    def offloads(self, interface: str) -> list[str]:
        """Which of them are on, by ethtool's names."""
        return [name for name, (ask, _) in _OFFLOADS.items() if self._ethtool(interface, ask)]

    def _ethtool(self, interface: str, command: int) -> int:
        value = ctypes.create_string_buffer(struct.pack("=II", command, 0), 8)
        request = struct.pack("=16sQ16x", interface.encode(), ctypes.addressof(value))
        try:
            fcntl.ioctl(self._socket, _ETHTOOL, request)
        except OSError as error:
            number = error.errno or errno.EINVAL
            raise NetlinkError(f"offloads of {interface}", number) from None
        return int(struct.unpack("=II", value.raw)[1])


# Messages


def veth(
    name: str,
    peer: str,
    *,
    mac: str | None = None,
    peer_mac: str | None = None,
    peer_pid: int | None = None,
) -> Message:
    """Make a pair of joined interfaces: one here, its peer here or where a process lives."""
    other = _link_header(0) + _text(3, peer) + _mac(peer_mac)  # IFLA_IFNAME, IFLA_ADDRESS
    if peer_pid is not None:
        other += _attribute(19, struct.pack("=I", peer_pid))  # IFLA_NET_NS_PID
    described = _text(1, "veth") + _attribute(2, _attribute(1, other))  # INFO_KIND, DATA: PEER
    body = _link_header(0) + _text(3, name) + _mac(mac) + _attribute(18, described)  # LINKINFO
    return Message(_NEWLINK, _CREATE | _EXCLUSIVE, body, f"veth pair {name}, {peer}")


def up(index: int, *, arp: bool = True, name: str = "") -> Message:
    """Bring an interface up; without `arp` it never speaks of its own accord."""
    flags = _UP if arp else _UP | _NO_ARP
    header = struct.pack("=BxHiII", 0, 0, index, flags, flags)
    return Message(_SETLINK, 0, header, f"up {name or index}")


def htb(index: int, *, name: str = "") -> Message:
    """HTB at the root as `1:`, everything in class `1:10`."""
    defaults = struct.pack("=IIIII", 3, 10, 0x10, 0, 0)  # version, rate2quantum, default class
    body = _queue_header(index, 1 << 16, _ROOT) + _text(1, "htb")
    body += _attribute(2, _attribute(2, defaults))
    return Message(_NEWQDISC, _CREATE | _REPLACE, body, f"htb of {name or index}")


def htb_class(
    index: int, *, rate_bps: int, burst_bytes: int, quantum_bytes: int, name: str = ""
) -> Message:
    """Make class `1:10`, or change it while it works. Rates in bit/s."""
    rate = rate_bps // 8
    # Linklayer Ethernet is said outright, so that the kernel asks for no table of packet times.
    spec = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, min(rate, 0xFFFFFFFF))
    ticks = round(burst_bytes / rate / _TICK_S)
    parameters = spec + spec + struct.pack("=IIIII", ticks, ticks, quantum_bytes, 0, 0)
    options = _attribute(1, parameters)
    if rate > 0xFFFFFFFF:
        options += _attribute(6, struct.pack("=Q", rate)) + _attribute(7, struct.pack("=Q", rate))
    body = _queue_header(index, (1 << 16) | 0x10, 1 << 16) + _text(1, "htb")
    return Message(
        _NEWCLASS, _CREATE, body + _attribute(2, options), f"rate of {name or index}: {rate_bps}"
    )


def bfifo(index: int, *, limit_bytes: int, new: bool = True, name: str = "") -> Message:
    """A queue of so many bytes in class `1:10` as `10:`; with `new` false, change its limit."""
    body = _queue_header(index, 0x10 << 16, (1 << 16) | 0x10) + _text(1, "bfifo")
    body += _attribute(2, struct.pack("=I", limit_bytes))
    flags = _CREATE | _REPLACE if new else 0
    return Message(_NEWQDISC, flags, body, f"queue of {name or index}: {limit_bytes}")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _attribute(kind: int, value: bytes) -> bytes:
    return _padded(struct.pack("=HH", 4 + len(value), kind) + value)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _mac(address: str | None) -> bytes:
    return b"" if address is None else _attribute(1, bytes.fromhex(address.replace(":", "")))


def _link_header(index: int) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, 0, 0)


def _queue_header(index: int, handle: int, parent: int) -> bytes:
    return struct.pack("=BxxxiIII", 0, index, handle, parent, 0)
