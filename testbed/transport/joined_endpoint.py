"""What every endpoint has in common, whatever carries its data: joining, announcing, closing."""

import socket
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from testbed.transport.control import (
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
from testbed.transport.event_loop import Exchange, Loop
from testbed.transport.joining import Door, await_peers, seek_server
from testbed.transport.layout import PayloadLayout
from testbed.transport.links import ControlLink
from testbed.transport.tolerance import FractionRule, StopRuleFactory, check_tolerance
from testbed.transport.transfer_report import TransferReport

_LINGER_S = 1.0


class JoinedEndpoint(Endpoint):
    """An endpoint with control connections; subclasses add what carries the data."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._counters: Counter[str] = Counter()
        self._links: dict[str, ControlLink] = {}
        self._loop: Loop | None = None

    # What a carrier has to add.

    @abstractmethod
    def _open_data(self) -> int:
        """Binds the data sockets before anybody joins; returns the port for the HELLO."""

    @abstractmethod
    def _data_doors(self) -> list[Door]:
        """Server: further doors, one connection of each worker at its own."""

    @abstractmethod
    def _join_data(self, peer: str, port: int, until_s: float) -> None:
        """The peer has joined and its data port is known; connects there if need be."""

    @abstractmethod
    def _sending(
        self, peer: str, transfer: int, payload: NDArray[np.uint8], now_s: float
    ) -> Exchange:
        """Begins to send to one peer."""

    @abstractmethod
    def _receiving(
        self,
        peer: str,
        transfer: int,
        rule: StopRuleFactory,
        into: NDArray[np.uint8],
        now_s: float,
    ) -> Exchange:
        """Begins to receive from one peer."""

    @abstractmethod
    def _close_data(self) -> None:
        """Closes the data sockets."""

    # The interface.

    def open(self) -> None:
        if self._loop is not None:
            return
        try:
            if self._config.is_server:
                self._await_workers()
            else:
                self._seek_server()
        except BaseException:
            self.close()
            raise
        self._loop = Loop(
            self._links,
            peer_timeout_s=self._config.peer_timeout_s,
            counters=self._counters,
            keep_going=self._config.is_server and self._config.survive_peers,
        )

    def _await_workers(self) -> None:
        config = self._config
        self._open_data()
        until_s = time.monotonic() + config.connect_timeout_s
        doors: list[Door] = []
        try:
            door = Door(
                address=config.bind_address,
                port=config.control_port,
                expected=config.peers,
                answer=self._answer,
            )
            doors = [door]
            doors += self._data_doors()
            await_peers(
                doors,
                session=config.session,
                addresses=config.peers,
                timeout_s=config.connect_timeout_s,
                counters=self._counters,
            )
        except BaseException:
            for opened in doors:
                opened.close()
                for connection, _ in opened.arrived.values():
                    connection.close()
            raise
        for name in config.peers:
            connection, hello = door.arrived[name]
            self._link(name, connection)
            self._join_data(name, hello.data_port, until_s)

    def _answer(self, hello: Hello) -> Welcome:
        """The WELCOME of a worker; ProtocolError when its layout is another."""
        theirs = PayloadLayout.decode(hello.layout)
        difference = self._config.layout.difference(theirs, ("the server", hello.name))
        if difference is not None:
            raise ProtocolError(f"the payload layouts differ: {difference}")
        return Welcome(
            session=self._config.session, data_port=self._config.server_data_port(hello.name)
        )

    def _seek_server(self) -> None:
        config = self._config
        until_s = time.monotonic() + config.connect_timeout_s
        hello = Hello(
            session=config.session,
            name=config.name,
            data_port=self._open_data(),
            layout=config.layout.encode(),
        )
        connection, welcome = seek_server(
            address=config.peers[SERVER],
            port=config.control_port,
            bind_address=config.bind_address,
            hello=hello,
            until_s=until_s,
        )
        self._link(SERVER, connection)
        self._join_data(SERVER, welcome.data_port, until_s)

    def _link(self, name: str, connection: socket.socket) -> None:
        limits = body_limits(self._config.layout.chunk_count)
        if self._config.is_server:
            del limits[MessageType.ANNOUNCE]
        link = ControlLink(peer=name, connection=connection, parser=ControlParser(limits))
        link.give_up_after(self._config.peer_timeout_s)
        self._links[name] = link

    def send(
        self, transfer: int, payloads: Mapping[str, NDArray[np.uint8]]
    ) -> dict[str, TransferReport]:
        return self._exchange(
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
        return self._exchange(
            transfer,
            into,
            lambda peer, now_s: self._receiving(peer, transfer, rule, into[peer], now_s),
        )

    def _exchange(
        self,
        transfer: int,
        buffers: Mapping[str, NDArray[np.uint8]],
        begin: Callable[[str, float], Exchange],
    ) -> dict[str, TransferReport]:
        loop = self._joined()
        check_u32("transfer", transfer)
        for peer in buffers:
            if peer not in self._links:
                raise ValueError(f"unknown peer {peer!r}; valid: {', '.join(self._links)}")
            if peer not in loop.lost:
                loop.check_transfer(peer, transfer)
        now_s = time.monotonic()
        exchanges = {peer: begin(peer, now_s) for peer in buffers if peer not in loop.lost}
        loop.run(exchanges)
        reports = {
            peer: exchange.report() for peer, exchange in exchanges.items() if peer not in loop.lost
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
        for name, link in self._links.items():
            if name not in loop.lost:
                link.send([ControlMessage(MessageType.ANNOUNCE, body=body)])
        loop.flush()

    def await_announcement(self) -> bytes:
        loop = self._joined()
        if self._config.is_server:
            raise TransportError("the server makes the announcements")
        return loop.announcement(SERVER)

    def counters(self) -> dict[str, int]:
        return {reason: count for reason, count in self._counters.items() if count}

    def close(self) -> None:
        for link in self._links.values():
            link.finish()
        until_s = time.monotonic() + _LINGER_S
        for link in self._links.values():
            link.close(until_s)
        self._links.clear()
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
