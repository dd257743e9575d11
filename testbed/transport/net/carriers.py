"""Carriers of the data of an endpoint's connections: our own datagrams, or kernel TCP."""

import math
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal

from testbed.transport.congestion import CONGESTION_CONTROLS
from testbed.transport.connection import Connection
from testbed.transport.errors import ProtocolError
from testbed.transport.joining import SERVER
from testbed.transport.messages import (
    Cipher,
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
)
from testbed.transport.native.fast_path import FAST_PATH
from testbed.transport.net import tcp
from testbed.transport.net.addresses import IP_HEADER_BYTES, Host, check_chunk_fits, too_large
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.control import listen
from testbed.transport.net.driver import DataChannel
from testbed.transport.net.tls import authentication
from testbed.transport.net.udp import UdpData, UdpSocket
from testbed.transport.order import sending_order
from testbed.transport.repair import REPAIRS
from testbed.transport.sending_path import SendingPath
from testbed.transport.settings import ConnectionSettings
from testbed.transport.wire import HEADER_BYTES, wire_bytes

_COUNTED_BYTES = IP_HEADER_BYTES[socket.AF_INET]  # in `wire_bytes`


# An endpoint's data sockets by peer: a UdpSocket each, or a TCP socket each. They are opened before
# anything else: their large buffers need CAP_NET_ADMIN, a privilege that a process may drop before
# it runs a user's own code.
DataSockets = Mapping[str, Any]


def connection_settings(config: EndpointConfig) -> ConnectionSettings:
    protocol = config.protocol
    keep = protocol.keep if protocol.carrier == "udp" else 1.0  # `tcp.Selected` selects
    return ConnectionSettings(
        session=config.session,
        layout=config.layout,
        repair=REPAIRS.create(protocol.repair),
        order=sending_order(protocol.order, protocol.marks, keep, seed=config.seed),
        peer_timeout_s=config.peer_timeout_s,
        late_s=config.late_s,
        transfers_in_flight=config.transfers_in_flight,
        tensor_by_tensor=config.tensor_by_tensor,
        control_datagrams=protocol.control == "datagrams",
        fast_path=FAST_PATH,
    )


def sending_path(
    config: EndpointConfig, *, more_bytes: int, receive_buffer_bytes: float = math.inf
) -> SendingPath:
    """Makes what one connection sends by; its datagrams have more bytes than `wire_bytes` has."""
    chunk_bytes = config.layout.chunk_bytes
    congestion = CONGESTION_CONTROLS.create(
        config.protocol.congestion_control,
        rate_bps=config.rate_bps,
        datagram_bytes=wire_bytes(1, chunk_bytes) + more_bytes,
    )
    return SendingPath(
        congestion=congestion,
        chunk_bytes=chunk_bytes,
        trailer_bytes=more_bytes,
        tag_bytes=config.tag_bytes,
        receive_buffer_bytes=receive_buffer_bytes,
        quantum_s=config.quantum_s,
        queue_bytes=config.queue_bytes,
    )


class Carrier(ABC):
    kind = Connection
    data_port = 0  # a worker's port for its HELLO
    # The server's: where each worker's connection for data is accepted, if it needs one.
    listeners: Mapping[str, socket.socket] = {}

    def __init__(
        self, config: EndpointConfig, sockets: DataSockets, local: Host, hosts: Mapping[str, Host]
    ) -> None:
        self._config, self._sockets = config, sockets
        self._local, self._hosts = local, hosts
        self._settings = connection_settings(config)

    def connection(
        self, peer: str, now_s: float, *, hello: Hello | None = None, welcome: Welcome | None = None
    ) -> Connection:
        path, settings = self._path(peer), self._settings
        return self.kind(
            peer=peer, settings=settings, path=path, now_s=now_s, hello=hello, welcome=welcome
        )

    def _path(self, peer: str) -> SendingPath | None:
        return None

    @abstractmethod
    def attach(
        self, connection: Connection, port: int, key: bytes, cipher: int = Cipher.BLAKE2B
    ) -> DataChannel:
        """Makes the data channel of a connection, to the peer's port."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """See `Endpoint.facts`."""

    def counters(self) -> Counter[str]:
        return Counter()

    def close(self) -> None:  # noqa: B027 - optional to override
        """Closes what it has opened itself."""


class UdpCarrier(Carrier):
    def __init__(
        self, config: EndpointConfig, sockets: DataSockets, local: Host, hosts: Mapping[str, Host]
    ) -> None:
        """ValueError where a user's own congestion control or the sockets do not fit."""
        super().__init__(config, sockets, local, hosts)
        datagram_bytes = HEADER_BYTES + config.layout.chunk_bytes + config.tag_bytes
        for udp in sockets.values():
            if udp.datagram_bytes != datagram_bytes:
                raise ValueError(
                    f"the data sockets were opened for datagrams of {udp.datagram_bytes} bytes; "
                    f"this configuration's have {datagram_bytes}"
                )
        for peer in sockets:
            self._path(peer)
        if not config.is_server:
            self.data_port = sockets[SERVER].port

    def _path(self, peer: str) -> SendingPath:
        more_bytes = IP_HEADER_BYTES[self._hosts[peer].family] - _COUNTED_BYTES
        # Assumes that the peer's buffer has the size of ours.
        return sending_path(
            self._config,
            more_bytes=self._config.tag_bytes + more_bytes,
            receive_buffer_bytes=self._sockets[peer].buffer_bytes,
        )

    def attach(
        self, connection: Connection, port: int, key: bytes, cipher: int = Cipher.BLAKE2B
    ) -> UdpData:
        if not port:
            raise ProtocolError(f"{connection.peer} names no port for its data")
        config, udp = self._config, self._sockets[connection.peer]
        host = self._hosts[connection.peer]
        if config.is_server:
            udp.drain()  # what a worker sent before it joined again would pass for new datagrams
        if config.tag_bytes:
            if cipher > config.cipher:
                raise ProtocolError(f"WELCOME with cipher {cipher}; valid: up to {config.cipher}")
            udp.seal = authentication(
                key, is_server=config.is_server, cipher=cipher, session=config.session
            )
        udp.set_peer(host.at(port))
        # Arrivals may coalesce until half the buffer is full, at the rate of this side.
        rate_bps, chunk_bytes = config.rate_bps, config.layout.chunk_bytes
        return UdpData(
            udp,
            coalesce_s=math.inf if math.isinf(rate_bps) else udp.buffer_bytes / 2 / (rate_bps / 8),
            measured=config.protocol.measures,
            leave_out=config.leave_out,
            too_large=lambda: too_large(
                chunk_bytes, local=self._local, peer=host, trailer_bytes=config.tag_bytes
            ),
        )

    def facts(self) -> dict[str, Any]:
        used = {
            "congestion_control": self._config.protocol.congestion_control,
            "compiled": FAST_PATH.compiled,
        }
        return {peer: udp.facts() | used for peer, udp in self._sockets.items()}

    def counters(self) -> Counter[str]:
        return sum((udp.counters for udp in self._sockets.values()), Counter())


