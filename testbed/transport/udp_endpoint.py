"""The endpoint of our own transport: UDP datagrams for data, TCP for control messages."""

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.control_messages import ControlMessage
from testbed.transport.endpoint import SERVER, Endpoint, EndpointConfig
from testbed.transport.errors import ProtocolError
from testbed.transport.event_loop import PeerTransfer
from testbed.transport.handshake import Listener
from testbed.transport.order import ORDERS
from testbed.transport.path_mtu import check_chunk_fits
from testbed.transport.receiver import Receiver
from testbed.transport.repair import REPAIRS
from testbed.transport.sender import Sender, SendingPath
from testbed.transport.tolerance import StopRuleFactory
from testbed.transport.transfer_report import OBSERVATION_INTERVAL_S, Observer, TransferReport
from testbed.transport.udp_socket import UdpSocket
from testbed.transport.wire import HEADER_BYTES, wire_bytes

# Batches sent in a row before control messages are read again; matters only when unpaced.
_BATCHES_PER_TURN = 4
# Receives in a row before other peers, messages and deadlines get their turn.
_RECEIVES_PER_TURN = 8
# The pause after an interface's queue was full: about one batch.
_RETRY_S = 1e-3
# The most receives before a PROBE is answered. A peer that has sent a PROBE sends nothing more, so
# only a flood of strangers' datagrams can reach this limit.
_MAX_DRAINS = 256


class UdpSending(PeerTransfer):
    """Connects a `Sender` to a socket."""

    def __init__(
        self, *, peer: str, sender: Sender, udp: UdpSocket, observer: Observer | None = None
    ) -> None:
        self.transfer = sender.transfer
        self._observer = observer
        self._observe_s = -math.inf
        self._peer = peer
        self._sender = sender
        self._udp = udp
        self._blocked = False
        self._retry_s: float | None = None

    @property
    def done(self) -> bool:
        return self._sender.stopped

    def work(self, now_s: float) -> None:
        if self._observer is not None and now_s >= self._observe_s:
            self._observe_s = now_s + OBSERVATION_INTERVAL_S
            self._observer(self._sender.observe(self._peer, now_s))
        if self._retry_s is not None and now_s < self._retry_s:
            return
        self._retry_s = None
        self._blocked = False
        self._sender.on_deadline(now_s)
        for _ in range(_BATCHES_PER_TURN):
            frames = self._sender.offer(now_s)
            if not len(frames):
                return
            taken = self._udp.send(frames)
            self._sender.sent(taken, now_s)
            if taken < len(frames):
                self._blocked = self._udp.blocked
                self._retry_s = None if self._blocked else now_s + _RETRY_S
                return

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        self._sender.on_message(message, now_s)

    def poll_messages(self) -> list[ControlMessage]:
        return self._sender.poll_messages()

    def next_deadline_s(self, now_s: float) -> float | None:
        if self._blocked:
            return None
        if self._retry_s is not None:
            return self._retry_s
        return self._sender.next_deadline_s(now_s)

    @property
    def writing(self) -> UdpSocket | None:
        return self._udp if self._blocked and not self.done else None

    @property
    def owed_since_s(self) -> float | None:
        return self._sender.asked_s

    def report(self) -> TransferReport:
        return self._sender.report(self._peer)


class UdpReceiving(PeerTransfer):
    """Connects a `Receiver` to a socket."""

    def __init__(self, *, peer: str, receiver: Receiver, udp: UdpSocket, now_s: float) -> None:
        self.transfer = receiver.transfer
        self._peer = peer
        self._receiver = receiver
        self._udp = udp
        self._heard_s = now_s
        self._deadline_s: float | None = None
        # Datagrams that are read before the first wait may have arrived long ago.
        self._receiver.attentive = False
        self._waited = False
        self._drained = True

    @property
    def done(self) -> bool:
        return self._receiver.stopped

    def work(self, now_s: float) -> None:
        self._receiver.attentive = self._waited and self._drained
        self._waited = True
        self._deadline_s = self._receiver.next_deadline_s()
        if self._deadline_s is not None and self._deadline_s <= now_s:
            self._receiver.on_deadline(now_s)
            self._deadline_s = self._receiver.next_deadline_s()

    def on_readable(self, now_s: float) -> None:
        for _ in range(_RECEIVES_PER_TURN):
            if self._take(now_s)[1] or self.done:
                break

    def _take(self, now_s: float) -> tuple[int, bool]:
        """Reads one batch; returns how many bytes, and whether the socket is empty now."""
        frames, drained = self._udp.receive()
        self._drained = drained
        if len(frames):
            before = self._receiver.valid_datagrams
            self._receiver.on_datagrams(frames, now_s)
            # Only valid datagrams count, so that a forger cannot keep a dead peer alive.
            if self._receiver.valid_datagrams > before:
                self._heard_s = now_s
        return frames.size, drained

    def on_message(self, message: ControlMessage, now_s: float) -> None:
        # Datagrams that were sent before the PROBE may still wait in the socket and must not be
        # reported as missing. Only the present backlog is read, because an unpaced sender goes on
        # sending after the PROBE.
        backlog_bytes = self._udp.backlog_bytes
        for _ in range(_MAX_DRAINS):
            taken_bytes, drained = self._take(now_s)
            backlog_bytes -= taken_bytes
            if drained or backlog_bytes <= 0:
                break
        self._receiver.on_message(message, now_s)

    def poll_messages(self) -> list[ControlMessage]:
        return self._receiver.poll_messages()

    def next_deadline_s(self, now_s: float) -> float | None:
        return self._deadline_s

    @property
    def reading(self) -> UdpSocket | None:
        return self._udp

    @property
    def owed_since_s(self) -> float | None:
        return None if self.done else self._heard_s

    def report(self) -> TransferReport:
        return self._receiver.report(self._peer)


