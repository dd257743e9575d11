"""The protocol `tcp`: the same payloads over one plain kernel TCP connection per peer.

    u32 session | u32 transfer | u64 payload bytes

precede each payload, or the block of a selection. STOP on the control stream ends a transfer.
"""

import math
import operator
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.transport.chunk_energy import Selection
from testbed.transport.connection import Connection
from testbed.transport.errors import ProtocolError
from testbed.transport.events import TransferReport
from testbed.transport.layout import PayloadLayout
from testbed.transport.messages import ControlMessage, MessageType, pack_bitmap, unpack_bitmap
from testbed.transport.net.control import tcp_info, unacknowledged_bytes
from testbed.transport.net.driver import DataChannel
from testbed.transport.presets import ProtocolConfig
from testbed.transport.receiver import Incoming
from testbed.transport.sender import Outgoing, Stall
from testbed.transport.sending_path import SendingPath
from testbed.transport.settings import ConnectionSettings
from testbed.transport.tolerance import StopRule

Buffer = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Selected(Selection):
    """Sends the chunks of a selection: a bitmap, then those, ascending."""

    def size(self, layout: PayloadLayout) -> int:
        return _bitmap_bytes(layout) + self.count(layout) * layout.chunk_bytes

    def pack(self, layout: PayloadLayout, payload: Buffer) -> tuple[Mask, memoryview]:
        rows = layout.rows(payload)
        chosen = self.chosen(layout, rows)
        block, bitmap = np.empty(self.size(layout), dtype=np.uint8), _bitmap_bytes(layout)
        block[:bitmap] = np.frombuffer(pack_bitmap(chosen), dtype=np.uint8)
        np.compress(chosen, rows, axis=0, out=block[bitmap:].reshape(-1, layout.chunk_bytes))
        return chosen, block.data

    def unpack(self, layout: PayloadLayout, block: Buffer, rows: Buffer) -> Mask:
        """ProtocolError unless its bitmap names as many chunks as are sent."""
        bitmap = _bitmap_bytes(layout)
        chosen = unpack_bitmap(block[:bitmap].tobytes(), layout.chunk_count)
        named = int(np.count_nonzero(chosen))
        if named != self.count(layout):
            raise ProtocolError(f"a bitmap of {named} chunks instead of {self.count(layout)}")
        rows[chosen] = block[bitmap:].reshape(named, layout.chunk_bytes)
        return chosen


