"""The protocol `tcp`."""

import socket
import struct
import time

import numpy as np
import pytest

from testbed.transport import PayloadLayout, PeerLost, open_endpoint, preset
from testbed.transport.errors import ProtocolError
from testbed.transport.messages import ControlParser, MessageType, body_limits, pack_bitmap
from testbed.transport.net.tcp import (
    Selected,
    available_congestion_controls,
    check_congestion_control,
    get_congestion_control,
    set_congestion_control,
    tcp_counts,
)
from tests.transport.loopback import (
    carry,
    failure,
    hello_from,
    in_thread,
    joined,
    poll_until,
    run_all,
    site,
    tcp_of,
    tcp_pair,
)
from tests.transport.virtual import random_payload


@pytest.mark.parametrize("name", available_congestion_controls())
def test_the_congestion_control_is_in_force_on_both_sides(name):
    place = site(preset("tcp", congestion_control=name))
    with joined(place) as (worker, server):
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


def test_what_a_process_may_not_choose_is_left_to_the_route_and_looked_at_later():
    class OfNoPowers(socket.socket):
        def setsockopt(self, *option):
            raise PermissionError(1, "Operation not permitted")

    with OfNoPowers() as trial:
        default = get_congestion_control(trial)
        other = next(name for name in available_congestion_controls() if name != default)
        set_congestion_control(trial, other)
        check_congestion_control(trial, default)
        with pytest.raises(ProtocolError, match=f"'{default}' instead of '{other}'"):
            check_congestion_control(trial, other)


def test_counts_have_the_meaning_of_the_kernels_structure():
    two, one = tcp_pair()
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
    opened = in_thread(lambda: open_endpoint(place.server()))
    with hello_from(place, "data_port", terms="others") as data:
        assert data.recv(1) == b""
    with open_endpoint(place.worker()), opened.result(timeout=30) as server:
        assert server.counters() == {"stranger-refused": 1}


def test_a_second_connection_for_data_is_shown_out_and_the_first_one_goes_on():
    place = site(preset("tcp"))
    with joined(place) as (worker, server):
        with hello_from(place, "data_port") as second:
            poll_until(server, lambda: bool(server.counters()))
            assert second.recv(1) == b""
        assert server.counters() == {"stranger-twice": 1}
        carry(worker, server)


def test_a_frame_of_another_transfer_ends_the_peer():
    place = site(preset("tcp"))
    with joined(place) as (worker, server):
        tcp_of(worker).sendall(bytes(16))
        line = f"transfer 0 of 0 bytes instead of 0 of {place.layout.payload_bytes}, in another"
        with pytest.raises(PeerLost, match=f"worker-1: it broke the protocol: {line} session"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})


