"""Hedged control through real sockets, where TCP, hedges or most packets vanish."""

import contextlib
import socket
import time
from collections import Counter

import numpy as np
import pytest

from testbed.transport import PayloadLayout, preset
from testbed.transport.messages import KEY_BYTES
from testbed.transport.net.control import HedgeChannel, Stream
from tests.own_network import alone, drop
from tests.transport.loopback import carry, in_thread, joined, poll_until, site, tcp_pair
from tests.transport.virtual import random_payload


def four_rounds(*lost):
    """Returns what each round brings over a path that loses packets, and what hedges did."""
    place = site(preset("bounded-energy"), layout=PayloadLayout([("w", 60_000)]), rate_bps=200e6)
    payload = random_payload(place.layout, seed=1)
    gather, broadcast = (
        leg.stop_rule(critical=False) for leg in (place.protocol.gather, place.protocol.broadcast)
    )

    def serve(server):
        right = []
        for number in range(4):
            into = place.layout.new_buffer()
            report = server.receive(2 * number, gather, {"worker-1": into})["worker-1"]
            got = report.received
            rows, sent = place.layout.rows(into), place.layout.rows(payload)
            right.append(bool(got.any()) and np.array_equal(rows[got], sent[got]))
            server.announce(str(number).encode())
            server.send(2 * number + 1, {"worker-1": into})
        return right

    with joined(place) as (worker, server):
        drop(*(rule.format(server=place.server_address) for rule in lost))
        serving = in_thread(serve, server)
        heard = []
        for number in range(4):
            worker.send(2 * number, {"server": payload})
            heard.append(worker.await_announcement().decode())
            worker.receive(2 * number + 1, broadcast, {"server": place.layout.new_buffer()})
        poll_until(worker, serving.done)  # until its last STOP is heard
        facts = worker.facts()["server"], server.facts()["worker-1"]
    return {
        "right": serving.result(),
        "heard": heard,
        "gained": [fact["hedges_gained"] for fact in facts],
        "sent": [fact["hedges_sent"] for fact in facts],
    }


def losing(*lost):
    outcome = alone(four_rounds, *lost)
    assert outcome["right"] == [True] * 4
    assert outcome["heard"] == ["0", "1", "2", "3"]
    return outcome


def test_transfers_and_announcements_go_on_when_tcp_carries_nothing_any_more():
    assert min(losing("ip protocol tcp")["gained"]) >= 4  # each side, at least once a round


def test_where_hedges_do_not_get_through_tcp_does_all():
    # And much of TCP is lost, so that there are some.
    some = "ip protocol tcp numgen random mod 10 < 3"
    outcome = losing("udp dport 21000", "udp sport 21000", some)
    assert outcome["gained"] == [0, 0]
    assert sum(outcome["sent"]) > 0


def test_a_lost_hedge_port_leaves_the_connection_as_it_is(monkeypatch):
    def taken(*arguments, **settings):
        raise OSError("Address already in use")

    monkeypatch.setattr("testbed.transport.net.membership.HedgeChannel", taken)
    with joined(site(preset("bounded-energy"))) as (worker, server):
        carry(worker, server)
        assert "hedges_sent" not in worker.facts()["server"]


class Unacknowledged(Stream):
    """A stream whose peer has acknowledged nothing."""

    acknowledged_bytes = 0


@pytest.fixture
def streams():
    """The two ends of a TCP connection on loopback, the server's first."""
    far, near = tcp_pair()
    ends = Stream(far), Unacknowledged(near)
    yield ends
    for end in ends:
        end.close()


@contextlib.contextmanager
def channels(streams, *, key=b""):
    both = [
        HedgeChannel(stream, session=7, counters=Counter(), key=key, is_server=index == 0)
        for index, stream in enumerate(streams)
    ]
    for channel in both:
        channel.write(b"hello", time.monotonic())
    yield both
    for channel in both:
        channel.close()


def received(channel, *, within_s=5.0):
    until_s = time.monotonic() + within_s
    while not (data := channel.read(time.monotonic())) and time.monotonic() < until_s:
        time.sleep(1e-3)
    return data


class NoDoubt:
    """A connection without any doubt."""

    def doubt(self, after_s):
        return float("inf"), float("inf")


class Doubting(NoDoubt):
    def doubt(self, after_s):
        return (0.0, 1.0) if after_s < 1 else super().doubt(after_s)


@pytest.mark.parametrize("key", [b"", bytes(KEY_BYTES)], ids=["no key", "authenticated"])
def test_what_tcp_has_not_brought_comes_in_a_hedge_once(streams, key):
    with channels(streams, key=key) as (server, worker):
        worker.write(b"worth", time.monotonic())
        worker.work(Doubting(), time.monotonic())
        assert streams[0].read(5) == b"hello"  # TCP has brought all, and the rest is left unread
        assert server.new(b"hello") == b"hello"
        assert received(server) == b"worth"
        assert server.new(streams[0].read()) == b""


def test_a_doubt_is_raised_once(streams):
    with channels(streams) as (server, worker):
        worker.work(Doubting(), time.monotonic())
        assert received(server, within_s=0.5) == b""
        server.work(NoDoubt(), time.monotonic())
        received(worker, within_s=0.5)
        worker.work(Doubting(), time.monotonic())
        assert worker.facts["hedges_sent"] == 1


@pytest.mark.parametrize("key", [b"", bytes(KEY_BYTES)], ids=["no key", "authenticated"])
def test_a_hedge_that_was_changed_or_forged_is_counted(streams, key):
    counters: Counter[str] = Counter()
    server = HedgeChannel(streams[0], session=7, counters=counters, key=key, is_server=True)
    forger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    local, peer = streams[1].ends
    forger.bind(local)
    for datagram in (b"", b"x" * 10, bytes(60), bytes(5000)):
        forger.sendto(datagram, peer)
    assert received(server, within_s=0.2) == b""
    assert counters == {"hedge-forged": 4}
    forger.close()
    server.close()


def test_a_hedge_cannot_be_sent_back_to_its_sender(streams):
    with channels(streams, key=bytes(KEY_BYTES)) as (server, worker):
        worker.write(b"worth", time.monotonic())
        worker.work(Doubting(), time.monotonic())
        server._socket.send(server._socket.recv(2048))
        assert received(worker, within_s=0.2) == b""
        assert worker._counters == {"hedge-forged": 1}
