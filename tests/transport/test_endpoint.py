"""Endpoints on loopback, over UDP and over TCP: rounds, announcements, and peers that die."""

import contextlib
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest

from testbed.transport import (
    Leg,
    PayloadLayout,
    PeerLost,
    ProtocolError,
    TransportError,
    open_endpoint,
    preset,
)
from testbed.transport.control import ControlMessage, Hello, MessageType
from testbed.transport.wire import new_frames
from tests.transport.loopback import SESSION, in_thread, internals, run_all, site
from tests.transport.virtual import random_payload

CARRIERS = [preset("fixed-low", tolerance=0), preset("tcp")]
both = pytest.mark.parametrize("protocol", CARRIERS, ids=lambda protocol: protocol.carrier)


@both
@pytest.mark.parametrize("elements", [1, 364, 365, 100_001])
def test_both_legs_deliver_every_byte(protocol, elements):
    place = site(protocol, layout=PayloadLayout([("weights", elements)]), workers=1)
    up, down = (random_payload(place.layout, seed) for seed in (1, 2))

    def server(endpoint):
        buffer = place.layout.new_buffer()
        got = endpoint.receive(0, 0, {"worker-1": buffer})["worker-1"]
        endpoint.send(1, {"worker-1": down})
        return buffer, got

    def worker(endpoint, index):
        buffer = place.layout.new_buffer()
        sent = endpoint.send(0, {"server": up})["server"]
        endpoint.receive(1, 0, {"server": buffer})
        return buffer, sent

    (at_server, got), [(at_worker, sent)] = run_all(place, server, worker)
    assert np.array_equal(at_server, up)
    assert np.array_equal(at_worker, down)
    assert (got.peer, got.role, got.transfer) == ("worker-1", "receiver", 0)
    assert (sent.peer, sent.role, sent.transfer) == ("server", "sender", 0)
    assert got.chunks_received == got.chunk_count == place.layout.chunk_count
    assert got.received.all()
    assert sent.bytes_sent >= place.layout.payload_bytes
    assert got.bytes_received >= place.layout.payload_bytes
    assert 0 <= sent.duration_s < 5
    assert got.control_bytes > 0
    assert (sent.passes is None) == (protocol.carrier == "tcp")


@both
def test_a_server_and_three_workers_average_for_several_rounds(protocol):
    rounds = 4
    place = site(protocol, layout=PayloadLayout([("weights", 20_000)]), workers=3)
    layout = place.layout

    def server(endpoint):
        buffers = {name: layout.new_buffer() for name in place.addresses}
        mean = layout.new_buffer()
        for index in range(rounds):
            endpoint.receive(Leg.GATHER.transfer(index), 0, buffers)
            stacked = [layout.floats(buffer) for buffer in buffers.values()]
            layout.floats(mean)[:] = np.mean(stacked, axis=0)
            endpoint.announce(b"phase of round %d" % index)
            endpoint.send(Leg.BROADCAST.transfer(index), dict.fromkeys(buffers, mean))
        return endpoint.counters()

    def worker(endpoint, number):
        buffer, results = layout.new_buffer(), []
        for index in range(rounds):
            time.sleep(0.002 * number)  # so that some are early
            layout.floats(buffer)[:] = number * 10 + index
            endpoint.send(Leg.GATHER.transfer(index), {"server": buffer})
            assert endpoint.await_announcement() == b"phase of round %d" % index
            endpoint.receive(Leg.BROADCAST.transfer(index), 0, {"server": buffer})
            results.append(set(layout.floats(buffer).tolist()))
        return results

    counters, results = run_all(place, server, worker)
    assert results == [[{20.0 + index} for index in range(rounds)]] * 3
    assert "stale-control" not in counters


