"""Membership: the server admits workers, a worker joins the server, now and again later."""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from testbed.transport.errors import PeerLost, ProtocolError
from testbed.transport.events import Event, Joined, PeerGone
from testbed.transport.joining import SERVER, Admission, UnknownSenderError
from testbed.transport.messages import (
    KEY_BYTES,
    Cipher,
    Hello,
    MessageType,
    Welcome,
    reason_message,
)
from testbed.transport.net.addresses import Host, in_words, resolve
from testbed.transport.net.carriers import (
    Carrier,
    DataSockets,
    TcpCarrier,
    UdpCarrier,
    open_data_sockets,
)
from testbed.transport.net.config import EndpointConfig
from testbed.transport.net.control import (
    Arrival,
    ControlSocket,
    Listener,
    Rejections,
    Stream,
    connected,
    limit_segments,
    listen,
)
from testbed.transport.net.driver import Driver, Link
from testbed.transport.net.tls import Tls

_RETRY_S = 0.05
_NO_WELCOME = (
    "the connection was closed without a WELCOME; is it another run's server, does it expect "
    "another name or address, or has only one side credentials?"
)


class Membership:
    def __init__(
        self,
        config: EndpointConfig,
        driver: Driver,
        counters: Counter[str],
        on_event: Callable[[str, Event], None],
        sockets: DataSockets | None,
    ) -> None:
        """`on_event` is called with PeerGone for a peer that joins again, and Joined for each."""
        self._config = config
        self._driver = driver
        self._rejections = Rejections(counters)
        self._on_event = on_event
        self._sockets = sockets
        self._carrier: Carrier | None = None
        self._hosts: dict[str, Host] = {}
        self._admission: Admission | None = None
        self._refused: ProtocolError | None = None
        self._started = False
        # The state of kernel TCP is read from outside.
        self._observer = None if config.protocol.carrier == "tcp" else config.observer

    def open(self) -> None:
        config = self._config
        local = resolve(config.bind_address, what="bind_address")
        self._hosts = {
            peer: resolve(address, local.family, what=f"peers: {peer}")
            for peer, address in config.peers.items()
        }
        self._require_safety(local)
        if self._sockets is None:
            self._sockets = open_data_sockets(
                carrier=config.protocol.carrier,
                local=local,
                peers=self._hosts,
                ports={peer: config.local_data_port(peer) for peer in config.peers},
                is_server=config.is_server,
                chunk_bytes=config.layout.chunk_bytes,
                tag_bytes=config.tag_bytes,
                segmentation=config.segmentation,
                congestion_control=config.protocol.congestion_control,
            )
        # Here a user's own code is run for the first time.
        kind = TcpCarrier if config.protocol.carrier == "tcp" else UdpCarrier
        self._carrier = kind(config, self._sockets, local, self._hosts)
        if config.is_server:
            self._accept_workers(local)
        else:
            self._connect_to_server(local)

    def _require_safety(self, local: Host) -> None:
        config = self._config
        if config.credentials is not None or config.insecure:
            return
        if not all(host.is_loopback for host in (local, *self._hosts.values())):
            raise ValueError(
                "without credentials whoever reads the traffic can forge data; give each side "
                "credentials (python -m testbed.transport.net.keys --help), or insecure=True where "
                "nobody else is on the network"
            )

    def _tls(self) -> Tls | None:
        credentials = self._config.credentials
        return None if credentials is None else credentials.tls(is_server=self._config.is_server)

    def _control_socket(self, stream: Stream, key: bytes) -> ControlSocket | None:
        config = self._config
        if config.protocol.control != "datagrams":
            return None
        try:
            return ControlSocket(stream.ends, key=key, is_server=config.is_server)
        except OSError:  # another socket has that port, or the peer is gone: TCP carries all
            return None

    # The server's side.

    def _accept_workers(self, local: Host) -> None:
        config = self._config
        assert self._carrier is not None
        self._tls()  # finds files that cannot be used before any worker comes
        self._admission = Admission(names=self._hosts, layout=config.layout, terms=config.terms)
        control = socket.socket(local.family, socket.SOCK_STREAM)
        new_listener = partial(Listener, session=config.session, rejections=self._rejections)
        listeners = self._driver.listeners
        listeners.append(new_listener(control, judge=self._judge, tls=self._tls))
        limit_segments(control)
        listen(control, local.at(config.control_port))
        for peer, listener in self._carrier.listeners.items():
            listeners.append(new_listener(listener, judge=partial(self._judge_data, peer)))
        everyone = set(config.peers)
        until_s = time.monotonic() + config.connect_timeout_s
        self._driver.run(lambda: self._joined == everyone or self._refused is not None, until_s)
        if self._refused is not None:
            raise self._refused
        if missing := sorted(everyone - self._joined):
            rejected = f"; turned away: {self._rejections}" if str(self._rejections) else ""
            raise PeerLost(
                ", ".join(missing), f"did not join within {config.connect_timeout_s:g} s{rejected}"
            )
        self._started = True
        for name in config.peers:
            self._start(name)
        self._driver.run(lambda: True)

    def _start(self, name: str) -> None:
        self._driver.links[name].connection.start(time.monotonic())
        self._driver.notify(name)

    def _admit(self, hello: Hello, arrival: Arrival, admission: Admission) -> None:
        host = self._hosts.get(hello.name)
        at_home = host is not None and host.is_source(arrival.address)
        admission.judge(hello, at_home=at_home, identity=arrival.stream.identity)

    def _judge(self, hello: Hello, arrival: Arrival) -> None:
        """Admits a worker, or refuses it with the reason; UnknownSenderError for anyone else."""
        assert self._admission is not None and self._carrier is not None
        name, config, stream = hello.name, self._config, arrival.stream
        now_s = time.monotonic()
        key = os.urandom(KEY_BYTES) if config.tag_bytes else b""
        cipher = min(hello.cipher, config.cipher)
        try:
            self._admit(hello, arrival, self._admission)
            connection = self._carrier.connection(
                name, now_s, welcome=self._welcome(name, key, cipher)
            )
            whole_by_s = now_s + config.connect_timeout_s
            link = Link(connection, stream, observer=self._observer, whole_by_s=whole_by_s)
            if name not in self._carrier.listeners:
                link.data = self._carrier.attach(connection, hello.data_port, key, cipher)
                link.datagrams = self._control_socket(stream, key)
        except ProtocolError as error:
            self._refuse(name, arrival, error)
            return
        if name in self._driver.links:
            self._on_event(name, PeerGone("it has joined again"))
        stream.set_timeout(config.peer_timeout_s)
        self._driver.links[name] = link
        if link.has_data:
            self._complete(name)

    def _welcome(self, name: str, key: bytes = b"", cipher: int = Cipher.BLAKE2B) -> Welcome:
        config = self._config
        port = config.local_data_port(name)
        return Welcome(session=config.session, data_port=port, key=key, cipher=cipher)

    def _refuse(self, name: str, arrival: Arrival, error: ProtocolError) -> None:
        arrival.stream.write(reason_message(MessageType.REFUSED, str(error)).encode())
        self._driver.close_later(arrival.stream)
        self._rejections.add("refused", arrival, name)
        if not self._started:
            self._refused = ProtocolError(f"{name} cannot join: {error}")

    def _judge_data(self, peer: str, hello: Hello, arrival: Arrival) -> None:
        assert isinstance(self._carrier, TcpCarrier)
        self._admit(hello, arrival, Admission(names=(peer,), terms=self._config.terms))
        link = self._driver.links.get(peer)
        if link is None or link.has_data:
            raise UnknownSenderError("twice", hello.name)
        try:
            self._carrier.check(arrival.connection)
        except ProtocolError as error:
            self._refuse(peer, arrival, error)
            return
        arrival.stream.write(self._welcome(peer).message().encode())
        link.data = self._carrier.accepted(link.connection, arrival.connection)
        self._complete(peer)

    @property
    def _joined(self) -> set[str]:
        return {name for name, link in self._driver.links.items() if link.has_data}

    def _complete(self, name: str) -> None:
        self._on_event(name, Joined(0, b""))
        if self._started:
            self._start(name)

    # A worker's side.

    def _connect_to_server(self, local: Host) -> None:
        config = self._config
        assert self._carrier is not None
        address = self._hosts[SERVER].at(config.control_port)
        hello = Hello(
            session=config.session,
            name=config.name,
            data_port=self._carrier.data_port,
            terms=config.terms,
            layout=config.layout.encode(),
            cipher=config.cipher,
        )
        until_s = time.monotonic() + config.connect_timeout_s
        problem, answer = "no answer in time", ""
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                connection = connected(local, address, left_s)
            except OSError as error:
                problem = error.strerror or problem
            else:
                answer = self._join(connection, hello, until_s) or answer
                if SERVER in self._joined:
                    return
            time.sleep(max(0.0, min(_RETRY_S, until_s - time.monotonic())))
        raise PeerLost(SERVER, f"could not join it at {in_words(address)}: {answer or problem}")

    def _join(self, opened: socket.socket, hello: Hello, until_s: float) -> str:
        """Sends HELLO; returns how the server refused it, "" if it did not."""
        assert self._carrier is not None
        stream = Stream(opened, self._tls())
        stream.set_timeout(self._config.peer_timeout_s)
        connection = self._carrier.connection(SERVER, time.monotonic(), hello=hello)
        self._driver.links[SERVER] = Link(connection, stream, observer=self._observer)
        self._driver.run(lambda: SERVER in self._joined or connection.lost is not None, until_s)
        if (lost := connection.lost) is None:
            if SERVER not in self._joined:
                self._driver.end(SERVER)
            return ""
        if lost.startswith("it refused: "):
            raise ProtocolError("the server refused: " + lost.removeprefix("it refused: "))
        closed = lost in ("the connection was closed", "the connection was reset")
        return _NO_WELCOME if closed else lost

    def on_event(self, peer: str, event: Event) -> None:
        """Attaches a worker's data channel once the server has admitted it."""
        if not isinstance(event, Joined) or self._config.is_server:
            return
        assert self._carrier is not None
        link = self._driver.links[SERVER]
        identity = link.stream.identity
        if identity not in (None, SERVER):
            raise ProtocolError(f"the server's certificate names {identity!r}, not {SERVER!r}")
        port, key, cipher = event.data_port, event.key, event.cipher
        link.data = self._carrier.attach(link.connection, port, key, cipher)
        link.datagrams = self._control_socket(link.stream, event.key)

    def facts(self) -> dict[str, Any]:
        if self._carrier is None:
            return {}
        facts = self._carrier.facts()
        for name, link in self._driver.links.items():
            facts[name] |= link.connection.control_facts()
        return facts

    def counters(self) -> Counter[str]:
        return Counter() if self._carrier is None else self._carrier.counters()

    def close(self) -> None:
        if self._carrier is not None:
            self._carrier.close()
        for opened in (self._sockets or {}).values():
            opened.close()
