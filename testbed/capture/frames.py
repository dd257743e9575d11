"""Parses captured packets: link header, IPv4, UDP or TCP."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from testbed.capture.pcap import LINKTYPE_ETHERNET, CaptureError

TCP, UDP = 6, 17
_IPV4, _VLAN = 0x0800, 0x8100
_ETHERTYPE = struct.Struct("!H")
_IP = struct.Struct("!BxHxxHxBxx4s4s")
_UDP = struct.Struct("!HHH")
_TCP = struct.Struct("!HHIxxxxBB")
_FRAGMENT_OFFSET = 0x1FFF


class Segment(NamedTuple):
    """A UDP datagram or a TCP segment.

    `payload` may be shorter than `length`, the bytes that were on the wire. `sequence` and `flags`
    are TCP's and 0 for UDP. Addresses are four bytes.
    """

    protocol: int
    source: bytes
    target: bytes
    source_port: int
    target_port: int
    payload: bytes
    length: int
    sequence: int
    flags: int


def _ethernet(data: bytes) -> int | None:
    at = 12
    while len(data) >= at + 2:
        (kind,) = _ETHERTYPE.unpack_from(data, at)
        if kind != _VLAN:
            return at + 2 if kind == _IPV4 else None
        at += 4
    return None


def _after(size: int) -> Callable[[bytes], int | None]:
    """For link headers of a fixed size, whose packets all hold IP."""
    return lambda data: size


# Link type -> where the IPv4 header begins, None for a packet without one.
_LINKS: dict[int, Callable[[bytes], int | None]] = {
    LINKTYPE_ETHERNET: _ethernet,
    0: _after(4),  # BSD loopback
    101: _after(0),  # raw IP
    228: _after(0),  # raw IPv4
    113: _after(16),  # `tcpdump -i any`
    276: _after(20),  # the same, its second version
}


def link(link_type: int) -> Callable[[bytes], int | None]:
    """The function that finds the IPv4 header in packets of a link type.

    Raises:
        CaptureError: the link type is unknown.
    """
    try:
        return _LINKS[link_type]
    except KeyError:
        raise CaptureError(
            f"link type {link_type} is not supported; valid: {', '.join(map(str, sorted(_LINKS)))}"
        ) from None


def segment(data: bytes, at: int | None) -> Segment | None:
    """The segment in a packet whose IPv4 header is at `at`; None if it is not UDP or TCP.

    Sizes that the packet states are bounded by what was captured; a packet that contradicts itself
    gives None.
    """
    if at is None or len(data) < at + _IP.size:
        return None
    first, total, fragment, protocol, source, target = _IP.unpack_from(data, at)
    header_bytes = (first & 15) * 4
    if first >> 4 != 4 or header_bytes < 20 or fragment & _FRAGMENT_OFFSET:
        return None
    begin, end = at + header_bytes, at + total
    if protocol == UDP:
        if len(data) < begin + 8:
            return None
        source_port, target_port, length = _UDP.unpack_from(data, begin)
        if length < 8:
            return None
        payload = data[begin + 8 : begin + length]
        return Segment(UDP, source, target, source_port, target_port, payload, length - 8, 0, 0)
    if protocol == TCP:
        if len(data) < begin + 20:
            return None
        source_port, target_port, sequence, offset, flags = _TCP.unpack_from(data, begin)
        begin += (offset >> 4) * 4
        if end < begin:
            return None
        return Segment(
            TCP,
            *(source, target, source_port, target_port),
            *(data[begin:end], end - begin, sequence, flags),
        )
    return None
