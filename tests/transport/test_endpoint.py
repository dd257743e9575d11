"""Endpoints on loopback, over UDP and over TCP: what arrives, and mistakes of the caller."""

import socket
import time

import numpy as np
import pytest

from testbed.transport import PayloadLayout, TransportError, open_endpoint
from testbed.transport.net.addresses import resolve
from testbed.transport.net.carriers import open_data_sockets
from tests.transport.loopback import both, carry, in_thread, joined, run_all, site, udp_of
from tests.transport.virtual import random_payload


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


def test_a_socket_that_is_full_again_and_again_delays_and_loses_nothing():
    place = site(rate_bps=float("inf"))
    payload = random_payload(place.layout)

    def worker(endpoint, index):
        socket_ = udp_of(endpoint)._socket
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
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


def test_an_endpoint_that_is_closed_says_so_and_can_still_be_woken():
    place = site()
    with joined(place) as ends:
        for endpoint in ends:
            endpoint.close()
            endpoint.close()
            endpoint.wake()
            with pytest.raises(TransportError, match="not open"):
                endpoint.send(0, {})


def sockets_of(place, **changes):
    return open_data_sockets(
        **{
            "carrier": place.protocol.carrier,
            "local": resolve(place.worker().bind_address, what="local"),
            "peers": {"server": resolve(place.server_address, what="peer")},
            "ports": {"server": 0},
            "is_server": False,
            "chunk_bytes": place.layout.chunk_bytes,
            "congestion_control": place.protocol.congestion_control,
            **changes,
        }
    )


@both
def test_data_sockets_may_be_opened_long_before_the_endpoint(protocol):
    place = site(protocol, data_port=0)
    sockets = sockets_of(place)
    numbers = [opened.fileno() for opened in sockets.values()]
    opened = in_thread(lambda: open_endpoint(place.server(data_port=21100)))
    with open_endpoint(place.worker(), sockets) as worker, opened.result(timeout=30) as server:
        carry(worker, server)
        data = worker._driver.links["server"].data
        assert data is not None and numbers == [data.fileno()]


def test_data_sockets_that_were_opened_for_other_datagrams_are_refused():
    place = site(data_port=0)
    sockets = sockets_of(place, chunk_bytes=place.layout.chunk_bytes - 4)
    with pytest.raises(ValueError, match="data sockets were opened for datagrams of"):
        open_endpoint(place.worker(), sockets).open()


def test_what_is_left_out_never_reaches_the_socket_and_all_arrives_in_the_end():
    generator = np.random.default_rng(1)
    asked, taken = [], []

    def leave_out(count):
        asked.append(count)
        return None if len(asked) == 2 else generator.random(count) < 0.7

    place = site(rate_bps=200e6, leave_out=leave_out)
    payload = random_payload(place.layout)

    def worker(endpoint, index):
        udp = udp_of(endpoint)
        send = udp.send

        def one_less(frames):
            # The kernel may take fewer than offered; the rest is offered again.
            taken.append(send(frames[: max(1, len(frames) - 1)]))
            return taken[-1]

        udp.send = one_less  # type: ignore[method-assign]
        return endpoint.send(0, {"server": payload})["server"]

    buffer = place.layout.new_buffer()
    _, [sent] = run_all(
        place, lambda endpoint: endpoint.receive(0, 0, {"worker-1": buffer}), worker
    )
    assert np.array_equal(buffer, payload)
    assert sent.chunks_sent == sum(taken)
    assert sent.chunks_left_out > sent.chunks_sent
    assert sent.chunks_sent + sent.chunks_left_out <= sum(asked)
