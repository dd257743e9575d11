"""Datagrams between a connection and its UDP socket."""

import socket
from collections import Counter
from collections.abc import Mapping
from typing import Any

from testbed.transport.core.connection import Connection
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import Hello, Welcome
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.wire import HEADER_BYTES, wire_bytes
from testbed.transport.net.addresses import IP_HEADER_BYTES, Host
from testbed.transport.net.carriers import Carrier
from testbed.transport.net.config import SERVER, EndpointConfig
from testbed.transport.net.driver import DataChannel
from testbed.transport.net.sealing import TRAILER_BYTES, Checksum, seal
from testbed.transport.net.udp_socket import UdpSocket
from testbed.transport.policies.congestion import CONGESTION_CONTROLS
from testbed.transport.policies.order import ORDERS
from testbed.transport.policies.repair import REPAIRS

# Batches sent in a row before others get their turn; matters only when unpaced.
_BATCHES_PER_TURN = 4
# Receives in a row before other peers, messages and deadlines get their turn.
_RECEIVES_PER_TURN = 8
# The pause after an interface's queue was full: about one batch.
_RETRY_S = 1e-3
# While the socket is full, other deadlines are looked at so often.
_BLOCKED_S = 1e-2
# The most receives before a control message is handed over. A peer that has sent a PROBE sends
# nothing more, so only a flood of strangers' datagrams can reach this limit.
_MAX_DRAINS = 256
_COUNTED_BYTES = IP_HEADER_BYTES[socket.AF_INET]  # in `wire_bytes`


class UdpData(DataChannel):
    """A connection's datagrams."""

    def __init__(self, udp: UdpSocket) -> None:
        self._udp = udp
        self._drained = True
        self._blocked = False
        self._retry_s: float | None = None
        self._not_before_s = 0.0

    def fileno(self) -> int:
        return self._udp.fileno()

    def read(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        waited = waited or not self._drained
        for _ in range(_RECEIVES_PER_TURN):
            self._take(connection, now_s, waited)
            if self._drained:
                break

    def _take(self, connection: Connection, now_s: float, waited: bool) -> int:
        frames, self._drained = self._udp.receive()
        if len(frames):
            connection.on_datagrams(frames, now_s, waited=waited)
        return frames.size

    def read_backlog(self, connection: Connection, now_s: float, *, waited: bool) -> None:
        # Only the present backlog is read, because an unpaced sender goes on sending.
        backlog_bytes = self._udp.backlog_bytes
        waited = waited or not self._drained
        for _ in range(_MAX_DRAINS):
            if backlog_bytes <= 0:
                break
            backlog_bytes -= self._take(connection, now_s, waited)
            if self._drained:
                break

    def write(self, connection: Connection, now_s: float) -> None:
        if self._retry_s is not None and now_s < self._retry_s:
            return
        self._retry_s, self._blocked, self._not_before_s = None, False, 0.0
        for _ in range(_BATCHES_PER_TURN):
            frames = connection.offer(now_s)
            if not len(frames):
                return
            taken = self._udp.send(frames)
            connection.sent(taken, now_s)
            if taken < len(frames):
                self._blocked = self._udp.blocked
                if not self._blocked:
                    self._retry_s = now_s + _RETRY_S
                self._not_before_s = now_s + (_BLOCKED_S if self._blocked else _RETRY_S)
                return

    def due_s(self, connection_due_s: float) -> float:
        return max(connection_due_s, self._not_before_s)

    @property
    def blocked(self) -> bool:
        return self._blocked


class UdpCarrier(Carrier):
    """Our own transport: a UDP socket per peer."""

    def __init__(
        self, config: EndpointConfig, sockets: Mapping[str, UdpSocket], hosts: Mapping[str, Host]
    ) -> None:
        """Makes what a user may have written: ValueError where it does not fit."""
        self._config = config
        self._sockets = sockets
        self._hosts = hosts
        wanted = HEADER_BYTES + config.layout.chunk_bytes + TRAILER_BYTES[config.appended]
        for udp in sockets.values():
            if udp.datagram_bytes != wanted:
                raise ValueError(
                    f"the data sockets were opened for datagrams of {udp.datagram_bytes} bytes; "
                    f"this configuration's have {wanted}"
                )
        self._settings = ConnectionSettings(
            session=config.session,
            layout=config.layout,
            repair=REPAIRS.create(config.protocol.repair),
            order=ORDERS.create(config.protocol.order, seed=config.seed),
            peer_timeout_s=config.peer_timeout_s,
            transfers_in_flight=config.transfers_in_flight,
        )
        self._paths = {peer: self._path(peer) for peer in sockets}
        if config.appended == "crc":
            Checksum()  # says that its package is missing before a peer can be blamed for it

    def _path(self, peer: str) -> SendingPath:
        config = self._config
        chunk_bytes = config.layout.chunk_bytes
        more_bytes = (
            TRAILER_BYTES[config.appended] + self._hosts[peer].ip_header_bytes - _COUNTED_BYTES
        )
        congestion = CONGESTION_CONTROLS.create(
            config.protocol.congestion_control,
            rate_bps=config.rate_bps,
            datagram_bytes=wire_bytes(1, chunk_bytes) + more_bytes,
        )
        if congestion.needs_ecn:
            raise ValueError(
                f"congestion control {config.protocol.congestion_control!r} needs congestion "
                "marks and this endpoint's datagrams cannot carry any; choose another"
            )
        return SendingPath(
            congestion=congestion,
            chunk_bytes=chunk_bytes,
            trailer_bytes=more_bytes,
            # Assumes that the peer's buffer has the size of ours.
            receive_buffer_bytes=self._sockets[peer].buffer_bytes,
        )

    @property
    def data_port(self) -> int:
        return self._sockets[SERVER].port

    def connection(
        self, peer: str, now_s: float, *, hello: Hello | None = None, welcome: Welcome | None = None
    ) -> Connection:
        if hello is not None:  # nothing was sent yet if this is another attempt
            path = self._paths[peer]
        else:
            path = self._paths.pop(peer) if peer in self._paths else self._path(peer)
        return Connection(
            peer=peer,
            settings=self._settings,
            path=path,
            now_s=now_s,
            hello=hello,
            welcome=welcome,
        )

    def attach(self, connection: Connection, host: Host, port: int, key: bytes) -> UdpData:
        if not port:
            raise ProtocolError(f"{connection.peer} names no port for its data")
        udp = self._sockets[connection.peer]
        try:
            udp.seal = seal(self._config.appended, key, is_server=self._config.is_server)
        except ValueError as error:
            raise ProtocolError(f"{connection.peer} gave {error}") from None
        if self._config.is_server:
            self._forget(udp)
        udp.set_peer(host.at(port))
        return UdpData(udp)

    def _forget(self, udp: UdpSocket) -> None:
        """Drops what a worker's former self has sent: it would pass for the new one's."""
        udp.seal, seal_ = None, udp.seal
        for _ in range(_MAX_DRAINS):
            if udp.receive()[1]:
                break
        udp.seal = seal_

    def facts(self) -> dict[str, Any]:
        used = {"congestion_control": self._config.protocol.congestion_control}
        return {peer: udp.facts() | used for peer, udp in self._sockets.items()}

    def counters(self) -> Counter[str]:
        return sum((udp.counters for udp in self._sockets.values()), Counter())
