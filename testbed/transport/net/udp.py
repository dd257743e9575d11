"""UDP: batches of equal datagrams, and a connection's data channel.

Sockets are bound and not connected: a connected one turns a peer's ICMP messages into errors.
Compiled code sends up to 44 at a time (UDP_SEGMENT), which the kernel cuts behind the interface's
queue, and receives as many (UDP_GRO); without it each datagram is a call.
"""

import ctypes
import errno
import math
import os
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from testbed.shared import dscp
from testbed.transport.compiled import address_of, structure
from testbed.transport.connection import Connection
from testbed.transport.native.fast_path import LIBRARY, PlannedReceive, PlannedSend
from testbed.transport.net.addresses import (
    MTU_DISCOVER,
    PACKED_BYTES,
    SocketAddress,
    in_words,
    packed,
)
from testbed.transport.net.driver import DataChannel
from testbed.transport.net.tls import TAG_BYTES, Authentication, CompiledAuthentication
from testbed.transport.settings import LeaveOut
from testbed.transport.wire import MAX_DATAGRAM_BYTES

# Python's socket module lacks the numbers of <linux/udp.h>.
SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
# With these options root may exceed net.core.rmem_max and wmem_max.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
_SO_MEMINFO = 55
# The byte of the IP header whose upper six bits are the DSCP.
_TRAFFIC_CLASS = {
    socket.AF_INET: (socket.IPPROTO_IP, socket.IP_TOS),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_TCLASS),
}

BUFFER_BYTES = 8 << 20
LARGEST_DATAGRAM = 65535
_RECEIVED_AT_ONCE = 32  # messages, each of one datagram or of several that were coalesced
_SINGLY = 256  # datagrams that are received at a time without compiled code
# The kernel cuts one large send into at most this many pieces (UDP_MAX_SEGMENTS since Linux 4.18).
MAX_SEGMENTS = 64

