"""Sends and receives batches of equal datagrams; the only file that touches a UDP socket.

The socket is bound to a fixed port and not connected, because a connected socket turns a peer's
ICMP messages into errors of later calls. One system call handles several sends or receives
(`batched_io`). Where the kernel has them, two more optimisations are used: one send carries up to
44 datagrams, which the kernel cuts apart (UDP_SEGMENT); one receive returns as many (UDP_GRO).
The kernel cuts them behind the interface's queue, which holds them as one packet. So whoever
studies queues turns segmentation off.
"""

import errno
import socket
import struct
import sys
import warnings
from collections import Counter
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from testbed.transport.batched_io import SOL_UDP, UDP_GRO, UDP_SEGMENT, BatchReceiver, BatchSender
from testbed.transport.errors import TransportError

# With these options root may exceed net.core.rmem_max and wmem_max.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55

BUFFER_BYTES = 8 << 20
_MAX_SEND_BYTES = 65507
# The errors of an older kernel, or an interface without checksum offload, for UDP_SEGMENT.
_NO_SEGMENTATION = {errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
# Errors that mean that the network lost the datagrams; these count as sent, and are repaired.
_LOST = {
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
    errno.EPERM,  # a packet filter dropped it
}


_warned: set[str] = set()


def _warn_of_small_buffer(name: str, wanted: int, granted: int) -> None:
    """Warns once per process and buffer, and names the sysctl to set."""
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


def new_socket() -> socket.socket:
    """A socket for `UdpSocket(opened=...)`, with large buffers where only root may have them."""
    created = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    for forced in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
        with suppress(PermissionError):
            created.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
    return created


class UdpSocket:
    """Datagrams of one size between a local port and one peer's port.

    Attributes:
        counters: ignored datagrams and errors, by reason.
        segmentation: whether the kernel cuts large sends; False where that is not wanted, or
            once it has refused.
        coalescing: whether receives may be coalesced by the kernel.
        blocked: whether the last `send` stopped at a full socket buffer, so that waiting until
            the socket is writable makes sense.
    """

    def __init__(
        self,
        *,
        address: str,
        port: int,
        datagram_bytes: int,
        buffer_bytes: int = BUFFER_BYTES,
        segmentation: bool = True,
        opened: socket.socket | None = None,
    ) -> None:
        """Binds to `address`:`port` (0 for any); OSError when that is not possible.

        `opened` is what `new_socket` has made; None: it is made here.
        Warns once per process when the kernel grants less than `buffer_bytes`.
        """
        self.counters: Counter[str] = Counter()
        self.segmentation = segmentation
        self.blocked = False
        self._datagram_bytes = datagram_bytes
        self._peer: tuple[str, int] | None = None
        self._arrivals = BatchReceiver(datagram_bytes)
        self._departures = BatchSender(datagram_bytes)
        self._per_segmented = max(1, _MAX_SEND_BYTES // datagram_bytes)
        self._segment_size = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", datagram_bytes))]
        self._socket = opened or socket.socket(
            socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        )
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
        """Asks for a buffer; returns what the kernel granted, which is twice the usable size."""
        if self._socket.getsockopt(socket.SOL_SOCKET, plain) < 2 * size:
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
        return int(self._socket.getsockname()[1])

    def facts(self) -> dict[str, int | bool]:
        """What the kernel granted. Buffer sizes include its own bookkeeping, which is half."""
        return {**self._buffers, "segmentation": self.segmentation, "coalescing": self.coalescing}

    def set_peer(self, address: str, port: int) -> None:
        """Sets the only address to send to and to receive from."""
        self._peer = (address, port)
        self._arrivals.set_peer(address, port)
        self._departures.set_peer(address, port)

    def send(self, frames: NDArray[np.uint8]) -> int:
        """Sends datagrams, one per row; returns how many the kernel took.

        When it took fewer than offered, offer the rest again later: when the socket is writable
        if `blocked`, otherwise after a pause, because the interface's queue is full (counted as
        "no-buffers"). Never raises an error that a peer or the network can cause.
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
                    self.segmentation = False  # permanently, because it would refuse again
                elif self._gone(error):
                    sent += min(total - sent, self._per_segmented if self.segmentation else 1)
                else:
                    break
        return sent

    def _send_some(self, frames: NDArray[np.uint8]) -> int:
        """Makes one system call; returns how many datagrams it sent. OSError when none."""
        assert self._peer is not None
        segmented = self.segmentation and len(frames) > 1
        at_once = self._per_segmented if segmented else 1
        if len(frames) > at_once:
            return self._departures.send(self.fileno(), frames, segmented=segmented)
        if segmented:
            first = frames[:at_once]
            self._socket.sendmsg([first.data], self._segment_size, 0, self._peer)
            return len(first)
        self._socket.sendto(frames[0].data, self._peer)
        return 1

    def _gone(self, error: OSError) -> bool:
        """Whether the datagrams count as sent in spite of an error."""
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
        """Receives what has arrived, up to a limit that keeps one peer from starving the others.

        Returns the peer's datagrams of the right size, one per row, in an array that is valid
        until the next call, and whether the socket is empty now. Other datagrams are dropped and
        counted as "unknown-address" or "wrong-size".
        """
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
        """Frees the port."""
        self._socket.close()
