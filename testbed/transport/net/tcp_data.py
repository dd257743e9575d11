"""The protocol `tcp`: the same payloads over one plain kernel TCP connection per peer.

    u32 session | u32 transfer | u64 payload bytes

precede each payload, or the block of a compression. STOP on the control stream ends a transfer.
"""

import struct
import time
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.connection import Connection
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.events import TransferReport
from testbed.transport.core.incoming import Incoming
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.outgoing import Outgoing
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.tolerance import StopRule
from testbed.transport.net.link import DataChannel
from testbed.transport.net.tcp_compression import Compression
from testbed.transport.net.tcp_socket import SEGMENT_OVERHEAD_BYTES, DataSocket, TcpCounts

_FRAME = struct.Struct("!IIQ")
HEAD_BYTES = _FRAME.size
# Which chunks go, None for all, and the bytes that follow a frame's head.
_Packed = tuple[NDArray[np.bool_] | None, memoryview]
# Reads in a row before other peers get their turn.
_READS_PER_TURN = 64


class _Transfer:
    """What both sides of a transfer have in common; the place of `Sender` and `Receiver`."""

    attentive = True  # no round trip is measured here

    def __init__(
        self,
        transfer: int,
        settings: ConnectionSettings,
        data: DataSocket,
        compression: Compression | None,
        now_s: float,
    ) -> None:
        self.transfer = transfer
        self.stopped = False
        self.ignored: Counter[str] = Counter()
        self.layout: PayloadLayout = settings.layout_of(transfer)
        self.head = _FRAME.pack(settings.session, transfer, self.layout.payload_bytes)
        self.data = data
        self.compression = compression
        self.chosen: NDArray[np.bool_] | None = None  # None: all chunks
        self.began_s = now_s
        self.ended_s = now_s

    @property
    def count(self) -> int:
        """How many chunks are sent."""
        compression = self.compression
        return self.layout.chunk_count if compression is None else compression.count(self.layout)

    def on_deadline(self, now_s: float) -> None:
        """Nothing is ever due."""

    def next_deadline_s(self, now_s: float = 0.0, *, departing: bool = False) -> None:
        return None

    def made_report(self, peer: str, **measured: Any) -> TransferReport:
        """TCP delivers every chunk that was sent, once."""
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
    """Writes one payload to the connection, then awaits STOP."""

    fruitless_s = None
    # The kernel does not tell that the peer is busy with others, so the peer is asked all along.
    held = True

    def __init__(self, packed: _Packed, *common: Any) -> None:
        super().__init__(*common)
        self.chosen, block = packed
        self.left = [memoryview(self.head), block]

    @property
    def asked_s(self) -> float:
        return max(self.began_s, self.data.moved_s)  # what moves shows a living peer

    def overdue(self) -> None:
        """The kernel delivers all that is sent."""

    def excuse(self, away_s: float) -> None:
        """Its patience is with what the kernel moves while this side is away."""

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
        if message.type is MessageType.HOLD:
            return
        if message.type is not MessageType.STOP:
            raise ProtocolError(f"{message.type.name} is not allowed at a TCP sender")
        if self.left:
            raise ProtocolError("STOP before the payload was sent")
        self.stopped = True
        self.ended_s = now_s

    def poll_messages(self) -> list[ControlMessage]:
        return []

    def report(self, peer: str) -> TransferReport:
        counts = self.data.count_sent()
        return self.made_report(
            peer,
            role="sender",
            received=self.chosen,
            chunks_sent=self.count,
            bytes_sent=counts.wire_bytes_sent,
            retransmitted_bytes=counts.bytes_retransmitted,
        )


