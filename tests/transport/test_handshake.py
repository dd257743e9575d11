"""The handshake of server and workers, and strangers who connect."""

import contextlib
import re
import socket
import time

import pytest

from testbed.transport import (
    PayloadLayout,
    PeerLost,
    ProtocolError,
    open_endpoint,
    preset,
)
from testbed.transport.core.messages import ControlMessage, Hello, MessageType
from testbed.transport.net.addresses import resolve
from testbed.transport.net.carriers import open_data_sockets
from tests.transport.loopback import SESSION, both, in_thread, poll_until, site


def lonely(config, sockets=None):
    with pytest.raises((PeerLost, ProtocolError, ValueError)) as caught:
        open_endpoint(config, sockets)
    return caught.value


@both
def test_those_who_do_not_come_are_named(protocol):
    place = site(protocol, workers=3, connect_timeout_s=1.0)

    def come():
        with open_endpoint(place.worker(2)) as endpoint, pytest.raises(PeerLost, match="server"):
            endpoint.await_announcement()

    came = in_thread(come)
    error = lonely(place.server())
    assert isinstance(error, PeerLost)
    assert error.peer == "worker-1, worker-3"
    came.result(timeout=30)


def knock(place, source="127.0.0.1"):
    """A connection to the server, which may still be about to listen."""
    deadline_s = time.monotonic() + 30
    while True:
        connection = socket.socket()
        connection.bind((source, 0))
        try:
            connection.connect((place.server_address, place.settings["control_port"]))
            return connection
        except ConnectionRefusedError:
            connection.close()
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_a_server_that_is_not_there_is_named_with_its_address():
    place = site(connect_timeout_s=0.3)
    error = lonely(place.worker())
    assert isinstance(error, PeerLost)
    assert f"{place.server_address}:21000" in str(error)


def test_a_worker_waits_for_a_server_that_comes_later():
    place = site()
    waiting = in_thread(lambda: open_endpoint(place.worker()).close())
    time.sleep(0.3)
    open_endpoint(place.server()).close()
    waiting.result(timeout=30)


@both
def test_different_layouts_are_an_error_on_both_sides_that_says_what_differs(protocol):
    place = site(protocol)
    other = PayloadLayout([("weights", 99)])
    refused = in_thread(lonely, place.worker(layout=other))
    for error in (lonely(place.server()), refused.result(timeout=30)):
        assert isinstance(error, ProtocolError)
        assert "'weights' with 100001 elements at the server" in str(error)
        assert "99 at worker-1" in str(error)


def test_a_layout_that_no_hello_can_hold_is_refused_with_what_helps():
    place = site(layout=PayloadLayout([(f"tensor-{i}", 1) for i in range(60_000)]))
    opened = in_thread(lonely, place.server(connect_timeout_s=0.3))
    error = lonely(place.worker(connect_timeout_s=0.3))
    opened.result(timeout=30)
    assert isinstance(error, ValueError)
    assert re.fullmatch(
        r"the layout's description is 1\d{6} bytes long and a HELLO holds 1048576: "
        "merge tensors, or shorten their names",
        str(error),
    )


@both
def test_strangers_at_the_doors_are_counted_and_hold_nobody_up(protocol, monkeypatch):
    monkeypatch.setattr("testbed.transport.core.joining.HELLO_WITHIN_S", 60.0)
    place = site(protocol, workers=2)
    config = place.server()
    opened = in_thread(lambda: open_endpoint(config))

    def connect(data, source="127.0.0.1"):
        connection = knock(place, source)
        connection.sendall(data)
        return connection

    def hello(**changes):
        return Hello(**{"session": SESSION, "name": "worker-1", **changes}).message().encode()

    silent = connect(b"")
    half = connect(hello()[:13])
    closed = [
        connect(b"GET / HTTP/1.1\r\n\r\n"),
        connect(hello(session=SESSION + 1)),
        connect(hello(name="worker-7")),
        connect(hello()),  # the right words from the wrong address
        connect(ControlMessage(MessageType.STOP, 0).encode()),
        connect(hello() + b"more", source=place.addresses["worker-1"]),
    ]
    for connection in closed:
        connection.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        connection.close()
    # All have joined while two who say nothing are still at the doors.
    workers = [open_endpoint(place.worker(index)) for index in (1, 2)]
    server = opened.result(timeout=30)
    assert server.counters() == {
        "stranger-garbage": 3,
        "stranger-wrong-session": 1,
        "stranger-unknown-name": 1,
        "stranger-unknown-address": 1,
    }
    for end in (*workers, server, silent, half):
        end.close()


