"""The only file that touches a UDP socket: batches of equal datagrams to and from one peer.

The socket is bound to a fixed port and not connected: a connected one would turn a peer's ICMP
messages into errors of later calls. Where the kernel can, one send carries up to 44 datagrams,
which it cuts apart itself (UDP_SEGMENT), one receive as many (UDP_GRO), and one system call
several of either (`batched_io`). Each of the three is done without where it is missing.
"""

import errno
import socket
import struct
import sys
import warnings
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from testbed.transport import batched_io
from testbed.transport.batched_io import SOL_UDP, UDP_GRO, UDP_SEGMENT
from testbed.transport.errors import TransportError

# As root these may exceed net.core.rmem_max and wmem_max.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55

BUFFER_BYTES = 8 << 20
# Room for one coalesced receive, behind the batch that is being filled.
_RECEIVE_BYTES = 1 << 16
_BATCH_BYTES = 1 << 18
_MAX_SEND_BYTES = 65507
_ANCILLARY_BYTES = socket.CMSG_SPACE(4)
# What an older kernel or an interface without checksum offload says to UDP_SEGMENT.
_NO_SEGMENTATION = {errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
# The network lost the datagrams; the protocol repairs that, so these count as sent.
_LOST = {
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
    errno.EPERM,  # a packet filter on the way out
}


_warned: set[str] = set()


def _warn_of_small_buffer(name: str, wanted: int, granted: int) -> None:
    """Says once per process and buffer what to set, as a warning of the caller's program."""
    if name in _warned:
        return
    _warned.add(name)
    sysctl = "net.core.rmem_max" if name.startswith("receive") else "net.core.wmem_max"
    warnings.warn(
        f"the kernel grants a UDP {name.replace('_', ' ').removesuffix(' bytes')} of {granted} "
        f"bytes instead of {wanted}: bursts may be lost; set it with: "
        f"sysctl -w {sysctl}={wanted}",
        RuntimeWarning,
        stacklevel=4,
    )


class UdpSocket:
    """Datagrams of one size between a local port and one peer's port.

    Attributes:
        counters: what was ignored or went wrong, by reason.
        segmentation: whether sends are cut by the kernel; False once it has refused.
        coalescing: whether receives may be coalesced by the kernel.
        blocked: whether the last `send` stopped because the socket's buffer is full, so that
            waiting until it is writable makes sense.
    """

    def __init__(
        self, *, address: str, port: int, datagram_bytes: int, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        """Binds to `address`:`port` (0 for any); OSError when that is not possible.

        Warns once per process when the kernel grants less than `buffer_bytes`.
        """
        self.counters: Counter[str] = Counter()
        self.segmentation = True
        self.blocked = False
        self._datagram_bytes = datagram_bytes
        self._peer: tuple[str, int] | None = None
        self._arrivals = (
            batched_io.BatchReceiver(datagram_bytes) if batched_io.available() else None
        )
        self._departures = (
            batched_io.BatchSender(datagram_bytes) if batched_io.available() else None
        )
        self._per_segmented = max(1, _MAX_SEND_BYTES // datagram_bytes)
        if self._arrivals is None:
            self._memory = np.zeros(_BATCH_BYTES + _RECEIVE_BYTES, dtype=np.uint8)
            self._view = self._memory.data
        self._segment_size = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", datagram_bytes))]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind((address, port))
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, f"cannot bind UDP {address}:{port}: {error}") from None
        self._buffers = self._request_buffers(buffer_bytes)
        self.coalescing = True
        try:
            self._socket.setsockopt(SOL_UDP, UDP_GRO, 1)
        except OSError:
            self.coalescing = False

    def _request_buffers(self, size: int) -> dict[str, int]:
        granted = {}
        for name, forced, plain in (
            ("receive_buffer_bytes", SO_RCVBUFFORCE, socket.SO_RCVBUF),
            ("send_buffer_bytes", SO_SNDBUFFORCE, socket.SO_SNDBUF),
        ):
            granted[name] = self._grant(forced, plain, size)
            if granted[name] < 2 * size:  # the kernel doubles what it grants
                _warn_of_small_buffer(name, size, granted[name] // 2)
        return granted

    def _grant(self, forced: int, plain: int, size: int) -> int:
        """Asks for a buffer; what the kernel made of it, which is the double of what counts."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, forced, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, plain, size)
        return self._socket.getsockopt(socket.SOL_SOCKET, plain)

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    @property
    def port(self) -> int:
        """The local port."""
        return int(self._socket.getsockname()[1])

    def facts(self) -> dict[str, int | bool]:
        """What the kernel granted; buffer sizes include its own bookkeeping (half of them)."""
        return {
            **self._buffers,
            "batched_calls": self._arrivals is not None,
            "segmentation": self.segmentation,
            "coalescing": self.coalescing,
        }

    def set_peer(self, address: str, port: int) -> None:
        """Names the only address to send to and to listen to."""
        self._peer = (address, port)
        if self._arrivals is not None and self._departures is not None:
            self._arrivals.set_peer(address, port)
            self._departures.set_peer(address, port)

    def send(self, frames: NDArray[np.uint8]) -> int:
        """Sends datagrams, one per row; returns how many the kernel took.

        Fewer than offered means that the rest must be offered again later: when the socket is
        writable if `blocked`, otherwise (a full queue of the interface, counted as
        "no-buffers") after a pause. Never raises for what a peer or the network can cause.
        """
        assert self._peer is not None
        self.blocked = False
        total = len(frames)
        sent = 0
        while sent < total:
            try:
                sent += self._send_some(frames[sent:])
            except OSError as error:
                if self.segmentation and error.errno in _NO_SEGMENTATION:
                    self.segmentation = False  # for good: what refuses once refuses always
                elif self._gone(error):
                    sent += min(total - sent, self._per_segmented if self.segmentation else 1)
                else:
                    break
        return sent

    def _send_some(self, frames: NDArray[np.uint8]) -> int:
        """One system call; how many of the datagrams it sent. OSError when it was none."""
        assert self._peer is not None
        segmented = self.segmentation and len(frames) > 1
        at_once = self._per_segmented if segmented else 1
        if len(frames) > at_once and self._departures is not None:
            return self._departures.send(self.fileno(), frames, segmented=segmented)
        if segmented:
            first = frames[:at_once]
            self._socket.sendmsg([first.data], self._segment_size, 0, self._peer)
            return len(first)
        self._socket.sendto(frames[0].data, self._peer)
        return 1

    def _gone(self, error: OSError) -> bool:
        """Whether what was being sent counts as sent in spite of an error."""
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            self.blocked = True
            return False
        if error.errno == errno.ENOBUFS:
            self.counters["no-buffers"] += 1
            return False
        if error.errno in _LOST:
            self.counters["unreachable"] += 1
            return True
        if error.errno == errno.EMSGSIZE:
            raise TransportError(
                f"datagrams of {self._datagram_bytes} bytes are too large for the path to "
                f"{self._peer}; use a smaller chunk_bytes"
            ) from error
        raise error

    def receive(self) -> tuple[NDArray[np.uint8], bool]:
        """Takes what has arrived, up to a limit that keeps one peer from starving the others.

        Returns the datagrams of the peer that have the right size, one per row, in an array
        that is valid until the next call, and whether nothing was left behind. The others are
        counted as "unknown-address" and "wrong-size" and dropped.
        """
        if self._arrivals is None:
            return self._receive_singly()
        try:
            rows, drained = self._arrivals.receive(self.fileno())
        except OSError as error:
            if error.errno not in _LOST:
                raise
            self.counters["unreachable"] += 1
            return np.empty((0, self._datagram_bytes), dtype=np.uint8), False
        if self._arrivals.unknown_address:
            self.counters["unknown-address"] += self._arrivals.unknown_address
        if self._arrivals.wrong_size:
            self.counters["wrong-size"] += self._arrivals.wrong_size
        return rows, drained

    def _receive_singly(self) -> tuple[NDArray[np.uint8], bool]:
        """`receive` with one system call per datagram or bundle."""
        filled = 0
        drained = False
        # Besides bytes the number of calls is limited: dropped datagrams fill nothing.
        for _ in range(512):
            if filled >= _BATCH_BYTES:
                break
            try:
                size, ancillary, _, source = self._socket.recvmsg_into(
                    [self._view[filled : filled + _RECEIVE_BYTES]], _ANCILLARY_BYTES
                )
            except BlockingIOError:
                drained = True
                break
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                self.counters["unreachable"] += 1
                continue
            filled += self._admit(size, ancillary, source)
        rows = self._memory[:filled].reshape(-1, self._datagram_bytes)
        return rows, drained

    def _admit(
        self, size: int, ancillary: list[tuple[int, int, bytes]], source: tuple[str, int]
    ) -> int:
        """How many bytes of one receive are whole datagrams from the peer."""
        segment = size
        for level, kind, data in ancillary:
            if (level, kind) == (SOL_UDP, UDP_GRO):
                (segment,) = struct.unpack_from("=i", data)
        datagrams = max(1, -(-size // segment)) if segment else 1
        if source != self._peer:
            self.counters["unknown-address"] += datagrams
            return 0
        if segment != self._datagram_bytes:
            self.counters["wrong-size"] += datagrams
            return 0
        if size % segment:  # only the last one may be shorter
            self.counters["wrong-size"] += 1
        return size - size % segment

    @property
    def backlog_bytes(self) -> int:
        """What waits in the receive buffer, with the kernel's bookkeeping."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4)
        return int.from_bytes(raw, sys.byteorder)

    @property
    def buffer_bytes(self) -> int:
        """How much data the receive buffer holds, whatever the sizes of its datagrams."""
        return self._buffers["receive_buffer_bytes"] // 2

    def close(self) -> None:
        """Frees the port."""
        self._socket.close()
