"""The common part of the UDP and TCP endpoints: joining, announcing, closing."""

import socket
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from testbed.transport.control_connection import ControlConnection
from testbed.transport.control_messages import (
    MAX_ANNOUNCEMENT_BYTES,
    ControlMessage,
    ControlParser,
    Hello,
    MessageType,
    Welcome,
    body_limits,
    check_u32,
)
from testbed.transport.endpoint import SERVER, Endpoint, EndpointConfig
from testbed.transport.errors import ProtocolError, TransportError
from testbed.transport.event_loop import Loop, PeerTransfer
from testbed.transport.handshake import Listener, accept_peers, connect_to_server
from testbed.transport.layout import PayloadLayout
from testbed.transport.tolerance import FractionRule, StopRuleFactory, check_tolerance
from testbed.transport.transfer_report import TransferReport

_LINGER_S = 1.0


class EndpointBase(Endpoint):
    """An endpoint with control connections; subclasses add the data sockets."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._counters: Counter[str] = Counter()
        self._control: dict[str, ControlConnection] = {}
        self._loop: Loop | None = None

    # What subclasses implement.

    @abstractmethod
    def _open_data(self) -> int:
        """Binds the data sockets before the peers join; returns the port for the HELLO."""

    @abstractmethod
    def _data_listeners(self) -> list[Listener]:
        """Server: listeners for data connections, one per worker."""

    @abstractmethod
    def _join_data(self, peer: str, port: int, until_s: float) -> None:
        """Called when the peer has joined and its data port is known; connects if necessary."""

    @abstractmethod
    def _sending(
        self, peer: str, transfer: int, payload: NDArray[np.uint8], now_s: float
    ) -> PeerTransfer:
        """Begins to send to one peer."""

    @abstractmethod
    def _receiving(
        self,
        peer: str,
        transfer: int,
        rule: StopRuleFactory,
        into: NDArray[np.uint8],
        now_s: float,
    ) -> PeerTransfer:
        """Begins to receive from one peer."""

    @abstractmethod
    def _close_data(self) -> None:
        """Closes the data sockets."""

    # The interface of `Endpoint`.

    def open(self) -> None:
        if self._loop is not None:
            return
        try:
            if self._config.is_server:
                self._accept_workers()
            else:
                self._connect_to_server()
        except BaseException:
            self.close()
            raise
        self._loop = Loop(
            self._control,
            peer_timeout_s=self._config.peer_timeout_s,
            counters=self._counters,
            keep_going=self._config.is_server and self._config.survive_peers,
        )

    def _accept_workers(self) -> None:
        config = self._config
        self._open_data()
        until_s = time.monotonic() + config.connect_timeout_s
        listeners: list[Listener] = []
        try:
            listener = Listener(
                address=config.bind_address,
                port=config.control_port,
                expected=config.peers,
                answer=self._answer,
            )
            listeners = [listener]
            listeners += self._data_listeners()
            accept_peers(
                listeners,
                session=config.session,
                addresses=config.peers,
                timeout_s=config.connect_timeout_s,
                counters=self._counters,
            )
        except BaseException:
            for opened in listeners:
                opened.close()
                for connection, _ in opened.arrived.values():
                    connection.close()
            raise
        for name in config.peers:
            connection, hello = listener.arrived[name]
            self._control_connection(name, connection)
            self._join_data(name, hello.data_port, until_s)

    def _answer(self, hello: Hello) -> Welcome:
        """The WELCOME for a worker; ProtocolError when its layout differs."""
        theirs = PayloadLayout.decode(hello.layout)
        difference = self._config.layout.difference(theirs, ("the server", hello.name))
        if difference is not None:
            raise ProtocolError(f"the payload layouts differ: {difference}")
        return Welcome(
            session=self._config.session, data_port=self._config.server_data_port(hello.name)
        )

    def _connect_to_server(self) -> None:
        config = self._config
        until_s = time.monotonic() + config.connect_timeout_s
        hello = Hello(
            session=config.session,
            name=config.name,
            data_port=self._open_data(),
            layout=config.layout.encode(),
        )
        connection, welcome = connect_to_server(
            address=config.peers[SERVER],
            port=config.control_port,
            bind_address=config.bind_address,
            hello=hello,
            until_s=until_s,
        )
        self._control_connection(SERVER, connection)
        self._join_data(SERVER, welcome.data_port, until_s)

    def _control_connection(self, name: str, connection: socket.socket) -> None:
        limits = body_limits(self._config.layout.chunk_count)
        if self._config.is_server:
            del limits[MessageType.ANNOUNCE]
        control = ControlConnection(peer=name, connection=connection, parser=ControlParser(limits))
        control.give_up_after(self._config.peer_timeout_s)
        self._control[name] = control

    def send(
        self, transfer: int, payloads: Mapping[str, NDArray[np.uint8]]
    ) -> dict[str, TransferReport]:
        return self._transfer_all(
            transfer,
            payloads,
            lambda peer, now_s: self._sending(peer, transfer, payloads[peer], now_s),
        )

    def receive(
        self,
        transfer: int,
        tolerance: float | StopRuleFactory,
        into: Mapping[str, NDArray[np.uint8]],
    ) -> dict[str, TransferReport]:
        rule = tolerance if callable(tolerance) else _fraction(tolerance)
        return self._transfer_all(
            transfer,
            into,
            lambda peer, now_s: self._receiving(peer, transfer, rule, into[peer], now_s),
        )

    def _transfer_all(
        self,
        transfer: int,
        buffers: Mapping[str, NDArray[np.uint8]],
        begin: Callable[[str, float], PeerTransfer],
    ) -> dict[str, TransferReport]:
        loop = self._joined()
        check_u32("transfer", transfer)
        for peer in buffers:
            if peer not in self._control:
                raise ValueError(f"unknown peer {peer!r}; valid: {', '.join(self._control)}")
            if peer not in loop.lost:
                loop.check_transfer(peer, transfer)
        now_s = time.monotonic()
        peer_transfers = {peer: begin(peer, now_s) for peer in buffers if peer not in loop.lost}
        loop.run(peer_transfers)
        reports = {
            peer: peer_transfer.report()
            for peer, peer_transfer in peer_transfers.items()
            if peer not in loop.lost
        }
        for report in reports.values():
            self._counters.update(report.ignored)
        return reports

    @property
    def lost(self) -> dict[str, str]:
        return dict(self._joined().lost)

    def announce(self, body: bytes) -> None:
        loop = self._joined()
        if not self._config.is_server:
            raise TransportError("only the server announces")
        if len(body) > MAX_ANNOUNCEMENT_BYTES:
            raise ValueError(
                f"an announcement of {len(body)} bytes; valid: at most {MAX_ANNOUNCEMENT_BYTES}"
            )
        for name, connection in self._control.items():
            if name not in loop.lost:
                connection.send([ControlMessage(MessageType.ANNOUNCE, body=body)])
        loop.flush()

    def await_announcement(self) -> bytes:
        loop = self._joined()
        if self._config.is_server:
            raise TransportError("the server makes the announcements")
        return loop.announcement(SERVER)

    def counters(self) -> dict[str, int]:
        return {reason: count for reason, count in self._counters.items() if count}

    def close(self) -> None:
        for connection in self._control.values():
            connection.finish()
        until_s = time.monotonic() + _LINGER_S
        for connection in self._control.values():
            connection.close(until_s)
        self._control.clear()
        self._close_data()
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _joined(self) -> Loop:
        if self._loop is None:
            raise TransportError("the endpoint is not open")
        return self._loop


def _fraction(tolerance: float) -> StopRuleFactory:
    check_tolerance(tolerance)
    return lambda layout: FractionRule(chunk_count=layout.chunk_count, tolerance=tolerance)