# The errors of an older kernel, or an interface without checksum offload, for UDP_SEGMENT.
_NO_SEGMENTATION = {errno.EIO, errno.EINVAL, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
_FULL = {errno.EAGAIN, errno.EWOULDBLOCK}
_NO_ROOM = {errno.ENOBUFS, errno.ENOMEM}
# Mistakes of this program. Any other error says that the network, a route or a packet filter lost
# the datagrams; these count as sent, and are repaired.
_MISTAKES = {errno.EBADF, errno.EFAULT, errno.ENOTSOCK}

# Full batches sent in a row before other peers are served; matters only when unpaced.
_BATCHES_PER_CALL = 4
_FULL_BATCH_BYTES = 1 << 16  # more than a paced batch has, but on a fast link
# Receives in a row before other peers, messages and deadlines are served.
_RECEIVES_PER_CALL = 8
# The pause after an interface's queue was full: about one batch.
_RETRY_S = 1e-3
_BLOCKED_S = 1e-2  # how often other deadlines are checked while the socket is full
# The most receives before a control message is handed over. A peer that has sent a PROBE sends
# nothing more, so only a flood of unknown senders' datagrams can reach this limit.
MAX_DRAINS = 256

_warned: set[str] = set()  # the sysctls that this process has named


class _Receiving(ctypes.Structure):
    _fields_ = structure(
        (ctypes.c_void_p, "rows sealing"),
        (ctypes.c_uint8 * PACKED_BYTES, "peer"),
        (ctypes.c_uint32, "per_message datagram_bytes drained"),
        (ctypes.c_uint64, "rows_room foreign wrong_size forged"),
    )


class _Sending(ctypes.Structure):
    _fields_ = structure(
        (ctypes.c_uint8 * PACKED_BYTES, "peer"),
        (ctypes.c_uint32, "peer_bytes per_message datagram_bytes"),
    )


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class BatchSender:
    """Sends batches of datagrams of one size, to one peer or through a connected socket."""

    def __init__(self, datagram_bytes: int) -> None:
        self.per_segmented = max(1, min(MAX_SEGMENTS, MAX_DATAGRAM_BYTES // datagram_bytes))
        self._address: SocketAddress | None = None
        self._structs = [
            _Sending(per_message=per_message, datagram_bytes=datagram_bytes)
            for per_message in (1, self.per_segmented)
        ]
        # For C: of what sends single rows, and segmented ones.
        self.addresses = [ctypes.addressof(struct) for struct in self._structs]

    def set_peer(self, address: SocketAddress) -> None:
        self._address = address
        for struct in self._structs:
            struct.peer[:], struct.peer_bytes = packed(address), PACKED_BYTES

    def send(self, udp: socket.socket, frames: NDArray[np.uint8], *, segmented: bool) -> int:
        """Sends rows; returns how many the kernel took, or OSError. C alone is `segmented`."""
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


class UdpSocket:
    """Sends and receives datagrams of one size between a local port and one peer's port."""

    def __init__(
        self, *, local: SocketAddress, datagram_bytes: int, segmentation: bool = True
    ) -> None:
        """Binds to `local` (port 0 for any); OSError when that is not possible."""
        self._counters: Counter[str] = Counter()
        self.too_large = False  # whether the interface has refused datagrams for their size
        self._segmentation = self.segmentation = segmentation and LIBRARY is not None
        self.blocked = False
        self.taken_bytes = 0
        self._seal: Authentication | None = None
        self.datagram_bytes = datagram_bytes
        self._protected: bool | None = None
        per_message = max(1, LARGEST_DATAGRAM // datagram_bytes)
        # The kernel backs these pages with memory when a message is written to them.
        rows = max(_SINGLY, _RECEIVED_AT_ONCE * per_message)
        self._rows = np.empty((rows, datagram_bytes), dtype=np.uint8)
        self._from_plan: int | None = None  # the result of a plan's last call, which comes next
        self._receiving = _Receiving(
            rows=address_of(self._rows),
            per_message=per_message,
            datagram_bytes=datagram_bytes,
            rows_room=self._rows.nbytes,
        )
        self._sender = BatchSender(datagram_bytes)
        family = socket.AF_INET if len(local) == 2 else socket.AF_INET6
        self._socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(*MTU_DISCOVER[family])
            self._socket.bind(local)
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, f"cannot bind UDP {in_words(local)}: {error}") from None
        self._buffers = {
            "receive_buffer_bytes": self._grant("rmem_max", SO_RCVBUFFORCE, socket.SO_RCVBUF),
            "send_buffer_bytes": self._grant("wmem_max", SO_SNDBUFFORCE, socket.SO_SNDBUF),
        }
        self.coalescing = LIBRARY is not None  # whether receives may be coalesced by the kernel
        try:
            self._socket.setsockopt(SOL_UDP, UDP_GRO, int(self.coalescing))
        except OSError:
            self.coalescing = False

    def _grant(self, sysctl: str, forced: int, plain: int) -> int:
        """Asks for a buffer; returns what the kernel granted, which is twice the usable size."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
        granted = self._socket.getsockopt(socket.SOL_SOCKET, plain)
        if granted < 2 * BUFFER_BYTES and sysctl not in _warned:
            _warned.add(sysctl)
            warnings.warn(
                f"the kernel grants a UDP buffer of {granted // 2} bytes instead of "
                f"{BUFFER_BYTES}: bursts may be lost; set it with: "
                f"sysctl -w net.core.{sysctl}={BUFFER_BYTES}",
                RuntimeWarning,
                stacklevel=3,
            )
        return granted

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def facts(self) -> dict[str, int | str | None]:
        """Says what the kernel granted. Half of a buffer's size is for its own bookkeeping."""
        return {
            **self._buffers,
            "segmentation": self.segmentation,
            "coalescing": self.coalescing,
            "cipher": None if self.seal is None else self.seal.cipher.name,
        }

    @property
    def seal(self) -> Authentication | None:
        return self._seal

    @seal.setter
    def seal(self, seal: Authentication | None) -> None:
        self._seal = seal  # holds the struct, by which C opens what it receives
        self._receiving.sealing = getattr(seal, "address", None)

    def set_peer(self, address: SocketAddress) -> None:
        self._receiving.peer[:] = packed(address)
        self._sender.set_peer(address)
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
                sent += self._sender.send(self._socket, frames[sent:], segmented=segmented)
            except OSError as error:
                if segmented and error.errno in _NO_SEGMENTATION:
                    self.segmentation = False  # for this peer: it would refuse again
                elif error.errno in _FULL:
                    self.blocked = True
                    break
                elif error.errno in _NO_ROOM:
                    self._counters["no-buffers"] += 1
                    break
                else:  # these count as sent
                    self._count_loss(error)
                    sent += min(total - sent, self._sender.per_segmented if segmented else 1)
        return sent

    def _count_loss(self, error: OSError) -> None:
        if error.errno in _MISTAKES:
            raise error
        too_large = error.errno == errno.EMSGSIZE  # for the interface: its MTU was lowered
        self.too_large |= too_large
        self._counters["too-large" if too_large else "unreachable"] += 1

    def receive(self) -> tuple[NDArray[np.uint8], bool]:
        """Receives what has arrived, up to a limit; returns also whether no more wait."""
        self.taken_bytes = 0
        try:
            rows, drained = self._receive_compiled() if LIBRARY else self._receive_singly()
        except OSError as error:
            self._count_loss(error)
            return np.empty((0, self.datagram_bytes), dtype=np.uint8), False
        self.taken_bytes = rows.nbytes
        if self.seal is not None:
            opened = rows[:, :-TAG_BYTES] if self._receiving.sealing else self.seal.open(rows)
            self._receiving.forged += len(rows) - len(opened)
            rows = opened
        return rows, drained

    def _receive_compiled(self) -> tuple[NDArray[np.uint8], bool]:
        assert LIBRARY is not None
        rows, self._from_plan = self._from_plan, None
        if rows is None:
            rows = LIBRARY.receive(ctypes.addressof(self._receiving), self.fileno())
        return self._rows[: _checked(rows)], bool(self._receiving.drained)

    def _receive_singly(self) -> tuple[NDArray[np.uint8], bool]:
        count, size = 0, self.datagram_bytes
        for _ in range(_SINGLY):
            try:
                datagram, source = self._socket.recvfrom(size + 1)
            except BlockingIOError:
                return self._rows[:count], True
            except OSError:
                if not count:
                    raise
                break
            if packed(source) != bytes(self._receiving.peer):
                self._receiving.foreign += 1
            elif len(datagram) != size:
                self._receiving.wrong_size += 1
            else:
                self._rows[count] = np.frombuffer(datagram, dtype=np.uint8)
                count += 1
        return self._rows[:count], False

    def drain(self) -> None:
        """Drops what waits in the socket, and the seal."""
        self.seal = None
        for _ in range(MAX_DRAINS):
            if self.receive()[1]:
                break

    @property
    def can_plan(self) -> bool:
        in_c = self.seal is None or isinstance(self.seal, CompiledAuthentication)
        return in_c and LIBRARY is not None

    def planned_send(self) -> PlannedSend:
        return PlannedSend(self.fileno(), *self._sender.addresses, seal=self.seal)

    def planned_receive(self) -> PlannedReceive:
        return PlannedReceive(self.fileno(), ctypes.addressof(self._receiving))

    def take_back(self, plan: PlannedReceive) -> None:
        """Makes `receive` return next the batch that a plan has received and not placed."""
        self._from_plan = plan.received

    @property
    def counters(self) -> Counter[str]:
        dropped = self._receiving
        return self._counters + Counter(
            {
                "unknown-address": dropped.foreign,
                "wrong-size": dropped.wrong_size,
                "forged": dropped.forged,
            }
        )

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait in the receive buffer, the kernel's bookkeeping included."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 4)
        return int.from_bytes(raw, sys.byteorder)

    @property
    def buffer_bytes(self) -> int:
        """The data that the receive buffer holds, whatever the sizes of its datagrams."""
        return self._buffers["receive_buffer_bytes"] // 2

    def close(self) -> None:
        self._socket.close()


@dataclass(eq=False)
class UdpData(DataChannel):
    udp: UdpSocket
    coalesce_s: float  # for up to so long, arrivals may wait in the socket for others
    measured: bool  # whether the congestion control measures the path
    leave_out: LeaveOut | None
    too_large: Callable[[], str]  # says why the interface refuses datagrams for their size
    _planned_send: PlannedSend | None = field(default=None, init=False)
    _planned_receive: PlannedReceive | None = field(default=None, init=False)
    _drained = True
    _not_before_s = 0.0

    def fileno(self) -> int:
        return self.udp.fileno()

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        waited = waited or self._coalescing or not self._drained
        received = 0
        for _ in range(_RECEIVES_PER_CALL):
            received += self._receive(connection, now_s, waited)
            if self._drained:
                break
        self.wake_up()
        if received and self._drained:
            self._coalesce(connection, now_s)

    def _coalesce(self, connection: Connection, now_s: float) -> None:
        if coalesce_s := connection.coalesce_s(self.coalesce_s, measured=self.measured):
            self.unread_until_s = now_s + coalesce_s

    @property
    def _coalescing(self) -> bool:
        return self.unread_until_s > -math.inf

    def _receive(self, connection: Connection, now_s: float, waited: bool) -> int:
        frames, self._drained = self.udp.receive()
        if len(frames):
            connection.on_datagrams(frames, now_s, waited=waited)
        return frames.size

    def read_backlog(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        # Only the present backlog is read, because an unpaced sender goes on sending.
        backlog_bytes = self.udp.backlog_bytes
        waited = waited or self._coalescing or not self._drained
        for _ in range(MAX_DRAINS):
            if backlog_bytes <= 0:
                break
            self._receive(connection, now_s, waited)
            backlog_bytes -= self.udp.taken_bytes
            if self._drained:
                break

    def write(self, connection: Connection, now_s: float) -> None:
        if not self.blocked and now_s < self._not_before_s:
            return
        self._send(connection, now_s)
        if self.udp.too_large:
            self.udp.too_large = False  # the peer may join again
            connection.give_up(self.too_large())

    def _send(self, connection: Connection, now_s: float) -> None:
        self.blocked, self._not_before_s = False, 0.0
        for _ in range(_BATCHES_PER_CALL):
            frames = connection.offer(now_s)
            if not len(frames):
                return
            self.udp.mark(connection.outgoing.protected)
            left_out = self.leave_out(len(frames)) if self.leave_out is not None else None
            taken = self._pass_on(connection, frames, left_out, now_s)
            if taken < len(frames):
                self.blocked = self.udp.blocked
                self._not_before_s = now_s + (_BLOCKED_S if self.blocked else _RETRY_S)
                return
            if frames.nbytes < _FULL_BATCH_BYTES and left_out is None:
                return  # no more may go now, or very little

    def _pass_on(
        self,
        connection: Connection,
        frames: NDArray[np.uint8],
        left_out: NDArray[np.bool_] | None,
        now_s: float,
    ) -> int:
        """Sends what is not left out; returns how many are dealt with."""
        if left_out is None:
            taken = self.udp.send(frames)
        else:
            kept = np.flatnonzero(~left_out)
            sent = self.udp.send(frames[kept])
            taken = int(kept[sent]) if sent < len(kept) else len(frames)
            left_out = left_out[:taken]
        connection.outgoing.sent(taken, now_s, left_out)
        return taken

    def begin_plans(self, connection: Connection, now_s: float) -> bool:
        self.sending = self.receiving = None
        if not self.udp.can_plan:
            return False
        if self.leave_out is None and not self._not_before_s:
            self._plan_send(connection, now_s)
        if self._coalescing or self._drained:
            self._plan_receive(connection)
        return self.sending is not None or self.receiving is not None

    def _plan_send(self, connection: Connection, now_s: float) -> None:
        plan = connection.send_plan()
        if plan is None:
            return
        self._planned_send = self._planned_send or self.udp.planned_send()
        self.udp.mark(connection.outgoing.protected)
        due_s = plan.pacer.next_s(now_s, len(plan.chunks) + plan.beyond)
        if self._planned_send.begin(plan, due_s, segmented=self.udp.segmentation):
            self.sending = self._planned_send

    def _plan_receive(self, connection: Connection) -> None:
        """Plans to receive what is coalescing once that is over, or each datagram at once."""
        plan = connection.receive_plan(self.coalesce_s, measured=self.measured)
        if plan is None:
            return
        self._planned_receive = self._planned_receive or self.udp.planned_receive()
        due_s = self.unread_until_s if self._coalescing else None
        if self._planned_receive.begin(plan, due_s):
            self.receiving = self._planned_receive

    def end_plans(self, connection: Connection, now_s: float) -> None:
        sending, receiving, self.sending, self.receiving = self.sending, self.receiving, None, None
        if sending is not None and sending.worked:
            plan, batches = sending.end()
            if batches:
                connection.outgoing.on_plan_sent(plan, batches)
        if receiving is None or not receiving.worked:
            return
        arrivals, at_s = receiving.end()
        if len(arrivals.stamps):
            connection.on_plan_received(arrivals, at_s, waited=not receiving.at_once)
        self.unread_until_s = -math.inf if receiving.over or receiving.at_once else receiving.due_s
        self._drained = receiving.drained
        if receiving.unplaced:
            self.udp.take_back(receiving)
            self._receive(connection, now_s, waited=not receiving.at_once)
        elif receiving.over and receiving.drained and receiving.valid:
            self._coalesce(connection, now_s)

    def due_s(self, connection_due_s: float) -> float:
        return max(connection_due_s, self._not_before_s)
