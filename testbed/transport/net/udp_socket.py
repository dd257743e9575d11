"""Sends and receives batches of equal datagrams; the only file that touches a UDP socket.

It is bound and not connected: a connected one turns a peer's ICMP messages into errors. One send
carries up to 44 datagrams (UDP_SEGMENT), one receive returns as many (UDP_GRO); the kernel cuts
them behind the interface's queue. All that it reads and writes in recvmmsg and sendmmsg lies in
numpy arrays that are allocated once. 64-bit Linux.
"""

import ctypes
import errno
import os
import socket
import sys
import warnings
from collections import Counter
from functools import partial

import numpy as np
from numpy.typing import NDArray

from testbed.shared import dscp
from testbed.transport.core.pacing import MAX_BATCH
from testbed.transport.native.hot_path import LIBRARY, Arriving, Departing, address_of, structure
from testbed.transport.net.addresses import PACKED_BYTES, SocketAddress, in_words, packed
from testbed.transport.net.sealing import CompiledAuthentication, Seal

# struct mmsghdr and iovec of a 64-bit Linux.
MESSAGE = np.dtype(
    {
        "names": [
            *("name", "name_bytes", "vectors", "vector_count"),
            *("control", "control_bytes", "flags", "bytes"),
        ],
        "formats": ["u8", "u4", "u8", "u8", "u8", "u8", "i4", "u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
VECTOR = np.dtype([("base", "u8"), ("bytes", "u8")])
# One cmsghdr with an int, padded.
CONTROL = np.dtype(
    [("bytes", "u8"), ("level", "i4"), ("type", "i4"), ("data", "u4"), ("pad", "u4")]
)


def _load() -> ctypes.CDLL | None:
    fits = sys.byteorder == "little" and ctypes.sizeof(ctypes.c_void_p) == 8
    if not sys.platform.startswith("linux") or not fits:
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        receive, send = library.recvmmsg, library.sendmmsg
    except (OSError, AttributeError):
        return None
    # Addresses are passed as integers, which ctypes converts fastest.
    integer, address = ctypes.c_int, ctypes.c_void_p
    receive.argtypes = [integer, address, ctypes.c_uint, integer, address]
    send.argtypes = [integer, address, ctypes.c_uint, integer]
    return library


_LIBRARY = _load()


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class Messages:
    """`count` message headers, each with `vectors` buffers."""

    def __init__(self, count: int, vectors: int = 1) -> None:
        if _LIBRARY is None:
            raise OSError("this system has no recvmmsg and sendmmsg as 64-bit Linux has them")
        self._library = _LIBRARY
        self.count = count
        self.headers = np.zeros(count, dtype=MESSAGE)
        self.vectors = np.zeros((count, vectors), dtype=VECTOR)
        self.address = address_of(self.headers)
        steps = np.arange(count, dtype=np.uint64)
        self.headers["vectors"] = address_of(self.vectors) + steps * (vectors * VECTOR.itemsize)
        self.headers["vector_count"] = vectors

    def receive(self, descriptor: int, first: int, limit: int) -> int:
        """Receives into messages from `first` on; returns how many."""
        at = self.address + first * MESSAGE.itemsize
        count = self._library.recvmmsg(descriptor, at, limit, socket.MSG_DONTWAIT, None)
        if count < 0 and ctypes.get_errno() == errno.EAGAIN:
            return 0
        return _checked(count if count >= 0 else -ctypes.get_errno())

    def send(self, descriptor: int, first: int, count: int) -> int:
        """Sends messages from `first` on; returns how many the kernel took. OSError when none."""
        at = self.address + first * MESSAGE.itemsize
        taken = self._library.sendmmsg(descriptor, at, count, socket.MSG_DONTWAIT)
        return _checked(taken if taken >= 0 else -ctypes.get_errno())


SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
LARGEST_DATAGRAM = 65535
# Messages that are received at a time: coalesced ones, and single ones.
_WIDE, _NARROW = 12, 256
# The kernel cuts one large send into at most this many pieces (UDP_MAX_SEGMENTS since Linux 4.18).
MAX_SEGMENTS = 64


class _Receiving(ctypes.Structure):
    """struct receiving."""

    _fields_ = structure(
        (ctypes.c_void_p, "messages rows peer"),
        (ctypes.c_uint32, "count per_message datagram_bytes address_bytes control_bytes"),
        (ctypes.c_uint32, "received unsorted"),
        (ctypes.c_uint64, "rows_room foreign"),
    )


class _Sending(ctypes.Structure):
    """struct sending."""

    _fields_ = structure(
        (ctypes.c_void_p, "messages vectors"),
        (ctypes.c_uint32, "count per_message datagram_bytes"),
    )


class _ReceiveBatch(Messages):
    """Messages to receive into, with room for the source and the size of coalesced datagrams."""

    def __init__(
        self,
        rows: NDArray[np.uint8],
        peer: NDArray[np.uint64],
        *,
        count: int,
        vectors: int,
        per_message: int,
    ) -> None:
        """Message i writes its first `per_message` datagrams to the rows from i times that on."""
        super().__init__(count, vectors)
        self.sources = np.zeros((count, PACKED_BYTES // 8), dtype="u8")
        self.controls = np.zeros(count, dtype=CONTROL)
        steps = np.arange(count, dtype=np.uint64)
        self.headers["name"] = address_of(self.sources) + steps * PACKED_BYTES
        self.headers["control"] = address_of(self.controls) + steps * CONTROL.itemsize
        size = rows.shape[1]
        self.vectors["base"][:, 0] = address_of(rows) + steps * (per_message * size)
        self.vectors["bytes"][:, 0] = per_message * size
        self.received = 0  # messages that the last call received
        self.left: int | None = None  # the result of a call that C made itself: it is the next
        self.struct = _Receiving(
            messages=self.address,
            rows=address_of(rows),
            peer=address_of(peer),
            count=count,
            per_message=per_message,
            datagram_bytes=size,
            address_bytes=PACKED_BYTES,
            control_bytes=CONTROL.itemsize,
            rows_room=rows.nbytes,
        )
        self.struct_address = ctypes.addressof(self.struct)

    def receive_rows(self, descriptor: int) -> int | None:
        """How many rows hold the peer's datagrams now; None where messages must be sorted out."""
        if LIBRARY is not None:
            left, self.left = self.left, None
            rows = LIBRARY.receive(self.struct_address, descriptor) if left is None else left
            rows, self.received = _checked(rows), self.struct.received
            return None if self.struct.unsorted else rows
        # The kernel overwrites both lengths with what it used.
        self.headers["name_bytes"] = PACKED_BYTES
        self.headers["control_bytes"] = CONTROL.itemsize
        self.received = self.receive(descriptor, 0, self.count)
        return None if self.received else 0

    def coalesced(self, count: int) -> NDArray[np.bool_]:
        """Which of the first messages the kernel coalesced; `controls` has their sizes."""
        controls = self.controls[:count]
        of_this_kind = (controls["level"] == SOL_UDP) & (controls["type"] == UDP_GRO)
        used = self.headers["control_bytes"][:count]
        return of_this_kind & (used >= CONTROL.itemsize - 4)  # the padding


class BatchReceiver:
    """Receives batches of datagrams of one size."""

    def __init__(self, datagram_bytes: int) -> None:
        self._size = datagram_bytes
        self._per_wide = max(1, LARGEST_DATAGRAM // datagram_bytes)
        narrow_count = max(2, min(_NARROW, (1 << 20) // datagram_bytes))
        rows = max(_WIDE * self._per_wide, narrow_count)
        self._rows = np.zeros((rows, datagram_bytes), dtype=np.uint8)
        self._peer = np.zeros(PACKED_BYTES // 8, dtype="u8")
        batch = partial(_ReceiveBatch, self._rows, self._peer)
        self._wide = batch(count=_WIDE, vectors=1, per_message=self._per_wide)
        self._narrow = batch(count=narrow_count, vectors=2, per_message=1)
        # The kernel backs these pages with memory only when a longer message is written to them.
        spare_bytes = (self._per_wide - 1) * datagram_bytes
        self._spare = np.empty((narrow_count, spare_bytes), dtype=np.uint8)
        steps = np.arange(narrow_count, dtype=np.uint64)
        self._narrow.vectors["base"][:, 1] = address_of(self._spare) + steps * spare_bytes
        self._narrow.vectors["bytes"][:, 1] = spare_bytes
        self._arrangement = self._wide
        self._unknown_address = 0
        self.wrong_size = 0  # datagrams of the last batch that were dropped for it

    @property
    def unknown_address(self) -> int:
        """Datagrams of others than the peer, all that were dropped so far."""
        in_c = self._wide.struct.foreign + self._narrow.struct.foreign
        return int(self._unknown_address + in_c)

    def set_peer(self, address: SocketAddress) -> None:
        """Accepts datagrams from this source only."""
        self._peer[:] = packed(address)

    def receive(self, descriptor: int) -> tuple[NDArray[np.uint8], bool]:
        """Receives one batch, without the datagrams of others than the peer."""
        self.wrong_size = 0
        now = self._arrangement
        rows = now.receive_rows(descriptor)
        drained = now.received < now.count
        if rows is None:
            return self._sort_out(now, now.received), drained
        return self._rows[:rows], drained

    @property
    def nothing(self) -> NDArray[np.uint8]:
        """No datagrams."""
        return self._rows[:0]

    @property
    def address(self) -> int:
        """That of the present arrangement, for C."""
        return self._arrangement.struct_address

    def leave(self, result: int) -> None:
        """C has received a batch, with this result, and `receive` is to return it."""
        self._arrangement.left = result

    def _sort_out(self, now: _ReceiveBatch, count: int) -> NDArray[np.uint8]:
        """The acceptable datagrams of a batch whose messages differ."""
        lengths = now.headers["bytes"][:count].tolist()
        sizes = now.controls["data"][:count].tolist()
        coalesced = now.coalesced(count).tolist()
        truncated = ((now.headers["flags"][:count] & socket.MSG_TRUNC) != 0).tolist()
        from_peer = (now.sources[:count] == self._peer).all(axis=1).tolist()
        parts = []
        for index in range(count):
            length = lengths[index]
            size = sizes[index] if coalesced[index] else length
            datagrams = max(1, -(-length // size)) if size else 1
            if not from_peer[index]:
                self._unknown_address += datagrams
            elif size != self._size or (truncated[index] and not coalesced[index]):
                self.wrong_size += datagrams
            else:
                if length % size:  # only the last one may be shorter
                    self.wrong_size += 1
                parts += self._parts(now, index, length // size)
        several = any(coalesced)
        if now is self._narrow and several:
            self._arrangement = self._wide
        elif now is self._wide and not several and count > 1:
            self._arrangement = self._narrow
        if not parts:
            return self._rows[:0]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _parts(self, now: _ReceiveBatch, index: int, datagrams: int) -> list[NDArray[np.uint8]]:
        if now is self._wide:
            first = index * self._per_wide
            return [self._rows[first : first + datagrams]]
        rest = self._spare[index, : (datagrams - 1) * self._size].reshape(-1, self._size)
        return [self._rows[index : index + 1], rest]


class BatchSender:
    """Sends batches of datagrams of one size to one peer."""

    def __init__(self, datagram_bytes: int, *, messages: int = 128) -> None:
        self._size = datagram_bytes
        self.per_segmented = max(1, min(MAX_SEGMENTS, 65507 // datagram_bytes))
        self._plain = Messages(messages)
        self._segmented = Messages(messages)
        self._control = np.zeros(1, dtype=CONTROL)
        # 18 is 16 + sizeof(uint16).
        self._control[0] = (18, SOL_UDP, UDP_SEGMENT, datagram_bytes, 0)
        self._segmented.headers["control"] = address_of(self._control)
        self._segmented.headers["control_bytes"] = CONTROL.itemsize
        self._steps = np.arange(messages, dtype=np.uint64)
        self._peer = np.zeros(PACKED_BYTES // 8, dtype="u8")
        for batch in (self._plain, self._segmented):
            batch.headers["name"] = address_of(self._peer)
            batch.headers["name_bytes"] = PACKED_BYTES
        self._structs = [
            _Sending(batch.address, address_of(batch.vectors), messages, count, datagram_bytes)
            for batch, count in ((self._plain, 1), (self._segmented, self.per_segmented))
        ]
        # For C: of what sends single rows, and segmented ones.
        self.addresses = [ctypes.addressof(struct) for struct in self._structs]

    def set_peer(self, address: SocketAddress) -> None:
        """Sets the destination of all datagrams."""
        self._peer[:] = packed(address)

    def send(self, descriptor: int, frames: NDArray[np.uint8], *, segmented: bool) -> int:
        """Sends rows and returns how many the kernel took; raises OSError when it took none."""
        if LIBRARY is not None:
            at = self.addresses[segmented]
            return _checked(LIBRARY.send_rows(at, descriptor, address_of(frames), len(frames)))
        messages = self._segmented if segmented else self._plain
        per_message = self.per_segmented if segmented else 1
        rows = min(len(frames), messages.count * per_message)
        count = -(-rows // per_message)
        vectors = messages.vectors[:count, 0]
        step = per_message * self._size
        vectors["base"] = address_of(frames) + self._steps[:count] * np.uint64(step)
        vectors["bytes"] = step
        vectors["bytes"][-1] = (rows - (count - 1) * per_message) * self._size
        return min(messages.send(descriptor, 0, count) * per_message, rows)


# With these options root may exceed net.core.rmem_max and wmem_max.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55

# Python's socket module lacks these. PROBE sets IPv4's flag against fragments and ignores what
# ICMP messages say of the path, because anyone may have sent them.
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10, 3),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 3),
}

# The byte of the IP header whose upper six bits are the DSCP.
_TRAFFIC_CLASS = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TOS),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS),
}

BUFFER_BYTES = 8 << 20
# The errors of an older kernel, or an interface without checksum offload, for UDP_SEGMENT.
_NO_SEGMENTATION = {errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
_FULL = {errno.EAGAIN, errno.EWOULDBLOCK}
_NO_ROOM = {errno.ENOBUFS, errno.ENOMEM}
# Mistakes of this program. Any other error says that the network, a route or a packet filter lost
# the datagrams; these count as sent, and are repaired.
_MISTAKES = {errno.EBADF, errno.EFAULT, errno.ENOTSOCK}

_warned: set[str] = set()  # the sysctls that this process has named


def refuse_fragments(udp: socket.socket) -> None:
    """Datagrams too large for the interface are refused; what ICMP says of the path is ignored."""
    udp.setsockopt(*_MTU_DISCOVER[udp.family])


class UdpSocket:
    """Datagrams of one size between a local port and one peer's port."""

    def __init__(
        self,
        *,
        local: SocketAddress,
        datagram_bytes: int,
        segmentation: bool = True,
    ) -> None:
        """Binds to `local` (port 0 for any); OSError when that is not possible."""
        self._counters: Counter[str] = Counter()
        self.too_large = False  # whether the interface has refused datagrams for their size
        self.segmentation = segmentation
        self.blocked = False
        self.taken_bytes = 0
        self.seal: Seal | None = None
        self.datagram_bytes = datagram_bytes
        self._protected: bool | None = None
        self._peer: SocketAddress | None = None
        self._arrivals = BatchReceiver(datagram_bytes)
        self._departures = BatchSender(datagram_bytes)
        family = socket.AF_INET if len(local) == 2 else socket.AF_INET6
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            refuse_fragments(self._socket)
            self._socket.bind(local)
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, f"cannot bind UDP {in_words(local)}: {error}") from None
        self._buffers = self._request_buffers(BUFFER_BYTES)
        self.coalescing = True  # whether receives may be coalesced by the kernel
        try:
            self._socket.setsockopt(SOL_UDP, UDP_GRO, 1)
        except OSError:
            self.coalescing = False

    def _request_buffers(self, size: int) -> dict[str, int]:
        granted = {}
        for kind, sysctl, forced, plain in (
            ("receive", "net.core.rmem_max", SO_RCVBUFFORCE, socket.SO_RCVBUF),
            ("send", "net.core.wmem_max", SO_SNDBUFFORCE, socket.SO_SNDBUF),
        ):
            twice = granted[f"{kind}_buffer_bytes"] = self._grant(forced, plain, size)
            if twice < 2 * size and sysctl not in _warned:
                _warned.add(sysctl)
                warnings.warn(
                    f"the kernel grants a UDP {kind} buffer of {twice // 2} bytes instead of "
                    f"{size}: bursts may be lost; set it with: sysctl -w {sysctl}={size}",
                    RuntimeWarning,
                    stacklevel=3,
                )
        return granted

    def _grant(self, forced: int, plain: int, size: int) -> int:
        """Asks for a buffer; returns what the kernel granted, which is twice the usable size."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, forced, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, plain, size)
        return self._socket.getsockopt(socket.SOL_SOCKET, plain)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def facts(self) -> dict[str, int | bool]:
        """What the kernel granted. Buffer sizes include its own bookkeeping, which is half."""
        return {**self._buffers, "segmentation": self.segmentation, "coalescing": self.coalescing}

    def set_peer(self, address: SocketAddress) -> None:
        """Sets the only address to send to and to receive from."""
        self._peer = address
        self._arrivals.set_peer(address)
        self._departures.set_peer(address)

    def mark(self, protected: bool | None) -> None:
        """Marks what is sent from now on: to be dropped last, or first; None changes nothing."""
        if protected is None or protected is self._protected:
            return
        value = dscp.PROTECTED if protected else dscp.DROPPED_FIRST
        self._socket.setsockopt(*_TRAFFIC_CLASS[self._socket.family], value << 2)
        # IP_TOS sets a priority, too, by which AF41 would leave this host after AF43.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 0)
        self._protected = protected

    def send(self, frames: NDArray[np.uint8]) -> int:
        """Sends datagrams, one per row; returns how many the kernel took."""
        assert self._peer is not None
        self.blocked = False
        if self.seal is not None and len(frames):
            frames = self.seal.seal(frames)
        total = len(frames)
        sent = 0
        while sent < total:
            segmented = self.segmentation and total - sent > 1
            try:
                sent += self._departures.send(self.fileno(), frames[sent:], segmented=segmented)
            except OSError as error:
                if segmented and error.errno in _NO_SEGMENTATION:
                    self.segmentation = False  # permanently, because it would refuse again
                elif self._gone(error):
                    per_message = self._departures.per_segmented if segmented else 1
                    sent += min(total - sent, per_message)
                else:
                    break
        return sent

    def _gone(self, error: OSError) -> bool:
        """Whether the datagrams count as sent in spite of an error."""
        if error.errno in _FULL:
            self.blocked = True
            return False
        if error.errno in _NO_ROOM:
            self._counters["no-buffers"] += 1
            return False
        self._count_loss(error)
        return True

    def _count_loss(self, error: OSError) -> None:
        if error.errno in _MISTAKES:
            raise error
        too_large = error.errno == errno.EMSGSIZE  # for the interface: its MTU was lowered
        self.too_large |= too_large
        self._counters["too-large" if too_large else "unreachable"] += 1

    @property
    def has_routine(self) -> bool:
        """Whether batches can be sent and received without a call each: C must have the seal."""
        in_c = self.seal is None or isinstance(self.seal, CompiledAuthentication)
        return in_c and LIBRARY is not None

    def departing(self) -> Departing:
        """What sends without a call for each batch, if it `has_routine`."""
        return Departing(self.fileno(), *self._departures.addresses, seal=self._compiled_seal())

    def arriving(self) -> Arriving:
        """What receives without a call for each batch, if it `has_routine`."""
        return Arriving(self.fileno(), seal=self._compiled_seal())

    def _compiled_seal(self) -> CompiledAuthentication | None:
        """By which C seals and opens, with room for a paced batch; None for no seal."""
        if not isinstance(self.seal, CompiledAuthentication):
            return None
        self.seal.reserve(MAX_BATCH, self.datagram_bytes - self.seal.trailer_bytes)
        return self.seal

    @property
    def receiving(self) -> int:
        """The address that `Arriving.begin` needs."""
        return self._arrivals.address

    def leave(self, arriving: Arriving) -> None:
        """The last batch of a routine that is over is what `receive` returns next."""
        self._arrivals.leave(arriving.it.received)

    def receive(self) -> tuple[NDArray[np.uint8], bool]:
        """Receives what has arrived, up to a limit that keeps one peer from starving the others."""
        self.taken_bytes = 0
        try:
            rows, drained = self._arrivals.receive(self.fileno())
        except OSError as error:
            self._count_loss(error)
            return self._arrivals.nothing, False
        if self._arrivals.wrong_size:
            self._counters["wrong-size"] += self._arrivals.wrong_size
        self.taken_bytes = (len(rows) + self._arrivals.wrong_size) * rows.shape[1]
        if self.seal is not None:
            rows = self.seal.open(rows, self._counters)
        return rows, drained

    @property
    def counters(self) -> Counter[str]:
        """Ignored datagrams and errors, by reason; what C has dropped is counted when asked for."""
        if foreign := self._arrivals.unknown_address:
            self._counters["unknown-address"] = foreign
        return self._counters

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait in the receive buffer, the kernel's bookkeeping included."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4)
        return int.from_bytes(raw, sys.byteorder)

    @property
    def buffer_bytes(self) -> int:
        """How much data the receive buffer holds, whatever the sizes of its datagrams."""
        return self._buffers["receive_buffer_bytes"] // 2

    def close(self) -> None:
        self._socket.close()
