"""Strangers at the doors and ports of an endpoint, who are not answered."""

import contextlib
import os
import socket
import time

import pytest

from testbed.transport import ProtocolError, open_endpoint, preset
from testbed.transport.core.messages import ControlMessage, Hello, MessageType
from testbed.transport.core.wire import new_frames
from tests.transport.loopback import SESSION, both, in_thread, joined, poll_until, site, udp_of


def drained(connection, for_s=0.3):
    """How many bytes a stranger gets to see."""
    connection.settimeout(for_s)
    received = 0
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            received += len(data)
    return received


def test_a_stranger_gets_no_byte_for_its_datagrams():
    place = site(rate_bps=5e6)
    with joined(place) as (worker, server):
        buffer = place.layout.new_buffer()
        receiving = in_thread(server.receive, 0, 0, {"worker-1": buffer})
        sending = in_thread(worker.send, 0, {"server": buffer})
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.1", 0))
            frame = new_frames(1, place.layout.chunk_bytes)
            config = place.server()
            for data in (b"", b"x", frame.tobytes(), os.urandom(1472)):
                for port in (config.data_port, udp_of(worker).port):
                    stranger.sendto(data, (config.bind_address, port))
            assert drained(stranger) == 0
        receiving.result(timeout=30)
        sending.result(timeout=30)


@both
@pytest.mark.parametrize(
    "words",
    [
        Hello(session=SESSION + 1, name="worker-1", layout=bytes(1000)).message().encode(),
        Hello(session=SESSION, name="worker-1").message().encode(),  # not from its address
        ControlMessage(MessageType.PROBE, 0).encode() * 50,
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(2000),
    ],
    ids=["another-session", "another-address", "probes", "http", "noise"],
)
def test_a_stranger_gets_no_byte_for_what_it_says_at_a_door(protocol, words):
    place = site(protocol, connect_timeout_s=30)
    opened = in_thread(lambda: open_endpoint(place.server()))
    config = place.server()
    ports = [config.control_port] + [config.data_port] * (protocol.carrier == "tcp")
    for port in ports:
        connection = connect(config.bind_address, port)
        with connection, contextlib.suppress(OSError):
            connection.sendall(words)
            assert drained(connection) == 0
    with open_endpoint(place.worker()), opened.result(timeout=30) as server:
        assert sum(server.counters().values()) == len(ports)


def connect(address, port, source=""):
    deadline_s = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address, port), timeout=3, source_address=(source, 0))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_who_cannot_name_the_session_is_shown_out_before_a_long_hello_is_complete():
    place = site(connect_timeout_s=30)
    opened = in_thread(lambda: open_endpoint(place.server()))
    hello = Hello(session=SESSION + 1, name="worker-1", layout=bytes(1 << 19)).message().encode()
    with connect(place.server_address, 21000) as connection:
        connection.settimeout(30)
        connection.sendall(hello[:10])
        time.sleep(0.05)
        connection.sendall(hello[10:16])
        assert connection.recv(1) == b""
    with open_endpoint(place.worker()), opened.result(timeout=30) as server:
        assert server.counters() == {"stranger-wrong-session": 1}


def without_a_port(place):
    """A connection from the worker's address whose HELLO names no port for its data."""
    terms, layout = place.server().terms, place.layout.encode()
    hello = Hello(session=SESSION, name="worker-1", terms=terms, layout=layout).message()
    connection = connect(place.server_address, 21000, source=place.addresses["worker-1"])
    connection.sendall(hello.encode())
    return connection


def test_a_peer_without_a_port_for_its_data_is_named_when_it_joins():
    place = site(connect_timeout_s=30)
    opened = in_thread(lambda: open_endpoint(place.server()))
    with without_a_port(place), pytest.raises(ProtocolError, match="worker-1 names no port"):
        opened.result(timeout=30)


def of(control):
    return preset("dblp", repair="streaming", congestion_control=control)


@pytest.mark.parametrize(
    ("server", "worker", "named"),
    [
        # The receiver decides by its own control how soon it answers.
        (
            {"protocol": of("fixed")},
            {"protocol": of("cubic")},
            "the server has .* nothing,.* worker-1 .* measures the path,",
        ),
        ({}, {"tensor_by_tensor": True}, "datagrams, worker-1 .*, tensor"),
        ({"protocol": preset("one-bit")}, {"protocol": preset("tcp")}, "coding two-values"),
        (
            {"protocol": preset("top-k", keep=0.1)},
            {"protocol": preset("top-k", keep=0.2)},
            r"keeping 0\.1 of .* keeping 0\.2 of the chunks",
        ),
    ],
)
def test_sides_whose_transports_differ_do_not_join_and_hear_why(server, worker, named):
    place = site(connect_timeout_s=30)
    opened = in_thread(lambda: open_endpoint(place.server(**server)))
    with pytest.raises(ProtocolError, match=f"the transports differ: .*{named}"):
        open_endpoint(place.worker(**worker))
    with pytest.raises(ProtocolError, match=f"worker-1 cannot join: the transports .*{named}"):
        opened.result(timeout=30)


def test_two_congestion_controls_that_measure_the_path_may_join():
    place = site()
    assert place.server(protocol=of("cubic")).terms == place.worker(protocol=of("bbr")).terms


def test_a_hello_that_is_refused_does_not_end_the_connection_of_the_same_name():
    place = site(survive_peers=True)
    with joined(place) as (worker, server):
        with without_a_port(place):
            poll_until(server, lambda: "stranger-refused" in server.counters())
        assert server.counters()["stranger-refused"] == 1
        sending = in_thread(worker.send, 0, {"server": place.layout.new_buffer()})
        server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        sending.result(timeout=30)
