"""The protocol `tcp`: the same payloads over one plain kernel TCP connection per peer.

The congestion control is set by name on every socket and read back, because systems differ in
their default.
"""

import socket
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.transport.control_messages import Hello, Welcome
from testbed.transport.endpoint import SERVER, Endpoint, EndpointConfig
from testbed.transport.handshake import Listener, connect_to_server
from testbed.transport.tcp_socket import (
    check_congestion_control,
    get_congestion_control,
    new_socket,
)
from testbed.transport.tcp_transfer import DataConnection, TcpReceiving, TcpSending
from testbed.transport.tolerance import StopRuleFactory


class TcpEndpoint(Endpoint):
    """One kernel TCP connection per peer for data."""

    def __init__(self, config: EndpointConfig) -> None:
        super().__init__(config)
        self._algorithm = config.protocol.congestion_control
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[str, DataConnection] = {}
        self._opened = dict(zip(config.peers, config.sockets, strict=False))

    def _open_data(self) -> int:
        for peer in self._config.peers:  # finds an unknown algorithm before any peer waits
            if peer not in self._opened:
                self._opened[peer] = new_socket(self._algorithm)
        return 0

    def _data_listeners(self) -> list[Listener]:
        self._listeners = {peer: self._listener(peer) for peer in self._config.peers}
        return list(self._listeners.values())

    def _listener(self, peer: str) -> Listener:
        port = self._config.server_data_port(peer)
        return Listener(
            address=self._config.bind_address,
            port=port,
            expected=[peer],
            answer=lambda _: Welcome(session=self._config.session, data_port=port),
            new_socket=lambda: self._new_socket(peer),
        )

    def _new_socket(self, peer: str) -> socket.socket:
        return self._opened.pop(peer, None) or new_socket(self._algorithm)

    def _join_data(self, peer: str, port: int, until_s: float) -> None:
        config = self._config
        if config.is_server:
            connection, _ = self._listeners[peer].arrived[peer]
        else:
            connection, _ = connect_to_server(
                address=config.peers[SERVER],
                port=port,
                bind_address=config.bind_address,
                hello=Hello(session=config.session, name=config.name),
                until_s=until_s,
                new_socket=lambda: self._new_socket(peer),
            )
        self._connections[peer] = DataConnection(connection)
        check_congestion_control(connection, self._algorithm)

    def _common(self, peer: str, transfer: int, now_s: float) -> Mapping[str, Any]:
        return {
            "peer": peer,
            "transfer": transfer,
            "session": self._config.session,
            "layout": self._config.layout,
            "connection": self._connections[peer],
            "now_s": now_s,
        }

    def _sending(
        self, peer: str, transfer: int, payload: NDArray[np.uint8], now_s: float
    ) -> TcpSending:
        self._config.layout.rows(payload)  # checks the size
        return TcpSending(payload=payload, **self._common(peer, transfer, now_s))

    def _receiving(
        self, peer: str, transfer: int, rule: StopRuleFactory, into: NDArray[np.uint8], now_s: float
    ) -> TcpReceiving:
        """Ignores the stop rule: TCP delivers everything, which satisfies every rule."""
        self._config.layout.rows(into)
        return TcpReceiving(into=into, **self._common(peer, transfer, now_s))

    def facts(self) -> dict[str, Any]:
        return {
            peer: {"congestion_control": get_congestion_control(connection.socket)}
            for peer, connection in self._connections.items()
        }

    def _close_data(self) -> None:
        for unused in self._opened.values():
            unused.close()
        for connection in self._connections.values():
            connection.socket.close()