class TcpCarrier(Carrier):
    kind = tcp.TcpConnection

    def __init__(
        self, config: EndpointConfig, sockets: DataSockets, local: Host, hosts: Mapping[str, Host]
    ) -> None:
        super().__init__(config, sockets, local, hosts)
        self.listeners = sockets if config.is_server else {}
        self._channels: dict[str, tcp.TcpData] = {}

    def attach(
        self, connection: Connection, port: int, key: bytes, cipher: int = Cipher.BLAKE2B
    ) -> DataChannel:
        """Connects a worker to the server's port for its data."""
        config = self._config
        data = self._sockets[connection.peer]
        hello = Hello(session=config.session, name=config.name, terms=config.terms)
        try:
            data.settimeout(config.connect_timeout_s)
            data.bind(self._local.at(0))
            data.connect(self._hosts[connection.peer].at(port))
            self.check(data)
            data.sendall(hello.message().encode())
            _await_welcome(data)
        except OSError as error:
            raise ProtocolError(f"no connection for data: {error.strerror or error}") from None
        return self.accepted(connection, data)

    def check(self, data: socket.socket) -> None:
        tcp.check_congestion_control(data, self._config.protocol.congestion_control)

    def accepted(self, connection: Connection, data: socket.socket) -> DataChannel:
        """Makes the channel of a connection that has its connection for data."""
        if (previous := self._channels.pop(connection.peer, None)) is not None:
            previous.socket.close()
        channel = self._channels[connection.peer] = tcp.TcpData(
            connection, data, tcp.compression_of(self._config.protocol)
        )
        return channel

    def facts(self) -> dict[str, Any]:
        return {
            peer: {"congestion_control": tcp.get_congestion_control(channel.socket)}
            for peer, channel in self._channels.items()
        }

    def close(self) -> None:
        for channel in self._channels.values():
            channel.socket.close()


def _await_welcome(connection: socket.socket) -> None:
    """Waits for the server's answer; ProtocolError when there is none, or it refuses."""
    kinds = (MessageType.WELCOME, MessageType.REFUSED)
    parser = ControlParser({kind: body_limits(1)[kind] for kind in kinds})
    messages: list[ControlMessage] = []
    while not messages:
        # Data may follow the WELCOME at once, and must stay in the socket.
        data = connection.recv(parser.missing_bytes)
        if not data:
            raise ProtocolError("the connection for data was closed without a WELCOME")
        messages = parser.feed(data)
    if messages[0].type is MessageType.REFUSED:
        reason = messages[0].body.decode(errors="replace")
        raise ProtocolError(f"the server refused the connection for data: {reason}")


def open_data_sockets(
    *,
    carrier: Literal["udp", "tcp"],
    local: Host,
    peers: Mapping[str, Host],
    ports: Mapping[str, int],
    is_server: bool,
    chunk_bytes: int,
    tag_bytes: int = 0,
    segmentation: bool = True,
    congestion_control: str = "",
) -> DataSockets:
    """Binds a socket per peer; `ports` are this side's."""
    opened: dict[str, Any] = {}
    with ExitStack() as on_failure:
        for peer, host in peers.items():
            if carrier == "tcp":
                data = on_failure.enter_context(socket.socket(local.family, socket.SOCK_STREAM))
                tcp.set_congestion_control(data, congestion_control)
                if is_server:
                    listen(data, local.at(ports[peer]))
                opened[peer] = data
                continue
            check_chunk_fits(chunk_bytes, local=local, peer=host, trailer_bytes=tag_bytes)
            udp = opened[peer] = UdpSocket(
                local=local.at(ports[peer]),
                datagram_bytes=HEADER_BYTES + chunk_bytes + tag_bytes,
                segmentation=segmentation,
            )
            on_failure.callback(udp.close)
        on_failure.pop_all()
    return opened