def test_a_tolerant_receiver_stops_early_and_tells_what_it_has():
    place = site(preset("dblp"), layout=PayloadLayout([("w", 364 * 500)]), rate_bps=50e6)
    rule = place.protocol.gather.stop_rule(critical=False)
    payload = random_payload(place.layout)

    def server(endpoint):
        buffer = place.layout.new_buffer()
        return buffer, endpoint.receive(0, rule, {"worker-1": buffer})["worker-1"]

    (buffer, got), [sent] = run_all(
        place, server, lambda endpoint, index: endpoint.send(0, {"server": payload})["server"]
    )
    assert 296 <= got.chunks_received < 450
    assert int(got.received.sum()) == got.chunks_received
    rows = place.layout.rows(buffer)
    assert np.array_equal(rows[got.received], place.layout.rows(payload)[got.received])
    assert not rows[~got.received].any()
    assert sent.chunks_sent < 500
    assert sent.passes == 1


def test_the_pace_is_the_configured_one():
    place = site(layout=PayloadLayout([("w", 250_000)]), rate_bps=80e6)
    payload = random_payload(place.layout)
    _, [sent] = run_all(
        place,
        lambda endpoint: endpoint.receive(0, 0, {"worker-1": place.layout.new_buffer()}),
        lambda endpoint, index: endpoint.send(0, {"server": payload})["server"],
    )
    ideal_s = sent.bytes_sent * 8 / 80e6
    # Too slow is a matter of the machine's load; what lateness costs is tested in virtual time.
    assert 0.95 * ideal_s < sent.duration_s < 10 * ideal_s


def test_a_socket_that_is_full_again_and_again_delays_and_loses_nothing():
    place = site(rate_bps=float("inf"))
    payload = random_payload(place.layout)

    def worker(endpoint, index):
        socket_ = internals(endpoint)._sockets["server"]._socket
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return endpoint.send(0, {"server": payload})["server"]

    buffer = place.layout.new_buffer()
    run_all(place, lambda endpoint: endpoint.receive(0, 0, {"worker-1": buffer}), worker)
    assert np.array_equal(buffer, payload)


def test_without_segmentation_everything_arrives_all_the_same():
    place = site()
    payload = random_payload(place.layout)

    def worker(endpoint, index):
        internals(endpoint)._sockets["server"].segmentation = False
        return endpoint.send(0, {"server": payload})["server"]

    buffer = place.layout.new_buffer()
    run_all(place, lambda endpoint: endpoint.receive(0, 0, {"worker-1": buffer}), worker)
    assert np.array_equal(buffer, payload)


def test_what_waits_in_the_socket_is_not_reported_as_missing():
    place = site(rate_bps=400e6)
    payload = random_payload(place.layout)
    buffer = place.layout.new_buffer()

    def server(endpoint):
        if endpoint.facts()["worker-1"]["receive_buffer_bytes"] < 4 << 20:
            pytest.skip("the kernel grants too small a buffer for the whole payload")
        time.sleep(0.3)  # all data and the PROBE are here before anybody looks
        return endpoint.receive(0, 0, {"worker-1": buffer})["worker-1"]

    got, [sent] = run_all(
        place, server, lambda endpoint, index: endpoint.send(0, {"server": payload})["server"]
    )
    assert np.array_equal(buffer, payload)
    assert (sent.passes, sent.retransmitted_bytes, got.duplicates) == (1, 0, 0)


def test_datagrams_of_strangers_and_other_runs_are_counted_and_change_nothing():
    place = site(rate_bps=20e6)
    payload = random_payload(place.layout)
    config = place.server()
    target = (config.bind_address, config.data_port)
    forged = new_frames(1, place.layout.chunk_bytes)
    forged[:] = 0xAB
    over = threading.Event()

    def attack():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            while not over.is_set():
                stranger.sendto(forged.tobytes(), target)
                stranger.sendto(os.urandom(30), target)
                time.sleep(0.001)

    def server(endpoint):
        attacker = in_thread(attack)
        buffer = place.layout.new_buffer()
        report = endpoint.receive(0, 0, {"worker-1": buffer})["worker-1"]
        over.set()
        attacker.result(timeout=5)
        return buffer, report, endpoint.counters()

    def worker(endpoint, index):
        # The right address and port but another session.
        for _ in range(7):
            internals(endpoint)._sockets["server"].send(forged)
        return endpoint.send(0, {"server": payload})

    (buffer, report, counters), _ = run_all(place, server, worker)
    assert np.array_equal(buffer, payload)
    assert counters["unknown-address"] >= 2
    assert counters["wrong-session"] == report.ignored["wrong-session"] == 7


