"""Checks that a chunk fits the MTU of the path to a peer, and cuts it where that has shrunk.

Fragments multiply loss. A smaller MTU that an ICMP message told may be forged: it is worth a
warning alone. Where it shrinks while data flow, each chunk goes in equal *pieces*, with the chunk's
header and a `sequence` that counts pieces; chunks and layouts stay as they are.
"""

import errno
import socket
import struct
import warnings
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.wire import (
    CHUNK_BITS,
    HEADER_BYTES,
    MOST_PIECES,
    U32_MAX,
    WIRE_OVERHEAD_BYTES,
    fields,
    new_frames,
)
from testbed.transport.net.addresses import IP_HEADER_BYTES, Host
from testbed.transport.net.udp_socket import refuse_fragments

# From <linux/in.h>, <linux/in6.h> and <linux/udp.h>; Python's socket module lacks them.
_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
_UDP_CORK = 1
_UDP_BYTES = 8
_DISCARD = 9
# What interfaces and tunnels have (RFC 1191, section 7.1, and later ones). On smaller ones control
# messages would not pass either.
_COMMON_MTUS = (9000, 4352, 1500, 1492, 1400, 1280)
_TRIAL = struct.Struct("!IIIHH")  # a header of no transfer, with the number in place of a chunk's
# Chunks of which some pieces have come: so many at most, and so many bytes.
_MOST_SLOTS, _MOST_SLOT_BYTES = 4096, 8 << 20
_SPREAD = 1237


def _probe(local: Host, peer: Host) -> socket.socket:
    """A socket that sends nothing: the kernel holds what it is given until it is closed."""
    probe = socket.socket(local.family, socket.SOCK_DGRAM)
    try:
        refuse_fragments(probe)
        probe.setsockopt(socket.IPPROTO_UDP, _UDP_CORK, 1)
        probe.bind(local.at(0))
        probe.connect(peer.at(_DISCARD))
    except OSError:
        probe.close()
        raise
    return probe


def path_mtu_bytes(local: Host, peer: Host) -> int | None:
    """The MTU that the kernel assumes for the path between two addresses; None: no route."""
    try:
        with _probe(local, peer) as probe:
            return probe.getsockopt(*_MTU[local.family])
    except OSError:
        return None


def _fits_interface(datagram_bytes: int, local: Host, peer: Host) -> bool:
    try:
        with _probe(local, peer) as probe:
            probe.send(bytes(datagram_bytes))
    except OSError as error:
        return error.errno != errno.EMSGSIZE
    return True


def largest_chunk_bytes(
    mtu_bytes: int, family: socket.AddressFamily = socket.AF_INET, trailer_bytes: int = 0
) -> int:
    """The largest chunk whose datagram is one packet of at most `mtu_bytes`."""
    overhead_bytes = IP_HEADER_BYTES[family] + _UDP_BYTES + HEADER_BYTES + trailer_bytes
    return (mtu_bytes - overhead_bytes) // 4 * 4


def check_chunk_fits(chunk_bytes: int, *, local: Host, peer: Host, trailer_bytes: int = 0) -> None:
    """Raises ValueError for a chunk whose packet the interface towards the peer cannot send."""
    mtu_bytes = path_mtu_bytes(local, peer)
    if mtu_bytes is None:
        return
    largest = largest_chunk_bytes(mtu_bytes, local.family, trailer_bytes)
    if chunk_bytes <= largest:
        return
    problem = (
        f"chunk_bytes is {chunk_bytes}, too large for the path to {peer} with an MTU of "
        f"{mtu_bytes} bytes; valid: up to {largest}"
    )
    if not _fits_interface(HEADER_BYTES + chunk_bytes + trailer_bytes, local, peer):
        raise ValueError(problem)
    warnings.warn(
        f"{problem}, if the ICMP message that said so was no forgery", RuntimeWarning, stacklevel=2
    )


def trial_of(head: bytes, session: int) -> int | None:
    """The number of a datagram that tries a size; None where it is another one."""
    named, number, transfer, length, stamp = _TRIAL.unpack(head[: _TRIAL.size])
    return number if (named, transfer, length, stamp) == (session, U32_MAX, 0, 0) else None


