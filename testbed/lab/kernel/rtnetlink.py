"""Makes and changes links and queues by messages to the kernel (rtnetlink), not by programs.

`tc` and `ip` take about 5 ms each to start; a message takes some microseconds. Formats:
linux/rtnetlink.h, linux/pkt_sched.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.lab.kernel import netlink
from testbed.lab.kernel.commands import CommandError
from testbed.lab.kernel.netlink import attribute, text

NEW_QDISC, GET_QDISC = 36, 38
TCMSG = struct.Struct("=BxxxiIII")  # family, interface index, handle, parent, info
ROOT = 0xFFFFFFFF  # as parent
IN_CLASS = (1 << 16) | 0x10  # as parent: HTB's class 1:10, in which the queue is
# As parents, where the class holds two queues: `10:1`, which is served first, and `10:2`.
FIRST_SERVED, LAST_SERVED = (0x10 << 16) | 1, (0x10 << 16) | 2
_NEW_LINK, _GET_LINK, _SET_LINK, _NEW_ADDRESS, _NEW_NEIGHBOUR, _NEW_CLASS = 16, 18, 19, 20, 28, 40
_NEW_FILTER = 44
_ALL_PROTOCOLS = 0x0003  # ETH_P_ALL
# Faster than any link, so that a class of this rate never waits for it; in byte/s.
_UNLIMITED = 0xFFFFFFFF
_UNLIMITED_BURST_BYTES = 1 << 20
_GSO_MAX_SEGMENTS = 40  # IFLA_GSO_MAX_SEGS
_REPLACE, _EXCLUSIVE, _CREATE = 0x100, 0x200, 0x400
_UP, _NO_ARP = 0x1, 0x80
_PERMANENT = 0x80  # state of a neighbour
_TOGETHER = 64  # messages: their answers take 53 kB of the 213 kB that a socket holds by default
# The unit of time in queueing disciplines' messages.
TICK_S = 64e-9
_GET_INDEX, _ETHTOOL = 0x8933, 0x8946  # ioctl
# By ethtool's names: the commands to ask for and to set each (ETHTOOL_G..., ETHTOOL_S...).
_OFFLOADS = {
    "tx": (0x16, 0x17),
    "rx": (0x14, 0x15),
    "tso": (0x1E, 0x1F),
    "gso": (0x23, 0x24),
    "gro": (0x2B, 0x2C),
}


class Interface(NamedTuple):
    """An interface of a namespace: the number by which the kernel knows it, and its name."""

    number: int
    name: str


class Message(NamedTuple):
    """One request, and what it is about for the error message."""

    kind: int
    flags: int
    body: bytes
    what: str


class Rtnetlink:
    """A connection to the kernel's networking in one network namespace."""

    def __init__(self, pid: int | None = None) -> None:
        self.socket = netlink.connect(netlink.ROUTE, pid)

    def __enter__(self) -> Rtnetlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages, which the kernel carries out in order."""
        for start in range(0, len(messages), _TOGETHER):
            some = messages[start : start + _TOGETHER]
            try:
                answers = netlink.request(self.socket, [message[:3] for message in some])
            except OSError as error:
                raise CommandError(f"{some[0].what}: {error.strerror}") from None
            for message, refusal in zip(some, answers, strict=True):
                if refusal is not None:
                    raise CommandError(f"{message.what}: {refusal.strerror}")

    def interface(self, name: str) -> Interface:
        """Find an interface of this namespace; CommandError when there is none."""
        try:
            return Interface(interface_index(self.socket, name), name)
        except OSError as error:
            raise CommandError(f"interface {name}: {error.strerror}") from None

    def disable_offloads(self, interface: str) -> None:
        """Make queues see single packets with real checksums: OVS's user datapath needs both."""
        for ask, command in _OFFLOADS.values():
            if self._ethtool(interface, ask):  # one that cannot be on cannot be set, either
                self._ethtool(interface, command)
        if kept := self.offloads(interface):
            raise CommandError(f"offloads of {interface}: these stay on: {', '.join(kept)}")

    def offloads(self, interface: str) -> list[str]:
        """Return the offloads that are on, by ethtool's names."""
        return [name for name, (ask, _) in _OFFLOADS.items() if self._ethtool(interface, ask)]

    def most_segments(self, interface: str) -> int:
        """Return the most segments that the kernel puts into one packet of this interface."""
        header = _link_header(self.interface(interface).number)
        about = netlink.values(netlink.ask(self.socket, _GET_LINK, header), len(header))
        if _GSO_MAX_SEGMENTS not in about:
            raise CommandError(f"segments of {interface}: the kernel does not tell")
        return int(struct.unpack("=I", about[_GSO_MAX_SEGMENTS])[0])

    def _ethtool(self, interface: str, command: int) -> int:
        value = ctypes.create_string_buffer(struct.pack("=II", command, 0), 8)
        request = struct.pack("=16sQ16x", interface.encode(), ctypes.addressof(value))
        try:
            fcntl.ioctl(self.socket, _ETHTOOL, request)
        except OSError as error:
            raise CommandError(f"offloads of {interface}: {error.strerror}") from None
        return int(struct.unpack("=II", value.raw)[1])