# Peers that die.


@both
def test_a_worker_that_is_killed_in_the_middle_of_a_transfer_is_named(protocol):
    layout = PayloadLayout([("w", 2_000_000)])
    place = site(protocol, workers=2, layout=layout, rate_bps=20e6)
    child = os.fork()
    if child == 0:
        try:
            with open_endpoint(place.worker(2)) as endpoint:
                if protocol.carrier == "tcp":  # begins its payload and never ends it
                    internals(endpoint)._connections["server"].socket.send(bytes(1))
                    time.sleep(10)
                endpoint.send(0, {"server": layout.new_buffer()})
        finally:
            os._exit(0)
    other = in_thread(lambda: open_endpoint(place.worker(1)))
    try:
        with open_endpoint(place.server()) as endpoint:
            healthy = other.result(timeout=5)
            threading.Timer(0.2, os.kill, (child, signal.SIGKILL)).start()
            began_s = time.monotonic()
            with pytest.raises(PeerLost, match="worker-2") as caught:
                endpoint.receive(0, 0, {name: layout.new_buffer() for name in place.addresses})
            assert 0.15 < time.monotonic() - began_s < 3
            assert caught.value.peer == "worker-2"
            healthy.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@both
def test_a_server_that_goes_away_is_named_by_everything_that_needs_it(protocol):
    place = site(protocol)
    left = in_thread(lambda: open_endpoint(place.server()).close())
    with open_endpoint(place.worker()) as endpoint:
        left.result(timeout=5)
        buffer = place.layout.new_buffer()
        for act in (
            lambda: endpoint.send(0, {"server": buffer}),
            lambda: endpoint.receive(1, 0, {"server": buffer}),
            endpoint.await_announcement,
        ):
            with pytest.raises(PeerLost, match="server") as caught:
                act()
            assert caught.value.peer == "server"


@both
def test_a_silent_peer_that_owes_something_is_given_up(protocol):
    place = site(protocol, peer_timeout_s=0.3)
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as endpoint, opened.result(timeout=5) as server:
        buffer = place.layout.new_buffer()
        for act in (
            lambda: server.receive(0, 0, {"worker-1": buffer}),
            lambda: endpoint.send(0, {"server": buffer}),
            endpoint.await_announcement,
        ):
            began_s = time.monotonic()
            with pytest.raises(PeerLost, match=r"silent for 0\.3 s"):
                act()
            assert 0.25 < time.monotonic() - began_s < 2


def test_a_peer_that_goes_away_during_a_pass_is_noticed_before_its_end():
    place = site(rate_bps=0.5e6)  # a pass of 6 s
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as endpoint:
        threading.Timer(0.1, opened.result(timeout=5).close).start()
        began_s = time.monotonic()
        with pytest.raises(PeerLost, match="server"):
            endpoint.send(0, {"server": place.layout.new_buffer()})
        assert time.monotonic() - began_s < 3


def test_a_probe_that_comes_before_its_transfer_begins_is_kept():
    place = site(workers=2, peer_timeout_s=3)
    payload = random_payload(place.layout)
    buffers = {name: place.layout.new_buffer() for name in place.addresses}
    early = threading.Event()

    def server(endpoint):
        endpoint.send(1, dict.fromkeys(buffers, payload))
        assert early.is_set()
        endpoint.receive(2, 0, buffers)

    def worker(endpoint, index):
        if index == 1:  # the server is held up by this one
            assert early.wait(timeout=5)
            time.sleep(0.1)
        endpoint.receive(1, 0, {"server": place.layout.new_buffer()})
        udp = internals(endpoint)._sockets["server"]
        if index == 2:  # all of its first pass is lost, so that only its PROBE helps
            really_send, passing = udp.send, []

            def send(frames):
                passing.append(len(frames))
                if sum(passing) > place.layout.chunk_count:
                    return really_send(frames)
                if sum(passing) == place.layout.chunk_count:
                    threading.Timer(0.05, early.set).start()
                return len(frames)

            udp.send = send
        return endpoint.send(2, {"server": payload})["server"].passes

    _, passes = run_all(place, server, worker)
    assert passes == [1, 2]
    assert all(np.array_equal(buffer, payload) for buffer in buffers.values())