class _Receiving(_Transfer):
    """Reads one payload from the connection, then sends STOP."""

    probes = 0
    took: tuple[float, int] | None = None  # no stop rule looks back on it

    def __init__(self, into: NDArray[np.uint8], *common: Any) -> None:
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
        self._begun = False
        self._stop = ControlMessage(MessageType.STOP, self.transfer)
        self._outbox: list[ControlMessage] = []
        self._counts: TcpCounts

    @property
    def progress_s(self) -> float:
        return self.data.read_s  # of an earlier transfer too: this one waits for its end

    @property
    def asked(self) -> bool:
        """Whether the peer has begun."""
        return self._begun

    def read(self, now_s: float) -> int:
        """Reads once; returns how much. ProtocolError for another transfer's frame."""
        size = self.data.socket.recv_into(self._left[0])
        if size and not self._begun:
            self._begun, self.began_s = True, now_s
        self._left[0] = self._left[0][size:]
        if not self._left[0]:
            del self._left[0]
            if self._left and self._head != self.head:
                theirs, ours = _FRAME.unpack(self._head), _FRAME.unpack(self.head)
                raise ProtocolError(
                    f"session, transfer and payload bytes are {theirs} instead of {ours}"
                )
        if size:
            self.data.read_s = now_s
        if not self._left:
            if self.compression is not None:
                self.chosen = self.compression.unpack(self.layout, self._block, self._rows)
            self.stopped = True
            self.ended_s = time.monotonic()
            # Count before STOP, after which the peer may begin the next transfer.
            self._counts = self.data.count_received()
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
    data: DataSocket
    compression: Compression | None

    def on_deadline(self, now_s: float) -> None:
        if self.senders:
            self.data.look(now_s)

    @property
    def held_s(self) -> float | None:
        """Since when nothing has moved: the kernels are full, or have all and await a reader."""
        sender: Any = next(iter(self.senders.values()), None)
        return None if sender is None else sender.asked_s

    def _new(
        self,
        transfer: int,
        payload: NDArray[np.uint8],
        now_s: float,
        arrangers: dict[int, Any] | None,
    ) -> Any:
        packed = self._packed(transfer, payload, {} if arrangers is None else arrangers)
        return _Sending(packed, transfer, self._settings, self.data, self.compression, now_s)

    def prepare(self, transfer: int, payload: NDArray[np.uint8], arrangers: dict[int, Any]) -> None:
        self._packed(transfer, payload, arrangers)

    def _packed(
        self, transfer: int, payload: NDArray[np.uint8], arrangers: dict[int, Any]
    ) -> _Packed:
        """What goes of a payload, which is made once for all peers that get it."""
        layout = self._settings.layout_of(transfer)
        rows = layout.rows(payload)
        if (place := rows.ctypes.data) not in arrangers:
            if self.compression is None:
                arrangers[place] = None, rows.reshape(-1).data[: layout.payload_bytes]
            else:
                arrangers[place] = self.compression.pack(layout, payload)
        packed: _Packed = arrangers[place]
        return packed

    def offer(self, now_s: float) -> NDArray[np.uint8]:
        return self.nothing


class _TcpIncoming(Incoming):
    data: DataSocket
    compression: Compression | None

    def _new(
        self, transfer: int, rule: StopRule | None, into: NDArray[np.uint8], now_s: float
    ) -> Any:
        """Ignores the stop rule: TCP delivers everything, which satisfies every rule."""
        return _Receiving(into, transfer, self._settings, self.data, self.compression, now_s)

    def keep_waiting(self, now_s: float) -> None:
        """The peer has sent what nobody receives yet; it stays in the socket."""
        self._unasked.since_s = now_s

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
            self._harvest(receiver)
        return None


class TcpConnection(Connection):
    """A connection whose data travel on TCP; it has the usual control messages."""

    def _directions(self, path: SendingPath | None) -> tuple[Outgoing, Incoming]:
        common = (self._events, self.counters)
        return (
            _TcpOutgoing(self.peer, self._settings, None, *common),
            _TcpIncoming(self.peer, self._settings, *common),
        )


class TcpData(DataChannel):
    """A connection's data connection."""

    def __init__(
        self, connection: Connection, data: DataSocket, compression: Compression | None
    ) -> None:
        assert isinstance(connection.incoming, _TcpIncoming)
        assert isinstance(connection.outgoing, _TcpOutgoing)
        connection.incoming.data = connection.outgoing.data = data
        connection.incoming.compression = connection.outgoing.compression = compression
        self._incoming, self._outgoing = connection.incoming, connection.outgoing
        self.socket = data.socket

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
            connection.on_control_closed(reason)

    def write(self, connection: Connection, now_s: float) -> None:
        try:
            for sender in self._sending():
                sender.write(now_s)
        except BlockingIOError:
            return
        except OSError as error:
            connection.on_control_closed(f"the data connection failed: {error.strerror}")

    def _sending(self) -> list[Any]:
        senders: list[Any] = [*self._outgoing.senders.values()]
        return [sender for sender in senders if sender.left]

    def due_s(self, connection_due_s: float) -> float:
        return connection_due_s

    @property
    def blocked(self) -> bool:
        return bool(self._sending())

    @property
    def reading(self) -> bool:
        return bool(self._incoming.receivers) or self._incoming.unasked_s is None