def interface_index(opened: socket.socket, interface: str) -> int:
    """Return the number of an interface of a socket's namespace; OSError when there is none."""
    request = bytearray(struct.pack("=16s24x", interface.encode()))
    fcntl.ioctl(opened, _GET_INDEX, request)
    return int(struct.unpack_from("=i", request, 16)[0])


def bring_up_silent(interface: str) -> None:
    """Bring an interface of this namespace up that sends nothing of its own accord."""
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1\n")
    with Rtnetlink() as kernel:
        kernel.disable_offloads(interface)
        silent = kernel.interface(interface)
        kernel.send([single_segments(silent), up(silent, arp=False)])


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
    other = _link_header(0) + text(3, peer) + _mac(peer_mac)  # IFLA_IFNAME, IFLA_ADDRESS
    if peer_pid is not None:
        other += attribute(19, struct.pack("=I", peer_pid))  # IFLA_NET_NS_PID
    described = text(1, "veth") + attribute(2, attribute(1, other))  # INFO_KIND, DATA: PEER
    body = _link_header(0) + text(3, name) + _mac(mac) + attribute(18, described)  # LINKINFO
    return Message(_NEW_LINK, _CREATE | _EXCLUSIVE, body, f"veth pair {name}, {peer}")


def up(interface: Interface, *, arp: bool = True) -> Message:
    """Bring an interface up; without ARP it sends nothing of its own accord."""
    flags = _UP if arp else _UP | _NO_ARP
    header = struct.pack("=BxHiII", 0, 0, interface.number, flags, flags)
    return Message(_SET_LINK, 0, header, f"up {interface.name}")


def hardware_address(interface: Interface, mac: str) -> Message:
    body = _link_header(interface.number) + _mac(mac)
    return Message(_SET_LINK, 0, body, f"address of {interface.name}")


def address(interface: Interface, with_length: str) -> Message:
    """Give an interface an IPv4 address such as `10.0.0.1/8`, and the network's broadcast."""
    own = ipaddress.IPv4Interface(with_length)
    body = struct.pack("=BBBBI", socket.AF_INET, own.network.prefixlen, 0, 0, interface.number)
    for kind, part in ((2, own), (1, own), (4, own.network.broadcast_address)):
        body += attribute(kind, part.packed)  # IFA_LOCAL, IFA_ADDRESS, IFA_BROADCAST
    return Message(_NEW_ADDRESS, _CREATE | _REPLACE, body, f"{with_length} at {interface.name}")


def neighbour(interface: Interface, address: str, mac: str) -> Message:
    """Let an interface know the hardware address behind an IPv4 address, for good."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, interface.number, _PERMANENT, 0, 0)
    body += attribute(1, socket.inet_aton(address)) + attribute(2, _bytes(mac))  # DST, LLADDR
    return Message(_NEW_NEIGHBOUR, _CREATE | _REPLACE, body, f"neighbour {address}")


def single_segments(interface: Interface) -> Message:
    """Make each packet that TCP sends through an interface one segment."""
    # Without segmentation offload the kernel's TCP still builds packets of up to 64 KiB (since
    # Linux 4.17), which are cut behind the queue: the queue would hold and drop dozens of frames as
    # one.
    body = _link_header(interface.number) + attribute(_GSO_MAX_SEGMENTS, struct.pack("=I", 1))
    return Message(_SET_LINK, 0, body, f"single segments of {interface.name}")


def htb(interface: Interface) -> Message:
    """HTB at the root as `1:`, everything in class `1:10`."""
    defaults = struct.pack("=IIIII", 3, 10, 0x10, 0, 0)  # version, rate2quantum, default class
    body = _queue_header(interface, 1 << 16, ROOT) + text(1, "htb")
    body += attribute(2, attribute(2, defaults))
    return Message(NEW_QDISC, _CREATE | _REPLACE, body, f"htb of {interface.name}")


def htb_class(
    interface: Interface, *, rate_bps: int, burst_bytes: int, quantum_bytes: int
) -> Message:
    """Make class `1:10`, or change it while it works. Rates in bit/s."""
    rate = rate_bps // 8
    options = attribute(1, _htb_parameters(rate, burst_bytes, quantum_bytes))
    if rate > 0xFFFFFFFF:
        options += attribute(6, struct.pack("=Q", rate)) + attribute(7, struct.pack("=Q", rate))
    body = _queue_header(interface, IN_CLASS, 1 << 16) + text(1, "htb") + attribute(2, options)
    return Message(_NEW_CLASS, _CREATE, body, f"rate of {interface.name}: {rate_bps}")


def _htb_parameters(rate: int, burst_bytes: int, quantum_bytes: int, priority: int = 0) -> bytes:
    """A class's rate and ceiling, in byte/s, and the bucket of both."""
    # With link layer Ethernet the kernel does not ask for a table of packet times.
    spec = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, min(rate, 0xFFFFFFFF))
    ticks = round(burst_bytes / rate / TICK_S)
    return spec + spec + struct.pack("=IIIII", ticks, ticks, quantum_bytes, 0, priority)