def trickle(endpoint, numbers, payload, *, pieces, pause_s):
    """Sends transfers slowly, but never standing still."""
    endpoint.await_start()
    data = tcp_of(endpoint)
    data.setblocking(True)
    size = endpoint._config.layout.payload_bytes
    for number in numbers:
        data.sendall(struct.pack("!IIQ", endpoint._config.session, number, size))
        for piece in range(pieces):
            time.sleep(pause_s)
            data.sendall(payload.data[piece * size // pieces : (piece + 1) * size // pieces])


def test_data_that_wait_while_the_server_is_busy_with_another_are_no_reason_to_give_it_up():
    """A sender's payload does not fit into the kernel's buffers; its receiver lives."""
    layout = PayloadLayout([("w", 5_000_000)])
    place = site(preset("tcp"), layout=layout, workers=2, peer_timeout_s=2.0)
    payload = place.layout.new_buffer()

    def server(endpoint):
        endpoint.receive(0, 0, {name: place.layout.new_buffer() for name in place.addresses})
        return endpoint.receive(2, 0, {"worker-1": place.layout.new_buffer()}).keys()

    def worker(endpoint, index):
        if index == 1:
            endpoint.send(0, {"server": payload})
            return endpoint.send(2, {"server": payload})
        trickle(endpoint, [0], payload, pieces=8, pause_s=0.4)
        return endpoint.poll(2.0)

    received, _ = run_all(place, server, worker)
    assert received == {"worker-1"}


def test_a_transfer_that_waits_for_an_earlier_one_is_not_given_up():
    place = site(preset("tcp"), layout=PayloadLayout([("w", 1_000_000)]), peer_timeout_s=1.0)
    payload = place.layout.new_buffer()

    def server(endpoint):
        buffers = {number: place.layout.new_buffer() for number in (0, 2)}
        handles = [endpoint.post_receive(n, 0, {"worker-1": buffers[n]}) for n in buffers]
        for handle in handles:
            handle.wait()

    def worker(endpoint, index):
        trickle(endpoint, [0, 2], payload, pieces=4, pause_s=0.3)
        endpoint.poll(0.2)

    run_all(place, server, worker)


def lost_by(call, *arguments):
    return failure(call, *arguments).reason.removeprefix("it gave up: ")


def test_two_sides_that_both_send_and_do_not_receive_are_told_so():
    place = site(preset("tcp"), peer_timeout_s=0.5)
    payload = place.layout.new_buffer()

    reason, [other] = run_all(
        place,
        lambda endpoint: lost_by(endpoint.send, 1, {"worker-1": payload}),
        lambda endpoint, index: lost_by(endpoint.send, 0, {"server": payload}),
    )
    assert reason == other == "both sides send and neither receives, for 0.5 s"


SO_MAX_PACING_RATE = 47  # from <asm-generic/socket.h>; Python's socket module lacks it


def test_a_transfer_that_waits_here_is_no_reason_to_give_up_one_that_still_moves():
    """The worker's kernel has all of a payload that leaves slowly; the server's next one waits."""
    layout = PayloadLayout([("w", 1_000_000)])
    place = site(preset("tcp"), layout=layout, peer_timeout_s=0.5)
    payload = random_payload(layout)

    def server(endpoint):
        buffer = layout.new_buffer()
        sending = endpoint.post_send(1, {"worker-1": payload})
        endpoint.receive(0, 0, {"worker-1": buffer})
        sending.wait()
        return buffer

    def worker(endpoint, index):
        endpoint.await_start()
        tcp_of(endpoint).setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 2_000_000)
        sent = endpoint.send(0, {"server": payload})["server"]
        buffer = layout.new_buffer()
        endpoint.receive(1, 0, {"server": buffer})
        return sent.duration_s, buffer

    received, [(took_s, broadcast)] = run_all(place, server, worker)
    assert took_s > 2 * place.settings["peer_timeout_s"]
    assert np.array_equal(received, payload) and np.array_equal(broadcast, payload)


@pytest.mark.parametrize("survive_peers", [True, False])
def test_a_worker_that_has_joined_again_by_half_is_still_away(survive_peers):
    place = site(preset("tcp"), survive_peers=survive_peers, connect_timeout_s=1.0)
    opened = in_thread(lambda: open_endpoint(place.server()))
    worker = open_endpoint(place.worker())
    with opened.result(timeout=30) as server:
        worker.close()
        server.poll(0.1)
        buffers = {"worker-1": place.layout.new_buffer()}
        with hello_from(place, layout=place.layout.encode()) as half:
            server.poll(0.1)
            assert "worker-1" in server._driver.links
            for act in (
                lambda: server.receive(0, 0, buffers),
                lambda: server.send(1, buffers),
                lambda: server.announce(b"to whom?"),
            ):
                with pytest.raises(PeerLost, match=r"worker-1: the connection was (closed|reset)"):
                    act()
            server.poll(1.2)
            assert "worker-1" not in server._driver.links
            answers = ControlParser(body_limits(1)).feed(half.recv(1000))
            assert [message.type for message in answers] == [MessageType.WELCOME]
            assert half.recv(1) == b""
        again = in_thread(lambda: open_endpoint(place.worker()))
        server.poll(0.5)
        receiving = in_thread(server.receive, 2, 0, buffers)
        with again.result(timeout=30) as worker:
            worker.send(2, {"server": place.layout.new_buffer()})
            assert receiving.result(timeout=30).keys() == {"worker-1"}


def test_only_the_most_energetic_chunks_travel_and_both_sides_know_which():
    layout = PayloadLayout([("w", 100_000)])  # the last chunk is shorter than others
    place = site(preset("top-k", keep=0.1), layout=layout)
    payload = random_payload(layout)
    rows = layout.rows(payload).view("<f4")
    rows[:] = np.random.default_rng(3).normal(0, 1e-3, rows.shape).astype(np.float32)
    loud = [7, 50, layout.chunk_count - 1]
    rows[loud] = 1.0
    rows[9, 4] = np.nan
    rows[-1, int(layout.chunk_lengths[-1]) // 4 :] = 0
    energy = np.square(rows.astype(np.float64)).sum(axis=1)
    energy[9] = np.inf
    count = -(-layout.chunk_count // 10)
    expected = np.zeros(layout.chunk_count, dtype=bool)
    expected[np.argsort(-energy)[:count]] = True
    assert expected[[*loud, 9]].all()

    def server(endpoint):
        buffer = layout.new_buffer()
        report = endpoint.receive(0, 0, {"worker-1": buffer})["worker-1"]
        return buffer, report, endpoint.send(1, {"worker-1": payload})["worker-1"]

    def worker(endpoint, index):
        sent = endpoint.send(0, {"server": payload})["server"]
        buffer = layout.new_buffer()
        return sent, endpoint.receive(1, 0, {"server": buffer})["server"], buffer

    (gathered, got, announced), [(sent, came, broadcast)] = run_all(place, server, worker)
    for buffer in (gathered, broadcast):
        assert np.array_equal(layout.rows(buffer)[expected], layout.rows(payload)[expected])
        assert not layout.rows(buffer)[~expected].any()
    for report in (got, sent, announced, came):
        assert np.array_equal(report.received, expected) and report.chunks_received == count
    assert sent.chunks_sent == count
    for carried in (sent.bytes_sent, got.bytes_received):
        assert count * layout.chunk_bytes < carried < 1.2 * count * layout.chunk_bytes


def test_a_bitmap_that_names_more_chunks_than_were_agreed_breaks_the_connection(monkeypatch):
    layout = PayloadLayout([("w", 100_000)])
    place = site(preset("top-k", keep=0.1), layout=layout, peer_timeout_s=5.0)

    def pack(self, layout, payload):
        chosen = np.ones(layout.chunk_count, dtype=bool)
        return chosen, memoryview(pack_bitmap(chosen) + payload.tobytes())

    monkeypatch.setattr(Selected, "pack", pack)

    buffer, payload = layout.new_buffer(), layout.new_buffer()
    reason, [other] = run_all(
        place,
        lambda endpoint: lost_by(endpoint.receive, 0, 0, {"worker-1": buffer}),
        lambda endpoint, index: lost_by(endpoint.send, 0, {"server": payload}),
    )
    assert reason == f"it broke the protocol: a bitmap of {layout.chunk_count} chunks instead of 28"
    assert reason in other
    assert not buffer.any()