def _bitmap_bytes(layout: PayloadLayout) -> int:
    return -(-layout.chunk_count // 8)


def compression_of(protocol: ProtocolConfig) -> Selected | None:
    """Makes a protocol's selection for kernel TCP; None where all chunks travel, or another way."""
    return None if protocol.carrier != "tcp" or protocol.keep == 1 else Selected(protocol.keep)


_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# Ethernet, IPv4 and TCP headers with the timestamp option, per segment.
SEGMENT_OVERHEAD_BYTES = 14 + 20 + 32


class TcpCounts(NamedTuple):
    """Totals of one connection; bytes are those of the stream."""

    segments_sent: int
    data_segments_received: int
    data_segments_sent: int
    bytes_sent: int
    bytes_retransmitted: int

    def since(self, before: "TcpCounts") -> "TcpCounts":
        return TcpCounts(*map(operator.sub, self, before))

    @property
    def wire_bytes_sent(self) -> int:
        return self.bytes_sent + self.data_segments_sent * SEGMENT_OVERHEAD_BYTES

    @property
    def wire_bytes_acknowledging(self) -> int:
        return (self.segments_sent - self.data_segments_sent) * SEGMENT_OVERHEAD_BYTES


def tcp_counts(connection: socket.socket) -> TcpCounts:
    segments_sent, _, *counts = tcp_info(connection)
    return TcpCounts(segments_sent, *counts)


def available_congestion_controls() -> list[str]:
    """Lists the algorithms that the kernel offers; empty when it does not say."""
    try:
        return _AVAILABLE.read_text().split()
    except OSError:
        return []


def set_congestion_control(connection: socket.socket, name: str) -> None:
    """Sets the algorithm of one socket (and of what it accepts) and reads it back."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except PermissionError:
        return
    except OSError as error:
        raise ValueError(
            f"the kernel refuses TCP congestion control {name!r} ({error.strerror}); "
            f"available: {' '.join(available_congestion_controls()) or 'unknown'}"
        ) from None
    actual = get_congestion_control(connection)
    if actual != name:
        raise ValueError(f"TCP congestion control is {actual!r} although {name!r} was set")


def get_congestion_control(connection: socket.socket) -> str:
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return raw.partition(b"\0")[0].decode()


def check_congestion_control(connection: socket.socket, name: str) -> None:
    """Raises ProtocolError when a connection has another algorithm than `name`."""
    actual = get_congestion_control(connection)
    if actual != name:
        raise ProtocolError(
            f"TCP congestion control is {actual!r} instead of {name!r}: this process may not set "
            "it, or the route has another"
        )


_FRAME = struct.Struct("!IIQ")
HEAD_BYTES = _FRAME.size
# Which chunks go, None for all, and the bytes that follow a frame's head.
_Packed = tuple[Mask | None, memoryview]
# Reads in a row before other peers get their turn.
_READS_PER_TURN = 64


class _Transfer:
    """Stands for `Sender` and `Receiver`: what both sides of a transfer share."""

    def __init__(
        self, transfer: int, settings: ConnectionSettings, data: "TcpData", now_s: float
    ) -> None:
        self.transfer = transfer
        self.stopped = False
        self.ignored: Counter[str] = Counter()
        self.layout: PayloadLayout = settings.layout_of(transfer)
        self.head = _FRAME.pack(settings.session, transfer, self.layout.payload_bytes)
        self.data = data
        self.compression = data.compression
        self.chosen: Mask | None = None  # None: all chunks
        self.began_s = now_s
        self.ended_s = now_s

    @property
    def count(self) -> int:
        compression = self.compression
        return self.layout.chunk_count if compression is None else compression.count(self.layout)

    def next_deadline_s(self, now_s: float = 0.0, *, planned: bool = False) -> None:
        """Nothing is ever due."""

    def made_report(self, peer: str, **measured: Any) -> TransferReport:
        return TransferReport(
            transfer=self.transfer,
            peer=peer,
            chunk_count=self.layout.chunk_count,
            chunks_received=self.count,
            began_s=self.began_s,
            ended_s=self.ended_s,
            **measured,
        )


class _Sending(_Transfer):
    # The kernel does not tell that the peer is busy with others, so the peer is asked all along.
    held = True

    def __init__(self, packed: _Packed, *common: Any) -> None:
        super().__init__(*common)
        self.chosen, block = packed
        self.left = [memoryview(self.head), block]
        self.stall = Stall(self.began_s)  # which it never notes: what is sent arrives

    @property
    def asked_s(self) -> float:
        return max(self.began_s, self.data.moved_s)  # what moves shows a living peer

    def missed(self) -> None:
        """The kernel delivers all that is sent."""

    def write(self, now_s: float) -> None:
        """Writes what the socket takes. OSError when the connection has failed."""
        while self.left:
            sent = self.data.socket.sendmsg(self.left)
            self.data.moved_s = now_s
            while self.left and sent >= len(self.left[0]):
                sent -= len(self.left.pop(0))
            if self.left:
                self.left[0] = self.left[0][sent:]

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        if message.type is not MessageType.STOP:
            raise ProtocolError(f"{message.type.name} is not allowed at a TCP sender")
        if self.left:
            raise ProtocolError("STOP before the payload was sent")
        self.stopped = True
        self.ended_s = now_s

    def poll_messages(self) -> list[ControlMessage]:
        return []

    def report(self, peer: str) -> TransferReport:
        counts = self.data.added("sender")
        return self.made_report(
            peer,
            role="sender",
            received=self.chosen,
            chunks_sent=self.count,
            bytes_sent=counts.wire_bytes_sent,
            retransmitted_bytes=counts.bytes_retransmitted,
        )


class _Receiving(_Transfer):
    took: tuple[float, int] | None = None  # no stop rule looks back on it

    def __init__(self, into: Buffer, *common: Any) -> None:
        super().__init__(*common)
        self._head, self._rows = bytearray(_FRAME.size), self.layout.rows(into)
        if self.compression is None:
            body = self._rows.reshape(-1).data[: self.layout.payload_bytes]
        else:
            self._block = np.empty(self.compression.size(self.layout), dtype=np.uint8)
            body = self._block.data
        # What is still to be read of the frame's parts, in order.
        self._left = [memoryview(self._head), body]
        self._stream_bytes = sum(part.nbytes for part in self._left)
        self.asked = False  # whether the peer has begun to send it
        self._stop = ControlMessage(MessageType.STOP, self.transfer)
        self._outbox: list[ControlMessage] = []
        self._counts: TcpCounts

    @property
    def progress_s(self) -> float:
        return self.data.read_s  # of an earlier transfer too: this one waits for its end

    def read(self, now_s: float) -> int:
        """Reads once; returns how much. ProtocolError for another transfer's frame."""
        size = self.data.socket.recv_into(self._left[0])
        if size and not self.asked:
            self.asked, self.began_s = True, now_s
        self._left[0] = self._left[0][size:]
        if not self._left[0]:
            del self._left[0]
            if self._left and self._head != self.head:
                theirs, ours = _FRAME.unpack(self._head), _FRAME.unpack(self.head)
                which = "this" if theirs[0] == ours[0] else "another"  # its number is secret
                raise ProtocolError(
                    f"transfer {theirs[1]} of {theirs[2]} bytes instead of {ours[1]} of {ours[2]}, "
                    f"in {which} session"
                )
        if size:
            self.data.read_s = now_s
        if not self._left:
            if self.compression is not None:
                self.chosen = self.compression.unpack(self.layout, self._block, self._rows)
            self.stopped = True
            self.ended_s = time.monotonic()
            # Count before STOP, after which the peer may begin the next transfer.
            self._counts = self.data.added("receiver")
            self._outbox.append(self._stop)
        return size

    def poll_messages(self) -> list[ControlMessage]:
        messages, self._outbox = self._outbox, []
        return messages

    def report(self, peer: str) -> TransferReport:
        counts, everything = self._counts, np.ones(self.layout.chunk_count, dtype=np.bool_)
        return self.made_report(
            peer,
            role="receiver",
            received=everything if self.chosen is None else self.chosen,
            bytes_received=self._stream_bytes
            + counts.data_segments_received * SEGMENT_OVERHEAD_BYTES,
            control_bytes=self._stop.wire_bytes + counts.wire_bytes_acknowledging,
        )


class _TcpOutgoing(Outgoing):
    data: "TcpData"

    def on_deadline(self, now_s: float) -> None:
        if self.senders:
            self.data.note_progress(now_s)

    @property
    def held_s(self) -> float | None:
        """Since when nothing has moved: the kernels are full, or have all and await a reader."""
        sender: Any = next(iter(self.senders.values()), None)
        return None if sender is None else sender.asked_s

    def _new(
        self, transfer: int, payload: Buffer, now_s: float, arrangers: dict[int, Any] | None
    ) -> Any:
        layout, compression = self._settings.layout_of(transfer), self.data.compression
        rows = layout.rows(payload)
        packed: dict[int, _Packed] = {} if arrangers is None else arrangers  # by address
        if (place := rows.ctypes.data) not in packed:
            if compression is None:
                packed[place] = None, rows.reshape(-1).data[: layout.payload_bytes]
            else:
                packed[place] = compression.pack(layout, payload)
        return _Sending(packed[place], transfer, self._settings, self.data, now_s)

    def offer(self, now_s: float) -> Buffer:
        return self.nothing


class _TcpIncoming(Incoming):
    data: "TcpData"

    def _new(self, transfer: int, rule: StopRule | None, into: Buffer, now_s: float) -> Any:
        """Ignores the stop rule: TCP delivers everything, which satisfies every rule."""
        return _Receiving(into, transfer, self._settings, self.data, now_s)

    def keep_waiting(self, now_s: float) -> None:
        """Leaves in the socket what the peer has sent before anybody receives it."""
        self._unasked_s = now_s

    def on_message(self, message: ControlMessage, now_s: float, *, waited: bool) -> None:
        raise ProtocolError(f"{message.type.name} is not allowed at a TCP receiver")

    def read(self, now_s: float) -> str | None:
        """Reads for the transfers in flight, the lowest first; returns why nothing can come."""
        for _ in range(_READS_PER_TURN):
            receiver: Any = next(iter(self.receivers.values()), None)
            if receiver is None:
                return None
            if not receiver.read(now_s):
                return "the data connection was closed"
            self._finish_if_stopped(receiver)
        return None


class TcpConnection(Connection):
    def _directions(self, path: SendingPath | None) -> tuple[Outgoing, Incoming]:
        common = (self._events, self.counters)
        return (
            _TcpOutgoing(self.peer, self._settings, None, *common),
            _TcpIncoming(self.peer, self._settings, *common),
        )


class TcpData(DataChannel):
    def __init__(
        self, connection: Connection, data: socket.socket, compression: Selected | None
    ) -> None:
        assert isinstance(connection.incoming, _TcpIncoming)
        assert isinstance(connection.outgoing, _TcpOutgoing)
        connection.incoming.data = connection.outgoing.data = self
        self._incoming, self._outgoing = connection.incoming, connection.outgoing
        data.setblocking(False)
        data.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.compression = data, compression
        self.read_s = self.moved_s = -math.inf  # when data were last read, and last moved at all
        sent = tcp_counts(data)
        # So far each side has received one segment, the other's handshake message. The kernel's
        # count is not read, because a fast peer's first payload may have begun to arrive.
        self._before = {"sender": sent, "receiver": sent._replace(data_segments_received=1)}
        self._unacknowledged = 0

    def note_progress(self, now_s: float) -> None:
        before, self._unacknowledged = self._unacknowledged, unacknowledged_bytes(self.socket)
        if self._unacknowledged != before:
            self.moved_s = now_s

    def added(self, role: str) -> TcpCounts:
        """Returns what this side added to the kernel's counters in a role since the last call."""
        now, before = tcp_counts(self.socket), self._before[role]
        self._before[role] = now
        return now.since(before)

    def fileno(self) -> int:
        return self.socket.fileno()

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        if not self._incoming.receivers:
            self._incoming.keep_waiting(now_s)
        self.read_backlog(connection, now_s, waited=waited)

    def read_backlog(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        try:
            reason = self._incoming.read(now_s)
        except BlockingIOError:
            return
        except OSError as error:
            reason = f"the data connection failed: {error.strerror}"
        except ProtocolError as error:
            connection.on_broken(error)
            return
        if reason is not None:
            connection.end(reason)

    def write(self, connection: Connection, now_s: float) -> None:
        try:
            for sender in self._sending():
                sender.write(now_s)
        except BlockingIOError:
            pass
        except OSError as error:
            connection.end(f"the data connection failed: {error.strerror}")
        self.blocked = bool(self._sending())

    def _sending(self) -> list[Any]:
        senders: list[Any] = [*self._outgoing.senders.values()]
        return [sender for sender in senders if sender.left]

    @property
    def reading(self) -> bool:
        return bool(self._incoming.receivers) or self._incoming.unasked_s is None
