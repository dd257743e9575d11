"""Sends and receives batches of equal datagrams; the only file that touches a UDP socket.

It is bound and not connected: a connected one turns a peer's ICMP messages into errors. One send
carries up to 44 datagrams (UDP_SEGMENT), one receive returns as many (UDP_GRO); the kernel cuts
them behind the interface's queue.
"""

import contextlib
import errno
import socket
import sys
import warnings
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from testbed.shared import dscp
from testbed.transport.core.pacing import MAX_BATCH
from testbed.transport.native.hot_path import Arriving, Departing
from testbed.transport.net.addresses import SocketAddress, in_words
from testbed.transport.net.batched_io import SOL_UDP, UDP_GRO, BatchReceiver, BatchSender
from testbed.transport.net.sealing import CompiledAuthentication, Seal

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
        buffer_bytes: int = BUFFER_BYTES,
        segmentation: bool = True,
    ) -> None:
        """Binds to `local` (port 0 for any); OSError when that is not possible."""
        self._counters: Counter[str] = Counter()
        self.too_large = False  # whether the interface has refused datagrams for their size
        self._wants_segmentation = segmentation
        self._foreign = 0  # of earlier receivers
        self._is_cut = False
        self.blocked = False
        self.taken_bytes = 0
        self.seal: Seal | None = None
        self.datagram_bytes = datagram_bytes  # the size of each datagram, where chunks are not cut
        self._protected: bool | None = None
        self._peer: SocketAddress | None = None
        self._arrivals = BatchReceiver(datagram_bytes)
        self._send_in(datagram_bytes)
        family = socket.AF_INET if len(local) == 2 else socket.AF_INET6
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            refuse_fragments(self._socket)
            self._socket.bind(local)
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, f"cannot bind UDP {in_words(local)}: {error}") from None
        self._buffers = self._request_buffers(buffer_bytes)
        self.coalescing = True  # whether receives may be coalesced by the kernel
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
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, forced, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, plain, size)
        return self._socket.getsockopt(socket.SOL_SOCKET, plain)

    def _send_in(self, datagram_bytes: int) -> None:
        self._departures = BatchSender(datagram_bytes)
        self.segmentation = self._wants_segmentation  # a refusal may have been for the size

    def cut(self, *, sending: int | None = None, receiving: int | None = None) -> None:
        """The datagrams that it sends, or those that it receives, have another size from now on."""
        assert self._peer is not None
        self._is_cut = True
        if sending is not None:
            self._send_in(sending)
        if receiving is not None:
            self._foreign += self._arrivals.unknown_address
            self._arrivals = BatchReceiver(receiving)
        self.set_peer(self._peer)

    def restore(self) -> None:
        """All have the first size again: the peer begins anew."""
        if self._is_cut:
            self.cut(sending=self.datagram_bytes, receiving=self.datagram_bytes)
            self._is_cut = False

    def try_size(self, datagram: bytes) -> None:
        """Sends one of any size; whether it arrives is another question."""
        assert self._peer is not None
        with contextlib.suppress(OSError):
            self._socket.sendto(datagram, self._peer)

    @property
    def others(self) -> list[bytes]:
        """The heads of the peer's datagrams of other sizes in the last `receive`."""
        return self._arrivals.others

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
        return in_c and not self._is_cut and self._departures.compiled is not None

    def departing(self) -> Departing | None:
        """What sends without a call for each batch; None where nothing can."""
        calls = self._departures.compiled
        if calls is None or not self.has_routine:
            return None
        return Departing(self.fileno(), *calls, seal=self._compiled_seal())

    def arriving(self) -> Arriving | None:
        """What receives without a call for each batch; None where nothing can."""
        return Arriving(self.fileno(), seal=self._compiled_seal()) if self.has_routine else None

    def _compiled_seal(self) -> CompiledAuthentication | None:
        """By which C seals and opens, with room for a paced batch; None for no seal."""
        if not isinstance(self.seal, CompiledAuthentication):
            return None
        self.seal.reserve(MAX_BATCH, self.datagram_bytes - self.seal.trailer_bytes)
        return self.seal

    @property
    def receiving(self) -> int:
        """The address that `Arriving.begin` needs."""
        address = self._arrivals.compiled
        assert address is not None
        return address

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
        if foreign := self._foreign + self._arrivals.unknown_address:
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
