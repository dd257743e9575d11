"""What carries the data of an endpoint's connections: our own datagrams, or kernel TCP."""

import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

from testbed.transport.core.connection import Connection
from testbed.transport.core.messages import Hello, Welcome
from testbed.transport.net.addresses import Host
from testbed.transport.net.driver import DataChannel


class Carrier(ABC):
    """Makes connections and their data channels."""

    @abstractmethod
    def connection(
        self, peer: str, now_s: float, *, hello: Hello | None = None, welcome: Welcome | None = None
    ) -> Connection:
        """A new connection with a peer, which may have had one before."""

    @property
    @abstractmethod
    def data_port(self) -> int:
        """A worker's port for its HELLO."""

    @abstractmethod
    def attach(self, connection: Connection, host: Host, port: int, key: bytes) -> DataChannel:
        """The channel of a connection whose peer's port is known.

        ProtocolError when the port or the key cannot be used.
        """

    def data_listeners(self) -> Mapping[str, socket.socket]:
        """Server: where each worker's connection for data is accepted, if it needs one."""
        return {}

    def accepted(self, connection: Connection, data: socket.socket) -> DataChannel:
        """Server: the channel of a connection whose worker has connected to a data listener."""
        raise NotImplementedError

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """See `Endpoint.facts`."""

    def counters(self) -> Counter[str]:
        """Datagrams that the sockets ignored, by reason."""
        return Counter()

    def close(self) -> None:  # noqa: B027 - optional to override
        """Closes what it has opened itself."""
