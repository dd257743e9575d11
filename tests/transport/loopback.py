"""Endpoints on loopback addresses that no other test uses, workers in threads."""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from testbed.transport import (
    Endpoint,
    EndpointConfig,
    PayloadLayout,
    PeerLost,
    ProtocolConfig,
    ProtocolError,
    open_endpoint,
    preset,
)
from testbed.transport.messages import Hello
from testbed.transport.net.tcp import TcpData
from testbed.transport.net.udp import UdpSocket
from tests.transport.virtual import random_payload

SESSION = 0x5E55104
CARRIERS = [preset("fixed-low", tolerance=0), preset("tcp")]
both = pytest.mark.parametrize("protocol", CARRIERS, ids=lambda protocol: protocol.carrier)
_blocks = itertools.count()


class Site:
    """A server and workers at addresses of their own: 127.x.y.0 of the process and the site."""

    def __init__(
        self,
        protocol: ProtocolConfig | None = None,
        *,
        layout: PayloadLayout | None = None,
        workers: int = 1,
        **settings: Any,
    ) -> None:
        """The ports are below the ephemeral range."""
        prefix = f"127.{1 + os.getpid() % 250}.{next(_blocks) % 250}"
        self.server_address = f"{prefix}.1"
        self.addresses = {f"worker-{i}": f"{prefix}.{i + 1}" for i in range(1, workers + 1)}
        self.protocol = protocol or preset("fixed-low", tolerance=0)
        self.layout = layout or PayloadLayout([("weights", 100_001)])
        self.settings: dict[str, Any] = {
            "rate_bps": 500e6,
            "control_port": 21000,
            "data_port": 21100,
            "peer_timeout_s": 10.0,
            "connect_timeout_s": 20.0,
            **settings,
        }

    def server(self, **changes: Any) -> EndpointConfig:
        return self._config("server", self.server_address, self.addresses, changes)

    def worker(self, index: int = 1, **changes: Any) -> EndpointConfig:
        name, peers = f"worker-{index}", {"server": self.server_address}
        return self._config(name, self.addresses[name], peers, changes)

    def _config(
        self, name: str, address: str, peers: dict[str, str], changes: dict[str, Any]
    ) -> EndpointConfig:
        return EndpointConfig(
            **{
                "session": SESSION,
                "name": name,
                "bind_address": address,
                "peers": peers,
                "is_server": name == "server",
                "protocol": self.protocol,
                "layout": self.layout,
                **self.settings,
                **changes,
            }
        )


site = Site


def udp_of(endpoint: Endpoint, peer: str = "server") -> UdpSocket:
    sockets = endpoint._membership._sockets
    assert sockets is not None
    opened: UdpSocket = sockets[peer]
    return opened


def tcp_of(endpoint: Endpoint, peer: str = "server") -> socket.socket:
    data = endpoint._driver.links[peer].data
    assert isinstance(data, TcpData)
    return data.socket


def in_thread(work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def failure(call: Callable[..., Any], *arguments: Any) -> Any:
    with pytest.raises((PeerLost, ProtocolError, ValueError)) as caught:
        call(*arguments)
    return caught.value


@contextlib.contextmanager
def joined(
    place: Site, server: EndpointConfig | None = None, worker: EndpointConfig | None = None
) -> Iterator[tuple[Endpoint, Endpoint]]:
    opened = in_thread(lambda: open_endpoint(server or place.server()))
    with open_endpoint(worker or place.worker()) as one, opened.result(timeout=30) as other:
        yield one, other


def carry(one: Endpoint, other: Endpoint, number: int = 0) -> None:
    layout = other._config.layout
    payload, into = random_payload(layout, seed=number), layout.new_buffer()
    sending = in_thread(one.send, number, {other._config.name: payload})
    other.receive(number, 0, {one._config.name: into})
    sending.result(timeout=30)
    assert np.array_equal(payload, into)


def knock(place: Site, port: str = "control_port", source: str = "127.0.0.1") -> socket.socket:
    """A stranger's connection to the server, which may still be about to listen."""
    deadline_s = time.monotonic() + 30
    listening = place.server_address, place.settings[port]
    while True:
        try:
            return socket.create_connection(listening, timeout=30, source_address=(source, 0))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def hello_from(place: Site, port: str = "control_port", **fields: Any) -> socket.socket:
    """A connection from the first worker's address with its HELLO, which names no data port."""
    terms = place.server().terms
    hello = Hello(**{"session": SESSION, "name": "worker-1", "terms": terms, **fields})
    connection = knock(place, port, place.addresses["worker-1"])
    connection.sendall(hello.message().encode())
    return connection


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection, first the one that was accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return listener.accept()[0], near


def poll_until(endpoint: Endpoint, condition: Callable[[], bool]) -> None:
    """Serves the endpoint until the condition holds; whoever asserts it fails if it never does."""
    deadline_s = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline_s:
        endpoint.poll(0.02)


def run_all(
    place: Site,
    server: Callable[[Endpoint], Any],
    worker: Callable[[Endpoint, int], Any],
) -> tuple[Any, list[Any]]:
    def one(config: EndpointConfig, work: Callable[..., Any], *arguments: Any) -> Any:
        with open_endpoint(config) as endpoint:
            return work(endpoint, *arguments)

    numbers = range(1, len(place.addresses) + 1)
    futures = [in_thread(one, place.worker(i), worker, i) for i in numbers]
    result = one(place.server(), server)
    return result, [future.result(timeout=30) for future in futures]