def test_a_long_pass_is_no_silence():
    place = site(layout=PayloadLayout([("w", 25_000)]), rate_bps=1e6, peer_timeout_s=0.4)
    buffer = place.layout.new_buffer()
    _, [sent] = run_all(
        place,
        lambda endpoint: endpoint.receive(0, 0, {"worker-1": buffer}),
        lambda endpoint, index: endpoint.send(0, {"server": buffer})["server"],
    )
    assert sent.duration_s > 0.6


def test_a_peer_may_leave_once_it_owes_nothing():
    place = site(workers=2, rate_bps=20e6)
    payload = random_payload(place.layout)
    buffers = {name: place.layout.new_buffer() for name in place.addresses}

    def worker(endpoint, index):
        time.sleep(0.3 * (index - 1))
        endpoint.send(0, {"server": payload})  # and closes

    run_all(place, lambda endpoint: endpoint.receive(0, 0, buffers), worker)
    assert all(np.array_equal(buffer, payload) for buffer in buffers.values())


def test_a_peer_that_breaks_the_protocol_is_named():
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as endpoint, opened.result(timeout=5) as server:
        internals(endpoint)._links["server"].send(
            [ControlMessage(MessageType.BITMAP, 0, bytes(35))]
        )
        with pytest.raises(PeerLost, match="worker-1: it broke the protocol"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})


def test_a_probe_for_a_finished_transfer_is_answered_even_while_sending():
    place = site()
    payload = random_payload(place.layout)

    def server(endpoint):
        endpoint.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        endpoint.send(1, {"worker-1": payload})
        return endpoint.counters()

    def worker(endpoint, index):
        endpoint.send(0, {"server": payload})
        link = internals(endpoint)._links["server"]
        link.send([ControlMessage(MessageType.PROBE, 0)])
        endpoint.receive(1, 0, {"server": place.layout.new_buffer()})
        stops: list[ControlMessage] = []
        deadline_s = time.monotonic() + 1
        while not stops and time.monotonic() < deadline_s:
            stops = link.read(time.monotonic())
        return endpoint.counters()

    counters, [at_worker] = run_all(place, server, worker)
    assert "stale-control" not in counters | at_worker


# Misuse.


def test_mistakes_of_the_caller_are_value_errors():
    place = site()
    buffer = place.layout.new_buffer()

    def server(endpoint):
        with pytest.raises(ValueError, match="valid: worker-1"):
            endpoint.receive(0, 0, {"worker-9": buffer})
        with pytest.raises(ValueError, match="valid: 0"):
            endpoint.receive(0, 1.0, {"worker-1": buffer})
        with pytest.raises(ValueError, match="contiguous uint8"):
            endpoint.receive(0, 0, {"worker-1": buffer[:-1]})
        with pytest.raises(ValueError, match="65537 bytes"):
            endpoint.announce(bytes(65537))
        with pytest.raises(TransportError):
            endpoint.await_announcement()
        endpoint.receive(4, 0, {"worker-1": buffer})
        with pytest.raises(ValueError, match="ascend"):
            endpoint.receive(4, 0, {"worker-1": buffer})

    run_all(place, server, lambda endpoint, index: endpoint.send(4, {"server": buffer}))


def test_an_endpoint_that_is_closed_says_so():
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    endpoint = open_endpoint(place.worker())
    server = opened.result(timeout=5)
    for one in (endpoint, server):
        one.close()
        one.close()
        with pytest.raises(TransportError, match="not open"):
            one.send(0, {})


# Joining.


def lonely(config):
    with pytest.raises((PeerLost, ProtocolError, ValueError)) as caught:
        open_endpoint(config)
    return caught.value


