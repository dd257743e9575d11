"""Receives packets from an interface through a packet socket's ring, which the kernel fills.

One wake-up brings a block of packets, so that recording a link of 100 Mbit/s costs a few percent of
a core. A filter in the kernel cuts data packets to their headers and leaves control messages whole,
which tcpdump cannot do within one file; and tcpdump gives up its privileges in a way that a user
namespace does not permit.
"""

from __future__ import annotations

import ctypes
import mmap
import select
import socket
import struct
from collections.abc import Iterator

from testbed.lab.kernel import namespaces

_ETH_P_ALL = 0x0003
_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION = 5, 6, 10
_TPACKET_V3 = 2
_SO_ATTACH_FILTER = 26
_BLOCK_BYTES = 1 << 18
_BLOCKS = 32
_FRAME_BYTES = 1 << 11  # only a divisor of the block: packets lie one behind the other
_RETIRE_MS = 50  # the kernel hands a block over after this time even if it is not full
# Of struct tpacket_block_desc: the status and, behind it, the count and place of its packets.
_STATUS = struct.Struct("=I")
_STATUS_AT, _COUNT_AT = 8, 12
_TO_USER, _TO_KERNEL = 1, 0
_COUNTS = struct.Struct("=II")
# Of struct tpacket3_hdr: next, seconds, nanoseconds, captured, length, status, place of the data.
_HEADER = struct.Struct("=IIIIIIH")
_ETHERTYPE_AT, _PROTOCOL_AT, _IP_AT = 12, 23, 14
_IPV4, _TCP = 0x0800, 6
WHOLE_BYTES = 1 << 16

# Opcodes of the classic packet filter.
_LD_H_ABS, _LD_B_ABS, _LDX_IP_HEADER, _LD_H_IND = 0x28, 0x30, 0xB1, 0x48
_JUMP_IF_EQUAL, _RETURN = 0x15, 0x06


def _filter(whole_tcp_port: int, snapshot_bytes: int) -> bytes:
    """A filter that keeps packets of one TCP port whole, and `snapshot_bytes` of all others."""
    program = [
        (_LD_H_ABS, 0, 0, _ETHERTYPE_AT),
        (_JUMP_IF_EQUAL, 0, 7, _IPV4),
        (_LD_B_ABS, 0, 0, _PROTOCOL_AT),
        (_JUMP_IF_EQUAL, 0, 5, _TCP),
        (_LDX_IP_HEADER, 0, 0, _IP_AT),
        (_LD_H_IND, 0, 0, _IP_AT),  # source port
        (_JUMP_IF_EQUAL, 3, 0, whole_tcp_port),
        (_LD_H_IND, 0, 0, _IP_AT + 2),  # destination port
        (_JUMP_IF_EQUAL, 1, 0, whole_tcp_port),
        (_RETURN, 0, 0, snapshot_bytes),
        (_RETURN, 0, 0, WHOLE_BYTES),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


class PacketRing:
    """All packets that pass an interface, in both directions, from the construction on."""

    def __init__(
        self, pid: int, interface: str, *, whole_tcp_port: int, snapshot_bytes: int
    ) -> None:
        """`pid` names the namespace of `interface`; OSError when it cannot be recorded."""
        # Protocol 0 receives nothing until `bind`, so nothing comes in unfiltered.
        self._socket = namespaces.socket_in(pid, socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            program = _filter(whole_tcp_port, snapshot_bytes)
            memory = ctypes.create_string_buffer(program, len(program))
            self._socket.setsockopt(
                socket.SOL_SOCKET,
                _SO_ATTACH_FILTER,
                struct.pack("@HL", len(program) // 8, ctypes.addressof(memory)),
            )
            self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
            request = struct.pack(
                "=7I",
                *(_BLOCK_BYTES, _BLOCKS, _FRAME_BYTES),
                *(_BLOCK_BYTES // _FRAME_BYTES * _BLOCKS, _RETIRE_MS, 0, 0),
            )
            self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
            self._ring = mmap.mmap(self._socket.fileno(), _BLOCK_BYTES * _BLOCKS)
            self._socket.bind((interface, _ETH_P_ALL))
        except OSError:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._block = 0

    def take(self, timeout_s: float) -> Iterator[tuple[int, int, int, bytes]]:
        """Wait for a complete block, then give the packets of all that are complete.

        Gives (seconds, nanoseconds, bytes on the wire, captured bytes).
        """
        if not self._is_ready():
            self._poll.poll(timeout_s * 1000)
        while self._is_ready():
            start = self._block * _BLOCK_BYTES
            count, first = _COUNTS.unpack_from(self._ring, start + _COUNT_AT)
            at = start + first
            for _ in range(count):
                following, seconds, nanoseconds, captured, length, _, data = _HEADER.unpack_from(
                    self._ring, at
                )
                yield seconds, nanoseconds, length, self._ring[at + data : at + data + captured]
                at += following
            _STATUS.pack_into(self._ring, start + _STATUS_AT, _TO_KERNEL)
            self._block = (self._block + 1) % _BLOCKS

    def _is_ready(self) -> bool:
        (status,) = _STATUS.unpack_from(self._ring, self._block * _BLOCK_BYTES + _STATUS_AT)
        return bool(status & _TO_USER)

    @property
    def settle_s(self) -> float:
        """How long it takes until what has passed can be taken."""
        return 2 * _RETIRE_MS / 1000

    def take_dropped(self) -> int:
        """Packets that were not recorded because the ring was full, since the last call."""
        counts = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12)
        _, dropped, _ = struct.unpack("=3I", counts)
        return int(dropped)

    def close(self) -> None:
        """Ends the recording."""
        self._socket.close()
        self._ring.close()