class Sizes:
    """In how many datagrams the chunks of one connection may go, and how large these are."""

    def __init__(
        self, session: int, layout: PayloadLayout, *, local: Host, peer: Host, trailer_bytes: int
    ) -> None:
        """`layout` is that with the most chunks."""
        self.session, self.chunk_bytes = session, layout.chunk_bytes  # of a whole one
        self._local, self._peer, self._trailer_bytes = local, peer, trailer_bytes
        self._above_bytes = peer.ip_header_bytes + _UDP_BYTES
        self._most = min(MOST_PIECES, self.chunk_bytes, (1 << CHUNK_BITS) // layout.chunk_count)

    def datagram_bytes(self, pieces: int) -> int:
        """With its trailer."""
        return HEADER_BYTES + piece_bytes(self.chunk_bytes, pieces) + self._trailer_bytes

    def packet_bytes(self, pieces: int) -> int:
        """What a path must take."""
        return self.datagram_bytes(pieces) + self._above_bytes

    @cached_property
    def wire_bytes(self) -> Mapping[int, int]:
        ethernet_bytes = WIRE_OVERHEAD_BYTES - IP_HEADER_BYTES[socket.AF_INET] - _UDP_BYTES
        return {
            pieces: pieces * (self.packet_bytes(pieces) + ethernet_bytes)
            for pieces in range(2, self._most + 1)
        }

    @property
    def likely(self) -> list[int]:
        """The numbers of pieces that fit the MTUs that are common."""
        chosen = {
            next((each for each in self.wire_bytes if self.packet_bytes(each) <= mtu_bytes), 0)
            for mtu_bytes in _COMMON_MTUS
        }
        return sorted(chosen - {0})

    def that_fit_the_interface(self) -> int | None:
        """The least that the interface takes; None where it takes none."""
        for pieces in (1, *self.wire_bytes):
            if _fits_interface(self.datagram_bytes(pieces), self._local, self._peer):
                return pieces
        return None

    def trial(self, number: int, pieces: int) -> bytes:
        """A datagram that shows whether those of so many pieces arrive."""
        head = _TRIAL.pack(self.session, number, U32_MAX, 0, 0)
        return head.ljust(self.datagram_bytes(pieces), b"\0")

    def warn(self, before: int, pieces: int) -> None:
        """Names the MTU."""
        packet_bytes = self.packet_bytes(pieces)
        family = self._peer.family
        warnings.warn(
            f"the path to {self._peer} takes no packets of {self.packet_bytes(before)} bytes any "
            f"more: its MTU has shrunk to {packet_bytes} bytes or somewhat above. Each chunk goes "
            f"in {pieces} datagrams from now on, and is lost with any of them; to avoid that, "
            "restart with chunk_bytes up to "
            f"{largest_chunk_bytes(packet_bytes, family, self._trailer_bytes)}",
            RuntimeWarning,
            stacklevel=2,
        )


def piece_bytes(chunk_bytes: int, pieces: int) -> int:
    """Bytes of the chunk in each; the last one is padded."""
    return -(-chunk_bytes // pieces)


def cut(frames: NDArray[np.uint8], pieces: int) -> NDArray[np.uint8]:
    """Each datagram in `pieces`: shape (count * pieces, HEADER_BYTES + `piece_bytes`)."""
    count, chunk_bytes = len(frames), frames.shape[1] - HEADER_BYTES
    size = piece_bytes(chunk_bytes, pieces)
    rows = new_frames(count * pieces, size)
    grid = rows.reshape(count, pieces, HEADER_BYTES + size)
    grid[:, :, :HEADER_BYTES] = frames[:, np.newaxis, :HEADER_BYTES]
    for place in range(pieces):
        part = frames[:, HEADER_BYTES:][:, place * size : (place + 1) * size]
        grid[:, place, HEADER_BYTES : HEADER_BYTES + part.shape[1]] = part
    sequence = fields(rows, size)["sequence"].reshape(count, pieces)
    upper = sequence.astype(np.int64) >> CHUNK_BITS << CHUNK_BITS
    sequence[:] = upper + (sequence - upper) * pieces + np.arange(pieces)
    return rows


class Joiner:
    """Puts the pieces of chunks together again."""

    def __init__(self, session: int, pieces: int, chunk_bytes: int) -> None:
        self.wrong_session = 0  # pieces of other sessions in the last batch
        self._session = session
        self._pieces, self._chunk_bytes = pieces, chunk_bytes
        self._size = piece_bytes(chunk_bytes, pieces)
        row_bytes = HEADER_BYTES + pieces * self._size
        slots = max(64, min(_MOST_SLOTS, _MOST_SLOT_BYTES // row_bytes))
        self._rows = np.zeros((slots, row_bytes), dtype=np.uint8)
        self._have = np.zeros((slots, pieces), dtype=np.bool_)
        self._whose = np.zeros((slots, 2), dtype=np.int64)  # of each: transfer, chunk

    def join(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The datagrams that these pieces complete: shape (count, HEADER_BYTES + chunk_bytes)."""
        ours = fields(rows, self._size)["session"] == self._session
        self.wrong_session = len(rows) - int(np.count_nonzero(ours))
        if self.wrong_session:
            rows = rows[ours]
        records = fields(rows, self._size)
        sequence = records["sequence"].astype(np.int64) % (1 << CHUNK_BITS)
        number, place = np.divmod(sequence, self._pieces)
        whose = np.stack([records["transfer"].astype(np.int64), number], axis=1)
        # Transfers in flight begin far from one another.
        slots = (number + whose[:, 0] * _SPREAD) % len(self._rows)
        for piece in range(self._pieces):
            chosen = np.flatnonzero(place == piece)
            at, first = slots[chosen], HEADER_BYTES + piece * self._size
            self._have[at[(self._whose[at] != whose[chosen]).any(axis=1)]] = False
            self._whose[at] = whose[chosen]
            self._rows[at, :HEADER_BYTES] = rows[chosen, :HEADER_BYTES]
            self._rows[at, first : first + self._size] = rows[chosen, HEADER_BYTES:]
            self._have[at, piece] = True
        touched = np.unique(slots)
        whole = touched[self._have[touched].all(axis=1)]
        self._have[whole] = False
        frames = np.ascontiguousarray(self._rows[whole, : HEADER_BYTES + self._chunk_bytes])
        heads = fields(frames, self._chunk_bytes)
        upper = heads["sequence"].astype(np.int64) >> CHUNK_BITS << CHUNK_BITS
        heads["sequence"] = upper + self._whose[whole, 1]
        return frames
