"""The handshake of server and workers, and strangers who connect."""

import contextlib
import os
import re
import socket

import pytest

from testbed.transport import PayloadLayout, PeerLost, ProtocolError, open_endpoint, preset
from testbed.transport.messages import Hello
from testbed.transport.net.addresses import resolve
from testbed.transport.net.carriers import open_data_sockets
from testbed.transport.wire import new_frames
from tests.transport.loopback import (
    SESSION,
    both,
    carry,
    failure,
    hello_from,
    in_thread,
    joined,
    knock,
    poll_until,
    site,
    udp_of,
)


@both
def test_those_who_do_not_come_are_named(protocol):
    place = site(protocol, workers=3, connect_timeout_s=1.0)

    def come():
        with open_endpoint(place.worker(2)) as endpoint, pytest.raises(PeerLost, match="server"):
            endpoint.await_announcement()

    came = in_thread(come)
    error = failure(open_endpoint, place.server())
    assert error.peer == "worker-1, worker-3"
    came.result(timeout=30)


def test_a_server_that_is_not_there_is_named_with_its_address():
    place = site(connect_timeout_s=0.3)
    error = failure(open_endpoint, place.worker())
    assert f"{place.server_address}:21000" in str(error)


def test_a_layout_that_no_hello_can_hold_is_refused_with_what_helps():
    place = site(layout=PayloadLayout([(f"tensor-{i}", 1) for i in range(60_000)]))
    with socket.create_server((place.server_address, place.settings["control_port"])):
        error = failure(open_endpoint, place.worker())
    assert re.fullmatch(
        r"the layout's description is 1\d{6} bytes long and a HELLO holds 1048576: "
        "merge tensors, or shorten their names",
        str(error),
    )


@both
def test_strangers_are_counted_and_hold_nobody_up(protocol, monkeypatch):
    monkeypatch.setattr("testbed.transport.joining.HELLO_WITHIN_S", 60.0)
    place = site(protocol, workers=2)
    opened = in_thread(lambda: open_endpoint(place.server()))
    hello = Hello(session=SESSION, name="worker-1").message().encode()
    silent, half = knock(place), knock(place)
    half.sendall(hello[:13])
    # The last one has the right words and the wrong address.
    for words in (b"GET / HTTP/1.1\r\n\r\n", hello + b"more", hello):
        with knock(place) as unknown:
            unknown.sendall(words)
            with contextlib.suppress(ConnectionResetError):
                assert unknown.recv(1) == b""
    # All have joined while two connections have said nothing yet.
    workers = open_endpoint(place.worker(1)), open_endpoint(place.worker(2))
    with workers[0], workers[1], opened.result(timeout=30) as server, silent, half:
        assert server.counters() == {"stranger-garbage": 2, "stranger-unknown-address": 1}


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
        ({"session": SESSION + 1}, r"\d+ wrong-session \(the last: 'worker-1' from {address}\)"),
    ],
    ids=["name", "long name", "unprintable name", "address", "session"],
)
def test_the_operator_reads_why_a_worker_could_not_join(protocol, changes, reads):
    place = site(protocol, connect_timeout_s=0.5)
    outcome = in_thread(failure, open_endpoint, place.worker(**changes))
    error = failure(open_endpoint, place.server())
    outcome.result(timeout=30)
    turned_away = reads.format(address=re.escape(place.addresses["worker-1"]))
    expected = rf"lost worker-1: did not join within 0\.5 s; turned away: {turned_away}"
    assert re.fullmatch(expected, str(error))


def test_a_stranger_who_says_nothing_is_shown_out_in_time(monkeypatch):
    monkeypatch.setattr("testbed.transport.joining.HELLO_WITHIN_S", 0.1)
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    with knock(place) as silent:
        assert silent.recv(1) == b""
    with open_endpoint(place.worker()), opened.result(timeout=30) as server:
        assert server.counters() == {"stranger-silent": 1}


def test_a_crowd_of_silent_strangers_does_not_keep_the_workers_out():
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    crowd = [knock(place) for _ in range(100)]
    with open_endpoint(place.worker()), opened.result(timeout=30) as server:
        assert server.counters()["stranger-crowded-out"] >= 100 - 64
    for unknown in crowd:
        unknown.close()


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
    refused = in_thread(failure, open_endpoint, place.worker())
    at_server = failure(open_endpoint, config, sockets)
    why = (
        "TCP congestion control is 'reno' instead of 'cubic': this process may not set it, or the "
        "route has another"
    )
    assert str(at_server) == f"worker-1 cannot join: {why}"
    at_worker = str(refused.result(timeout=30))
    assert at_worker == f"the server refused the connection for data: {why}"


def test_datagrams_of_strangers_and_other_runs_are_counted_change_nothing_and_get_no_answer():
    place = site()
    frame = new_frames(1, place.layout.chunk_bytes)
    with (
        joined(place) as (worker, server),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown,
    ):
        for data in (b"", b"x", frame.tobytes(), os.urandom(1472)):
            unknown.sendto(data, (place.server_address, place.settings["data_port"]))
        for _ in range(7):
            udp_of(worker).send(frame)  # the right address and port but another session
        carry(worker, server)
        unknown.settimeout(0.3)
        with pytest.raises(TimeoutError):
            unknown.recv(65536)
        counters = server.counters()
        assert (counters["unknown-address"], counters["wrong-session"]) == (4, 7)


def test_a_peer_without_a_port_for_its_data_is_named_when_it_joins():
    place = site(connect_timeout_s=30)
    opened = in_thread(lambda: open_endpoint(place.server()))
    with (
        hello_from(place, layout=place.layout.encode()),
        pytest.raises(ProtocolError, match="worker-1 names no port"),
    ):
        opened.result(timeout=30)


def with_codec(codec):
    return PayloadLayout([("weights", 9)], codec=codec)


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
        (
            {},
            {"layout": PayloadLayout([("weights", 99)])},
            "'weights' with 100001 elements at the server .* 99 at worker-1",
        ),
        ({}, {"tensor_by_tensor": True}, "datagrams, worker-1 .*, tensor"),
        (
            {"protocol": preset("tcp", codec="int4"), "layout": with_codec("int4")},
            {"protocol": preset("tcp", codec="int8"), "layout": with_codec("int8")},
            "codec is int4 at the server and int8 at worker-1",
        ),
        (
            {"protocol": preset("bounded-energy")},
            {"protocol": preset("bounded-energy", control="tcp")},
            "its control in datagrams",
        ),
        (
            {"protocol": preset("top-k", keep=0.1)},
            {"protocol": preset("top-k", keep=0.2)},
            r"keeping 0\.1 of .* keeping 0\.2 of the chunks",
        ),
        ({"protocol": preset("none", keep=0.5)}, {}, r"datagrams, keeping 0\.5 of the chunks"),
    ],
)
def test_sides_that_differ_do_not_join_and_hear_why(server, worker, named):
    place = site(connect_timeout_s=30)
    opened = in_thread(lambda: open_endpoint(place.server(**server)))
    with pytest.raises(ProtocolError, match=f"the .* differ: .*{named}"):
        open_endpoint(place.worker(**worker))
    with pytest.raises(ProtocolError, match=f"worker-1 cannot join: the .*{named}"):
        opened.result(timeout=30)


def test_a_hello_that_is_refused_does_not_end_the_connection_of_the_same_name():
    place = site(survive_peers=True)
    with joined(place) as (worker, server):
        with hello_from(place, layout=place.layout.encode()):
            poll_until(server, lambda: "stranger-refused" in server.counters())
        assert server.counters()["stranger-refused"] == 1
        carry(worker, server)