class UdpEndpoint(Endpoint):
    """An endpoint with one UDP socket per peer."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._repair = REPAIRS.create(config.protocol.repair)
        self._order = ORDERS.create(config.protocol.order, seed=config.seed)
        self._sockets: dict[str, UdpSocket] = {}
        self._paths: dict[str, SendingPath] = {}

    def _open_data(self) -> int:
        config = self._config
        chunk_bytes = config.layout.chunk_bytes
        kind, trailer_bytes = UdpSocket, 0
        if config.checksum:
            # Imported here, because only checksums need the package that computes them.
            from testbed.transport.checksum import TRAILER_BYTES, ChecksummedUdpSocket

            kind, trailer_bytes = ChecksummedUdpSocket, TRAILER_BYTES
        opened = dict(zip(config.peers, config.sockets, strict=False))
        for peer, address in config.peers.items():
            check_chunk_fits(chunk_bytes + trailer_bytes, local=config.bind_address, peer=address)
            port = config.server_data_port(peer) if config.is_server else config.data_port
            self._sockets[peer] = kind(
                address=config.bind_address,
                port=port,
                datagram_bytes=HEADER_BYTES + chunk_bytes,
                segmentation=config.segmentation,
                opened=opened.get(peer),
            )
            congestion = CONGESTION_CONTROLS.create(
                config.protocol.congestion_control,
                rate_bps=config.rate_bps,
                datagram_bytes=wire_bytes(1, chunk_bytes),
            )
            if congestion.needs_ecn:
                raise ValueError(
                    f"congestion control {config.protocol.congestion_control!r} needs congestion "
                    "marks and this endpoint's datagrams cannot carry any; choose another"
                )
            self._paths[peer] = SendingPath(
                congestion=congestion,
                chunk_bytes=chunk_bytes,
                trailer_bytes=trailer_bytes,
                # Assumes that the peer's buffer has the size of ours.
                receive_buffer_bytes=self._sockets[peer].buffer_bytes,
            )
        return 0 if config.is_server else self._sockets[SERVER].port

    def _data_listeners(self) -> list[Listener]:
        return []  # datagrams need no connection

    def _join_data(self, peer: str, port: int, until_s: float) -> None:
        if not port:
            raise ProtocolError(f"{peer} names no port for its data")
        self._sockets[peer].set_peer(self._config.peers[peer], port)

    def _sending(
        self, peer: str, transfer: int, payload: NDArray[np.uint8], now_s: float
    ) -> UdpSending:
        sender = Sender(
            session=self._config.session,
            transfer=transfer,
            layout=self._config.layout,
            payload=payload,
            repair=self._repair,
            order=self._order,
            path=self._paths[peer],
            now_s=now_s,
        )
        return UdpSending(
            peer=peer, sender=sender, udp=self._sockets[peer], observer=self._config.observer
        )

    def _receiving(
        self, peer: str, transfer: int, rule: StopRuleFactory, into: NDArray[np.uint8], now_s: float
    ) -> UdpReceiving:
        receiver = Receiver(
            session=self._config.session,
            transfer=transfer,
            layout=self._config.layout,
            into=into,
            rule=rule(self._config.layout),
            repair=self._repair,
            now_s=now_s,
        )
        return UdpReceiving(peer=peer, receiver=receiver, udp=self._sockets[peer], now_s=now_s)

    def counters(self) -> dict[str, int]:
        total = Counter(super().counters())
        for udp in self._sockets.values():
            total.update(udp.counters)
        return dict(total)

    def facts(self) -> dict[str, Any]:
        used = {"congestion_control": self._config.protocol.congestion_control}
        return {peer: udp.facts() | used for peer, udp in self._sockets.items()}

    def _close_data(self) -> None:
        for udp in self._sockets.values():
            udp.close()