@both
@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({"name": "worker-7"}, r"\d+ unknown-name \(the last: 'worker-7' from {address}\)"),
        ({"name": "w" * 9999}, r"\d+ unknown-name \(the last: 'w{{56}}\.\.\. from {address}\)"),
        ({"name": "\n"}, r"\d+ unknown-name \(the last: '\\n' from {address}\)"),
        (
            {"bind_address": "127.0.0.1"},
            r"\d+ unknown-address \(the last: 'worker-1' from 127\.0\.0\.1\)",
        ),
        (
            {"session": SESSION + 1},
            r"\d+ wrong-session \(the last: 'worker-1' from {address}\)",
        ),
    ],
    ids=["name", "long name", "unprintable name", "address", "session"],
)
def test_the_operator_reads_why_a_worker_could_not_join(protocol, changes, reads):
    place = site(protocol, connect_timeout_s=0.5)
    outcome = in_thread(lonely, place.worker(**changes))
    error = lonely(place.server())
    outcome.result(timeout=30)
    turned_away = reads.format(address=re.escape(place.addresses["worker-1"]))
    expected = rf"lost worker-1: did not join within 0\.5 s; turned away: {turned_away}"
    assert re.fullmatch(expected, str(error))


def test_a_stranger_who_says_nothing_is_shown_out_in_time(monkeypatch):
    monkeypatch.setattr("testbed.transport.core.joining.HELLO_WITHIN_S", 0.1)
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    with knock(place) as silent:
        silent.settimeout(30)
        assert silent.recv(1) == b""
    worker = open_endpoint(place.worker())
    server = opened.result(timeout=30)
    assert server.counters() == {"stranger-silent": 1}
    worker.close()
    server.close()


def test_a_crowd_of_silent_strangers_does_not_keep_the_workers_out():
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    crowd = [knock(place) for _ in range(100)]
    worker = open_endpoint(place.worker())
    server = opened.result(timeout=30)
    assert server.counters()["stranger-crowded-out"] >= 100 - 64
    for end in (worker, server, *crowd):
        end.close()


def test_a_connection_whose_kernel_has_another_congestion_control_is_refused_on_both_sides():
    place = site(preset("tcp", congestion_control="cubic"))
    config = place.server()
    sockets = open_data_sockets(
        carrier="tcp",
        local=resolve(config.bind_address, what="local"),
        peers={name: resolve(address, what="peer") for name, address in place.addresses.items()},
        ports={name: config.local_data_port(name) for name in place.addresses},
        is_server=True,
        chunk_bytes=place.layout.chunk_bytes,
        congestion_control="reno",
    )
    refused = in_thread(lonely, place.worker())
    at_server = lonely(config, sockets)
    why = (
        "TCP congestion control is 'reno' instead of 'cubic': this process may not set it, or the "
        "route has another"
    )
    assert isinstance(at_server, ProtocolError)
    assert str(at_server) == f"worker-1 cannot join: {why}"
    at_worker = refused.result(timeout=30)
    assert isinstance(at_worker, ProtocolError)
    assert str(at_worker) == f"the server refused the connection for data: {why}"


def test_one_that_joins_again_with_another_congestion_control_does_not_end_the_server():
    place = site(preset("tcp", congestion_control="cubic"), workers=2, survive_peers=True)
    opened = in_thread(lambda: open_endpoint(place.server()))
    workers = [in_thread(lambda i=i: open_endpoint(place.worker(i))) for i in (1, 2)]
    buffer = place.layout.new_buffer()
    with opened.result(timeout=30) as server, workers[1].result(timeout=30) as other:
        workers[0].result(timeout=30).close()
        poll_until(server, lambda: server.here == {"worker-2"})
        listener = server._membership._sockets.tcp["worker-1"]
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        again = in_thread(lonely, place.worker())
        poll_until(server, again.done)
        assert isinstance(again.result(timeout=30), ProtocolError)
        assert server.counters()["stranger-refused"] == 1
        sending = in_thread(other.send, 0, {"server": buffer})
        received = server.receive(0, 0, {"worker-2": place.layout.new_buffer()})
        assert received.keys() == {"worker-2"}
        sending.result(timeout=30)
