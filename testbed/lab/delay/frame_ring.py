"""The socket with the ring of memory in which the kernel puts the frames of one direction.

The kernel takes up to a quarter of a second to find the memory of a large one. So whoever makes a
relay take over a direction while it works opens the socket for it.
"""

from __future__ import annotations

import contextlib
import socket
import struct

SOL_PACKET = 263
SLOT_BYTES = 2048
BLOCK_BYTES = 1 << 16
_RX_RING, _VERSION, _IGNORE_OUTGOING = 5, 10, 23
_TPACKET_V2 = 1


def ring_bytes(slots: int) -> int:
    """The memory of a ring."""
    return slots * SLOT_BYTES


def opened(slots: int, link: str) -> socket.socket:
    """A socket with a ring, which receives nothing before it is bound to an interface."""
    with contextlib.ExitStack() as undo:
        ring = undo.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        ring.setsockopt(SOL_PACKET, _IGNORE_OUTGOING, 1)
        ring.setsockopt(SOL_PACKET, _VERSION, _TPACKET_V2)
        blocks = ring_bytes(slots) // BLOCK_BYTES
        wanted = struct.pack("=IIII", BLOCK_BYTES, blocks, SLOT_BYTES, slots)
        try:
            ring.setsockopt(SOL_PACKET, _RX_RING, wanted)
        except OSError as error:
            memory = f"{ring_bytes(slots) / 1e6:.3g} MB for the {slots} frames in flight"
            raise OSError(error.errno, f"link {link}: {memory}: {error.strerror}") from error
        undo.pop_all()
    return ring
