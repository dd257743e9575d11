"""What is special about the protocol `tcp`."""

import socket
import time

import numpy as np
import pytest

from testbed.transport import PayloadLayout, PeerLost, open_endpoint, preset
from testbed.transport.core.messages import Hello
from testbed.transport.net.tcp_socket import (
    available_congestion_controls,
    get_congestion_control,
    set_congestion_control,
    tcp_counts,
)
from tests.transport.loopback import in_thread, run_all, site, tcp_of
from tests.transport.virtual import random_payload


@pytest.mark.parametrize("name", available_congestion_controls())
def test_the_congestion_control_is_in_force_on_both_sides(name):
    place = site(preset("tcp", congestion_control=name))
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:
        assert worker.facts() == {"server": {"congestion_control": name}}
        assert server.facts() == {"worker-1": {"congestion_control": name}}
        for connection in (tcp_of(worker), tcp_of(server, "worker-1")):
            assert get_congestion_control(connection) == name


def test_an_unknown_congestion_control_is_refused_with_those_available():
    place = site(preset("tcp", congestion_control="cubicle"))
    with pytest.raises(ValueError, match="'cubicle'") as caught:
        open_endpoint(place.worker())
    for name in available_congestion_controls():
        assert name in str(caught.value)


def test_a_socket_on_which_another_algorithm_is_in_force_is_noticed(monkeypatch):
    monkeypatch.setattr(
        "testbed.transport.net.tcp_socket.get_congestion_control", lambda connection: "other"
    )
    with socket.socket() as trial, pytest.raises(ValueError, match="'other' although 'cubic'"):
        set_congestion_control(trial, "cubic")


def test_bytes_come_from_the_kernels_counters():
    place = site(preset("tcp"), layout=PayloadLayout([("w", 1_000_000)]))
    payload = random_payload(place.layout)

    def server(endpoint):
        buffer = place.layout.new_buffer()
        reports = [
            endpoint.receive(number, 0, {"worker-1": buffer})["worker-1"] for number in (0, 2)
        ]
        return buffer, reports

    def worker(endpoint, index):
        return [endpoint.send(number, {"server": payload})["server"] for number in (0, 2)]

    (buffer, got), [sent] = run_all(place, server, worker)
    assert np.array_equal(buffer, payload)
    for report in sent:
        overhead = report.bytes_sent - report.retransmitted_bytes - (16 + 4_000_000)
        assert 66 * (4_000_016 // 65535) <= overhead < 0.1 * 4_000_000
        assert report.chunks_received == report.chunk_count
    for report in got:
        assert 4_000_016 < report.bytes_received < 1.1 * 4_000_016


def test_counts_have_the_meaning_of_the_kernels_structure():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        two, _ = listener.accept()
    with one, two:
        before = tcp_counts(one), tcp_counts(two)
        one.sendall(bytes(12_345))
        left = 12_345
        while left:
            left -= len(two.recv(left))
        sent, received = tcp_counts(one).since(before[0]), tcp_counts(two).since(before[1])
    assert (sent.bytes_sent, sent.bytes_retransmitted) == (12_345, 0)
    assert received.bytes_sent == 0
    assert 1 <= sent.data_segments_sent <= sent.segments_sent
    assert received.data_segments_received == sent.data_segments_sent
    assert sent.wire_bytes_sent == 12_345 + 66 * sent.data_segments_sent
    assert received.wire_bytes_acknowledging == 66 * received.segments_sent


def test_a_connection_for_data_on_other_terms_is_shown_out():
    place = site(preset("tcp"))
    config = place.server()
    opened = in_thread(lambda: open_endpoint(config))
    hello = Hello(session=config.session, name="worker-1", terms="others").message().encode()
    with socket.socket() as data:
        data.bind((place.addresses["worker-1"], 0))
        until_s = time.monotonic() + 5
        while data.connect_ex((config.bind_address, config.data_port)):
            assert time.monotonic() < until_s
        data.settimeout(5)
        data.sendall(hello)
        assert data.recv(1) == b""
    with open_endpoint(place.worker()), opened.result(timeout=5) as server:
        assert server.counters() == {"stranger-refused": 1}


def test_a_frame_of_another_transfer_ends_the_peer():
    place = site(preset("tcp"))
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:
        tcp_of(worker).sendall(bytes(16))
        with pytest.raises(PeerLost, match="worker-1: it broke the protocol"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
