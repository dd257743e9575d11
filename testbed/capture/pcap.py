"""Reads and writes classic pcap files (`tcpdump -w`) as a stream."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from testbed.shared.unlinked import open_file

LINKTYPE_ETHERNET = 1
_HEAD = "IHHiIII"  # magic, version 2.4, time zone, accuracy, snapshot length, link type
_RECORD = "IIII"  # seconds, fraction, captured bytes, bytes on the wire
# The first four bytes -> byte order and nanoseconds per unit of a record's fraction.
_ORDERS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_NANOSECOND_MAGIC = 0xA1B23C4D
_READ_BYTES = 1 << 20
_MOST_RECORD_BYTES = 1 << 18


class CaptureError(Exception):
    """A capture that cannot be read; the message is one line without the file's name."""


class Packet(NamedTuple):
    """One packet of a capture.

    `data` may be shorter than the `length` bytes that were on the wire.
    """

    time_ns: int
    data: bytes
    length: int


class PcapReader:
    """The packets of an open file, read piece by piece.

    Attributes:
        link_type: what `data` begins with, as tcpdump.org/linktypes.html numbers it.
        packets: how many were given so far.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Reads the file's header. Raises CaptureError when this is no pcap file."""
        self._file = file
        self.packets = 0
        size = struct.calcsize("=" + _HEAD)
        head = file.read(size)
        if head[:4] == _PCAPNG:
            raise CaptureError(
                "a pcapng file, which this cannot read; 'tcpdump -r FILE -w OTHER' converts it"
            )
        if head[:4] not in _ORDERS:
            raise CaptureError("not a pcap file" if head else "empty, not a pcap file")
        if len(head) < size:
            raise CaptureError(f"truncated: ends within the file's header of {size} bytes")
        order, self._unit_ns = _ORDERS[head[:4]]
        *_, self.link_type = struct.unpack(order + _HEAD, head)
        self._record = struct.Struct(order + _RECORD)

    def __iter__(self) -> Iterator[Packet]:
        """Raises CaptureError, naming the packet, when the file ends within one."""
        record, unit_ns = self._record, self._unit_ns
        head_bytes = record.size
        data, at = b"", 0
        while True:
            more = self._file.read(_READ_BYTES)
            if not more:
                break
            data, at = data[at:] + more, 0
            while len(data) - at >= head_bytes:
                seconds, fraction, captured, length = record.unpack_from(data, at)
                if captured > _MOST_RECORD_BYTES:
                    raise CaptureError(
                        f"damaged: packet {self.packets + 1} claims to have {captured} bytes"
                    )
                end = at + head_bytes + captured
                if end > len(data):
                    break
                self.packets += 1
                yield Packet(
                    seconds * 1_000_000_000 + fraction * unit_ns,
                    data[at + head_bytes : end],
                    length,
                )
                at = end
        if at < len(data):
            raise CaptureError(f"truncated: ends within packet {self.packets + 1}")


class PcapWriter:
    """Writes a capture of Ethernet frames with nanoseconds; what was written is never buffered."""

    def __init__(self, path: Path, *, snapshot_bytes: int) -> None:
        self._file = open_file(path, "wb", buffering=0)
        head = (_NANOSECOND_MAGIC, 2, 4, 0, 0, snapshot_bytes, LINKTYPE_ETHERNET)
        self._file.write(struct.pack("<" + _HEAD, *head))

    def write(self, records: bytes | bytearray) -> None:
        """Appends records that `pack_record` made."""
        self._file.write(records)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


RECORD_BYTES = struct.calcsize("=" + _RECORD)
# `pack_record(seconds, nanoseconds, captured, length)`, to be followed by the captured bytes.
pack_record = struct.Struct("<" + _RECORD).pack