def two_classes(interface: Interface, *, quantum_bytes: int, dscp: int) -> list[Message]:
    """Two classes in class `1:10`: IP packets with this DSCP in `10:1`, which is served first."""
    # Strict priority by a second HTB, whose own rates never limit: not all kernels have prio.
    defaults = struct.pack("=IIIII", 3, 10, 2, 0, 0)  # version, rate2quantum, default class
    body = _queue_header(interface, 0x10 << 16, IN_CLASS) + text(1, "htb")
    body += attribute(2, attribute(2, defaults))
    messages = [Message(NEW_QDISC, _CREATE | _REPLACE, body, f"two classes of {interface.name}")]
    for priority, place in enumerate((FIRST_SERVED, LAST_SERVED)):
        parameters = _htb_parameters(_UNLIMITED, _UNLIMITED_BURST_BYTES, quantum_bytes, priority)
        body = _queue_header(interface, place, 0x10 << 16) + text(1, "htb")
        body += attribute(2, attribute(1, parameters))
        messages.append(Message(_NEW_CLASS, _CREATE, body, f"class {priority} of {interface.name}"))
    # The first 32 bits of a packet have its version and its DSCP, at other places in IPv6.
    versions = ((0xF0FC0000, 4 << 28 | dscp << 18), (0xFFC00000, 6 << 28 | dscp << 22))
    messages += [_u32(interface, number, *version) for number, version in enumerate(versions, 1)]
    return messages


def _u32(interface: Interface, number: int, mask: int, value: int) -> Message:
    """Packets whose first 32 bits have this value under the mask belong in `10:1`."""
    # struct tc_u32_sel: terminal, one key; struct tc_u32_key: mask, value, two offsets.
    selector = struct.pack("=BBB13x", 1, 0, 1) + struct.pack("!II8x", mask, value)
    options = attribute(1, struct.pack("=I", FIRST_SERVED)) + attribute(5, selector)
    about = number << 16 | socket.htons(_ALL_PROTOCOLS)
    header = TCMSG.pack(0, interface.number, 0, 0x10 << 16, about)
    body = header + text(1, "u32") + attribute(2, options)
    return Message(_NEW_FILTER, _CREATE | _EXCLUSIVE, body, f"filter {number} of {interface.name}")


def bfifo(
    interface: Interface, *, limit_bytes: int, new: bool = True, parent: int = IN_CLASS
) -> Message:
    """A queue of so many bytes in class `1:10` as `10:`; with `new` false, change its limit."""
    handle = 0x10 if parent == IN_CLASS else 0x10 + (parent & 0xFFFF)
    body = _queue_header(interface, handle << 16, parent) + text(1, "bfifo")
    body += attribute(2, struct.pack("=I", limit_bytes))
    flags = _CREATE | _REPLACE if new else 0
    return Message(NEW_QDISC, flags, body, f"queue of {interface.name}: {limit_bytes}")


def _mac(address: str | None) -> bytes:
    return b"" if address is None else attribute(1, _bytes(address))


def _bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _link_header(index: int) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, 0, 0)


def _queue_header(interface: Interface, handle: int, parent: int) -> bytes:
    return TCMSG.pack(0, interface.number, handle, parent, 0)