@both
def test_those_who_do_not_come_are_named(protocol):
    place = site(protocol, workers=3, connect_timeout_s=0.5)
    came = in_thread(lonely_after_join, place)
    error = lonely(place.server())
    assert isinstance(error, PeerLost)
    assert error.peer == "worker-1, worker-3"
    came.result(timeout=5)


def lonely_after_join(place):
    with open_endpoint(place.worker(2)) as endpoint, pytest.raises(PeerLost, match="server"):
        endpoint.await_announcement()


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
    waiting.result(timeout=5)


@both
def test_different_layouts_are_an_error_on_both_sides_that_says_what_differs(protocol):
    place = site(protocol)
    other = PayloadLayout([("weights", 99)])
    refused = in_thread(lonely, place.worker(layout=other))
    for error in (lonely(place.server()), refused.result(timeout=5)):
        assert isinstance(error, ProtocolError)
        assert "'weights' with 100001 elements at the server" in str(error)
        assert "99 at worker-1" in str(error)


@both
def test_strangers_at_the_doors_are_counted_and_hold_nobody_up(protocol):
    place = site(protocol, workers=2)
    config = place.server()
    opened = in_thread(lambda: open_endpoint(config))

    def knock(data, source="127.0.0.1"):
        deadline_s = time.monotonic() + 3
        while True:
            connection = socket.socket()
            connection.bind((source, 0))
            try:
                connection.connect((config.bind_address, config.control_port))
                break
            except ConnectionRefusedError:
                connection.close()
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
        connection.sendall(data)
        return connection

    def hello(**changes):
        return Hello(**{"session": SESSION, "name": "worker-1", **changes}).message().encode()

    silent = knock(b"")
    half = knock(hello()[:13])
    closed = [
        knock(b"GET / HTTP/1.1\r\n\r\n"),
        knock(hello(session=SESSION + 1)),
        knock(hello(name="worker-7")),
        knock(hello()),  # the right words from the wrong address
        knock(ControlMessage(MessageType.STOP, 0).encode()),
        knock(hello() + b"more", source=place.addresses["worker-1"]),
    ]
    for connection in closed:
        connection.settimeout(3)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        connection.close()
    began_s = time.monotonic()
    workers = [open_endpoint(place.worker(index)) for index in (1, 2)]
    server = opened.result(timeout=3)
    assert time.monotonic() - began_s < 1
    assert server.counters() == {
        "stranger-garbage": 3,
        "stranger-wrong-session": 1,
        "stranger-unknown-name": 1,
        "stranger-unknown-address": 1,
        "stranger-unfinished": 2,
    }
    with pytest.raises(OSError):  # the door is closed now
        socket.create_connection((config.bind_address, config.control_port), timeout=1)
    for each in (*workers, server, silent, half):
        each.close()


def test_a_worker_of_another_run_is_a_stranger_and_told_nothing():
    place = site(connect_timeout_s=0.5)
    outcome = in_thread(lonely, place.worker(session=SESSION + 1))
    lonely(place.server())
    error = outcome.result(timeout=5)
    assert isinstance(error, PeerLost)


def test_a_stranger_who_says_nothing_is_shown_out_in_time(monkeypatch):
    monkeypatch.setattr("testbed.transport.joining.HELLO_WITHIN_S", 0.1)
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    time.sleep(0.1)
    with socket.create_connection((place.server_address, 21000)) as silent:
        silent.settimeout(2)
        assert silent.recv(1) == b""
    worker = open_endpoint(place.worker())
    server = opened.result(timeout=3)
    assert server.counters() == {"stranger-silent": 1}
    worker.close()
    server.close()


def test_a_crowd_of_silent_strangers_does_not_keep_the_workers_out():
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    time.sleep(0.1)
    crowd = [socket.create_connection((place.server_address, 21000)) for _ in range(100)]
    worker = open_endpoint(place.worker())
    server = opened.result(timeout=3)
    counters = server.counters()
    assert counters["stranger-crowded-out"] + counters["stranger-unfinished"] == 100
    assert counters["stranger-unfinished"] <= 64
    for each in (worker, server, *crowd):
        each.close()
