"""The two sides of a transfer over a kernel TCP connection, for the event loop.

On the data connection each payload is preceded by 16 bytes in network order:

    u32 session | u32 transfer | u64 payload bytes

The receiver sends STOP on the control connection once the payload is complete, so a transfer ends
with the same event as in our own transport.
"""

import socket
import struct
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.core.errors import PeerLost, ProtocolError
from testbed.transport.core.layout import PayloadLayout
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.reports import TransferReport
from testbed.transport.net.event_loop import PeerTransfer
from testbed.transport.net.tcp_socket import SEGMENT_OVERHEAD_BYTES, TcpCounts, tcp_counts

_FRAME = struct.Struct("!IIQ")


class DataConnection:
    """A peer's data connection, with the kernel's counters at the end of the last transfer.

    Each direction keeps its own counters, because data of the next transfer may arrive while this
    side is still busy with the previous one.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._sent = tcp_counts(connection)
        # So far each side has received one segment, the other's handshake message. The kernel's
        # count is not read, because a fast peer's first payload may have begun to arrive.
        self._received = replace(self._sent, data_segments_received=1)

    def count_sent(self) -> TcpCounts:
        """The counters that sending added since the last call."""
        now, before = tcp_counts(self.socket), self._sent
        self._sent = now
        return now.since(before)

    def count_received(self) -> TcpCounts:
        """The counters that receiving added since the last call."""
        now, before = tcp_counts(self.socket), self._received
        self._received = now
        return now.since(before)


class _TcpTransfer(PeerTransfer):
    def __init__(
        self,
        *,
        peer: str,
        transfer: int,
        session: int,
        layout: PayloadLayout,
        connection: DataConnection,
        now_s: float,
    ) -> None:
        self.transfer = transfer
        self._peer = peer
        self._layout = layout
        self._data = connection
        self._connection = connection.socket
        self._head = _FRAME.pack(session, transfer, layout.payload_bytes)
        self._heard_s = now_s
        self._began_s = now_s
        self._ended_s = now_s

    @property
    def owed_since_s(self) -> float | None:
        return None if self.done else self._heard_s

    def _lost(self, error: OSError) -> PeerLost:
        return PeerLost(self._peer, f"the data connection failed: {error.strerror}")

    def _report(self, **measured: Any) -> TransferReport:
        """A report with what both sides have in common: TCP delivers every chunk, once."""
        return TransferReport(
            transfer=self.transfer,
            peer=self._peer,
            chunk_count=self._layout.chunk_count,
            chunks_received=self._layout.chunk_count,
            began_s=self._began_s,
            ended_s=self._ended_s,
            **measured,
        )


class TcpSending(_TcpTransfer):
    """Writes one payload to the connection, then awaits STOP."""

    def __init__(self, *, payload: NDArray[np.uint8], **common: Any) -> None:
        super().__init__(**common)
        body = payload.reshape(-1).data[: self._layout.payload_bytes]
        self._left = [memoryview(self._head), body]
        self._stopped = False

    @property
    def done(self) -> bool:
        return self._stopped

    def work(self, now_s: float) -> None:
        while self._left:
            try:
                sent = self._connection.sendmsg(self._left)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(error) from error
            self._heard_s = now_s  # data moves, so the peer's kernel is alive
            while self._left and sent >= len(self._left[0]):
                sent -= len(self._left.pop(0))
            if self._left:
                self._left[0] = self._left[0][sent:]

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        if message.type is not MessageType.STOP:
            raise ProtocolError(f"{message.type.name} is not allowed at a TCP sender")
        if self._left:
            raise ProtocolError("STOP before the payload was sent")
        self._stopped = True
        self._ended_s = now_s

    def poll_messages(self) -> list[ControlMessage]:
        return []

    @property
    def writing(self) -> socket.socket | None:
        return self._connection if self._left else None

    def report(self) -> TransferReport:
        counts = self._data.count_sent()
        return self._report(
            role="sender",
            chunks_sent=self._layout.chunk_count,
            bytes_sent=counts.wire_bytes_sent,
            retransmitted_bytes=counts.bytes_retransmitted,
        )


class TcpReceiving(_TcpTransfer):
    """Reads one payload from the connection straight into its buffer, then sends STOP."""

    def __init__(self, *, into: NDArray[np.uint8], **common: Any) -> None:
        super().__init__(**common)
        self._got_head = bytearray()
        self._left = into.reshape(-1).data[: self._layout.payload_bytes]
        self._stop = ControlMessage(MessageType.STOP, self.transfer)
        self._outbox: list[ControlMessage] = []
        self._begun = False
        self._counts: TcpCounts

    @property
    def done(self) -> bool:
        return not self._left

    def work(self, now_s: float) -> None:
        """Nothing is due: a receiver only reads."""

    def on_readable(self, now_s: float) -> None:
        # Reads what is there, up to a limit, so that other peers are served too.
        for _ in range(64):
            if self.done:
                return
            try:
                if len(self._got_head) < _FRAME.size:
                    size = self._read_head()
                else:
                    size = self._connection.recv_into(self._left)
                    self._left = self._left[size:]
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(error) from error
            if not size:
                raise PeerLost(self._peer, "the data connection was closed")
            self._heard_s = now_s
            if not self._begun:
                self._begun = True
                self._began_s = now_s
            if self.done:
                self._ended_s = time.monotonic()
                # Count before STOP, after which the peer may begin the next transfer.
                self._counts = self._data.count_received()
                self._outbox.append(self._stop)

    def _read_head(self) -> int:
        data = self._connection.recv(_FRAME.size - len(self._got_head))
        self._got_head += data
        if len(self._got_head) == _FRAME.size and self._got_head != self._head:
            theirs, ours = _FRAME.unpack(self._got_head), _FRAME.unpack(self._head)
            raise PeerLost(
                self._peer,
                "it broke the protocol: session, transfer and payload bytes are "
                f"{theirs} instead of {ours}",
            )
        return len(data)

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        raise ProtocolError(f"{message.type.name} is not allowed at a TCP receiver")

    def poll_messages(self) -> list[ControlMessage]:
        messages, self._outbox = self._outbox, []
        return messages

    @property
    def reading(self) -> socket.socket | None:
        return None if self.done else self._connection

    def report(self) -> TransferReport:
        counts = self._counts
        stream_bytes = _FRAME.size + self._layout.payload_bytes
        return self._report(
            role="receiver",
            received=np.ones(self._layout.chunk_count, dtype=np.bool_),
            bytes_received=stream_bytes + counts.data_segments_received * SEGMENT_OVERHEAD_BYTES,
            control_bytes=self._stop.wire_bytes + counts.wire_bytes_acknowledging,
        )
