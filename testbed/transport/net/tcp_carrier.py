"""Opens the data connections of the protocol `tcp`.

The congestion control is set by name and read back, because systems differ in their default.
"""

import socket
from collections.abc import Mapping
from typing import Any

from testbed.transport.core.connection import Connection
from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.messages import (
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    body_limits,
)
from testbed.transport.net.addresses import Host
from testbed.transport.net.carriers import Carrier
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.link import DataChannel
from testbed.transport.net.tcp_compression import compression_of
from testbed.transport.net.tcp_data import TcpConnection, TcpData
from testbed.transport.net.tcp_socket import (
    DataSocket,
    check_congestion_control,
    get_congestion_control,
)


class TcpCarrier(Carrier):
    """One kernel TCP connection per peer for data."""

    kind = TcpConnection

    def __init__(
        self,
        config: EndpointConfig,
        sockets: Mapping[str, socket.socket],
        local: Host,
    ) -> None:
        super().__init__(config, repair="passes", order="in-order")
        self._sockets = sockets
        self._local = local
        self._channels: dict[str, TcpData] = {}

    @property
    def data_port(self) -> int:
        return 0

    def attach(self, connection: Connection, host: Host, port: int, key: bytes) -> DataChannel:
        """Worker: connects to the server's port for its data."""
        config = self._config
        data = self._sockets[connection.peer]
        hello = Hello(session=config.session, name=config.name, terms=config.terms)
        try:
            data.settimeout(config.connect_timeout_s)
            data.bind(self._local.at(0))
            data.connect(host.at(port))
            self.check(data)
            data.sendall(hello.message().encode())
            _await_welcome(data)
        except OSError as error:
            raise ProtocolError(f"no connection for data: {error.strerror or error}") from None
        return self.accepted(connection, data)

    def data_listeners(self) -> Mapping[str, socket.socket]:
        return self._sockets

    def check(self, data: socket.socket) -> None:
        check_congestion_control(data, self._config.protocol.congestion_control)

    def accepted(self, connection: Connection, data: socket.socket) -> DataChannel:
        previous = self._channels.pop(connection.peer, None)
        if previous is not None:
            previous.socket.close()
        channel = self._channels[connection.peer] = TcpData(
            connection, DataSocket(data), compression_of(self._config.protocol)
        )
        return channel

    def facts(self) -> dict[str, Any]:
        return {
            peer: {"congestion_control": get_congestion_control(channel.socket)}
            for peer, channel in self._channels.items()
        }

    def close(self) -> None:
        for channel in self._channels.values():
            channel.socket.close()


def _await_welcome(connection: socket.socket) -> None:
    """Waits for the server's answer; ProtocolError when there is none, or it refuses."""
    kinds = (MessageType.WELCOME, MessageType.REFUSED)
    parser = ControlParser({kind: body_limits(1)[kind] for kind in kinds})
    said: list[ControlMessage] = []
    while not said:
        # Data may follow the WELCOME at once; their bytes must stay in the socket.
        data = connection.recv(parser.missing_bytes)
        if not data:
            raise ProtocolError("the connection for data was closed without a WELCOME")
        said = parser.feed(data)
    if said[0].type is MessageType.REFUSED:
        reason = said[0].body.decode(errors="replace")
        raise ProtocolError(f"the server refused the connection for data: {reason}")
