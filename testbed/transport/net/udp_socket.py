"""Sends and receives batches of equal datagrams; the only file that touches a UDP socket.

It is bound and not connected: a connected one turns a peer's ICMP messages into errors. Compiled
code sends up to 44 datagrams at a time (UDP_SEGMENT) and receives as many (UDP_GRO), which the
kernel cuts behind the interface's queue; without it each datagram is a call.
"""

import ctypes
import errno
import os
import socket
import sys
import warnings
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from testbed.shared import dscp
from testbed.transport.native.hot_path import LIBRARY, Arriving, Departing, address_of, structure
from testbed.transport.net.addresses import PACKED_BYTES, SocketAddress, in_words, packed
from testbed.transport.net.sealing import TAG_BYTES, Authentication, CompiledAuthentication
from testbed.transport.pacing import MAX_BATCH

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
LARGEST_DATAGRAM = 65535
_RECEIVED_AT_ONCE = 32  # messages, each of one datagram or of several that were coalesced
_SINGLY = 256  # datagrams that are received at a time without compiled code
# The kernel cuts one large send into at most this many pieces (UDP_MAX_SEGMENTS since Linux 4.18).
MAX_SEGMENTS = 64


class _Receiving(ctypes.Structure):
    """struct receiving."""

    _fields_ = structure(
        (ctypes.c_void_p, "rows"),
        (ctypes.c_uint8 * PACKED_BYTES, "peer"),
        (ctypes.c_uint32, "per_message datagram_bytes drained"),
        (ctypes.c_uint64, "rows_room foreign wrong_size"),
    )


class _Sending(ctypes.Structure):
    """struct sending."""

    _fields_ = structure(
        (ctypes.c_uint8 * PACKED_BYTES, "peer"),
        (ctypes.c_uint32, "peer_bytes per_message datagram_bytes"),
    )


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class BatchReceiver:
    """Receives batches of datagrams of one size from one peer."""

    def __init__(self, datagram_bytes: int) -> None:
        per_message = max(1, LARGEST_DATAGRAM // datagram_bytes)
        # The kernel backs these pages with memory when a message is written to them.
        rows = max(_SINGLY, _RECEIVED_AT_ONCE * per_message)
        self._rows = np.empty((rows, datagram_bytes), dtype=np.uint8)
        self._left: int | None = None  # the result of a call that C made itself: it is the next
        self.struct = _Receiving(
            rows=address_of(self._rows),
            per_message=per_message,
            datagram_bytes=datagram_bytes,
            rows_room=self._rows.nbytes,
        )
        self.address = ctypes.addressof(self.struct)  # for C

    def set_peer(self, address: SocketAddress) -> None:
        """Accepts datagrams from this source only."""
        self.struct.peer[:] = packed(address)

    def receive(self, udp: socket.socket) -> tuple[NDArray[np.uint8], bool]:
        """Receives one batch of the peer's datagrams; returns also whether no more wait."""
        if LIBRARY is None:
            return self._receive_singly(udp)
        left, self._left = self._left, None
        rows = _checked(LIBRARY.receive(self.address, udp.fileno()) if left is None else left)
        return self._rows[:rows], bool(self.struct.drained)

    def _receive_singly(self, udp: socket.socket) -> tuple[NDArray[np.uint8], bool]:
        count, size = 0, self._rows.shape[1]
        for _ in range(_SINGLY):
            try:
                datagram, source = udp.recvfrom(size + 1)
            except BlockingIOError:
                return self._rows[:count], True
            except OSError:
                if not count:
                    raise
                break
            if packed(source) != bytes(self.struct.peer):
                self.struct.foreign += 1
            elif len(datagram) != size:
                self.struct.wrong_size += 1
            else:
                self._rows[count] = np.frombuffer(datagram, dtype=np.uint8)
                count += 1
        return self._rows[:count], False

    def leave(self, result: int) -> None:
        """C has received a batch, with this result, and `receive` is to return it."""
        self._left = result


class BatchSender:
    """Sends batches of datagrams of one size, to one peer or through a connected socket."""

    def __init__(self, datagram_bytes: int) -> None:
        self.per_segmented = max(1, min(MAX_SEGMENTS, 65507 // datagram_bytes))
        self._address: SocketAddress | None = None
        self._structs = [
            _Sending(per_message=per_message, datagram_bytes=datagram_bytes)
            for per_message in (1, self.per_segmented)
        ]
        # For C: of what sends single rows, and segmented ones.
        self.addresses = [ctypes.addressof(struct) for struct in self._structs]

    def set_peer(self, address: SocketAddress) -> None:
        """Sets the destination of all datagrams."""
        self._address = address
        for struct in self._structs:
            struct.peer[:], struct.peer_bytes = packed(address), PACKED_BYTES

    def send(self, udp: socket.socket, frames: NDArray[np.uint8], *, segmented: bool) -> int:
        """Sends rows and returns how many the kernel took; raises OSError when it took none.

        `segmented` sends need compiled code.
        """
        if LIBRARY is not None:
            at = self.addresses[segmented]
            return _checked(LIBRARY.send_rows(at, udp.fileno(), address_of(frames), len(frames)))
        assert self._address is not None
        for sent, row in enumerate(frames):
            try:
                udp.sendto(row, self._address)
            except OSError:
                if not sent:
                    raise
                return sent
        return len(frames)


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
        self._segmentation = self.segmentation = segmentation and LIBRARY is not None
        self.blocked = False
        self.taken_bytes = 0
        self.seal: Authentication | None = None
        self.datagram_bytes = datagram_bytes
        self._protected: bool | None = None
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
        self.coalescing = LIBRARY is not None  # whether receives may be coalesced by the kernel
        try:
            self._socket.setsockopt(SOL_UDP, UDP_GRO, int(self.coalescing))
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
        self._arrivals.set_peer(address)
        self._departures.set_peer(address)
        self.segmentation = self._segmentation  # a refusal may have been for the size

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
        self.blocked = False
        if self.seal is not None and len(frames):
            frames = self.seal.seal(frames)
        total = len(frames)
        sent = 0
        while sent < total:
            segmented = self.segmentation and total - sent > 1
            try:
                sent += self._departures.send(self._socket, frames[sent:], segmented=segmented)
            except OSError as error:
                if segmented and error.errno in _NO_SEGMENTATION:
                    self.segmentation = False  # for this peer: it would refuse again
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
        self.seal.reserve(MAX_BATCH, self.datagram_bytes - TAG_BYTES)
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
            rows, drained = self._arrivals.receive(self._socket)
        except OSError as error:
            self._count_loss(error)
            return np.empty((0, self.datagram_bytes), dtype=np.uint8), False
        self.taken_bytes = rows.nbytes
        if self.seal is not None:
            rows = self.seal.open(rows, self._counters)
        return rows, drained

    @property
    def counters(self) -> Counter[str]:
        """Ignored datagrams and errors, by reason."""
        dropped = self._arrivals.struct
        return self._counters + Counter(
            {"unknown-address": dropped.foreign, "wrong-size": dropped.wrong_size}
        )

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
