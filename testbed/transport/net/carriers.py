"""What carries the data of an endpoint's connections: our own datagrams, or kernel TCP."""

import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import Any

from testbed.transport.core.connection import Connection
from testbed.transport.core.connection_settings import ConnectionSettings
from testbed.transport.core.messages import Hello, Welcome
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.native import HOT_PATH
from testbed.transport.net.addresses import Host
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.link import DataChannel
from testbed.transport.policies.marks import NONE, sending_order
from testbed.transport.policies.repair import REPAIRS


class Carrier(ABC):
    """Makes connections and their data channels."""

    kind = Connection

    def __init__(
        self, config: EndpointConfig, *, repair: str, order: str, marks: str = NONE
    ) -> None:
        self._config = config
        self._settings = ConnectionSettings(
            session=config.session,
            layout=config.layout,
            repair=REPAIRS.create(repair),
            order=sending_order(order, marks, seed=config.seed),
            peer_timeout_s=config.peer_timeout_s,
            late_s=config.late_s,
            transfers_in_flight=config.transfers_in_flight,
            tensor_by_tensor=config.tensor_by_tensor,
            hot_path=HOT_PATH,
        )

    def connection(
        self, peer: str, now_s: float, *, hello: Hello | None = None, welcome: Welcome | None = None
    ) -> Connection:
        """A new connection with a peer, which may have had one before."""
        return self.kind(
            peer=peer,
            settings=self._settings,
            # Nothing was sent yet where a worker makes another attempt.
            path=self._path(peer, fresh=hello is None),
            now_s=now_s,
            hello=hello,
            welcome=welcome,
        )

    def _path(self, peer: str, *, fresh: bool) -> SendingPath | None:
        """What a connection's datagrams need; `fresh`: one that no connection has used."""
        return None

    @property
    @abstractmethod
    def data_port(self) -> int:
        """A worker's port for its HELLO."""

    @abstractmethod
    def attach(self, connection: Connection, host: Host, port: int, key: bytes) -> DataChannel:
        """The channel of a connection whose peer's port is known."""

    def data_listeners(self) -> Mapping[str, socket.socket]:
        """Server: where each worker's connection for data is accepted, if it needs one."""
        return {}

    def check(self, data: socket.socket) -> None:
        """Server: ProtocolError for a worker's connection to a data listener that will not do."""
        raise NotImplementedError

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
