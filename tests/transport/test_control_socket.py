"""Control messages in datagrams through real sockets, where TCP or these datagrams vanish."""

import contextlib
import socket
import time
from collections import Counter

import numpy as np
import pytest

from testbed.transport import PayloadLayout, preset
from testbed.transport.messages import KEY_BYTES
from testbed.transport.net.control import ControlSocket, Stream
from tests.own_network import alone, drop
from tests.transport.loopback import carry, in_thread, joined, poll_until, site, tcp_pair
from tests.transport.virtual import random_payload


def four_rounds(*lost):
    """Returns what each round brings over a path that loses packets, and both sides' facts."""
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
        "sent": [fact["control_datagrams"] for fact in facts],
        "repeated": [fact["control_datagrams_repeated"] for fact in facts],
    }


def losing(*lost):
    outcome = alone(four_rounds, *lost)
    assert outcome["right"] == [True] * 4
    assert outcome["heard"] == ["0", "1", "2", "3"]
    return outcome


def test_transfers_and_announcements_go_on_when_tcp_carries_nothing_any_more():
    assert min(losing("ip protocol tcp")["sent"]) >= 4  # each side, at least once a round


def test_where_datagrams_do_not_get_through_tcp_does_all():
    # And much of TCP is lost, so that there are some repeats.
    some = "ip protocol tcp numgen random mod 10 < 3"
    outcome = losing("udp dport 21000", "udp sport 21000", some)
    assert sum(outcome["repeated"]) > 0


def test_a_lost_port_leaves_control_to_tcp(monkeypatch):
    def taken(*arguments, **settings):
        raise OSError("Address already in use")

    monkeypatch.setattr("testbed.transport.net.membership.ControlSocket", taken)
    with joined(site(preset("bounded-energy"))) as (worker, server):
        carry(worker, server)
        carry(worker, server, 2)


class Heard:
    """A connection that keeps what it is handed."""

    def __init__(self):
        self.counters: Counter[str] = Counter()
        self.datagrams = []

    def on_control_datagrams(self, datagrams, now_s, *, waited):
        self.datagrams += datagrams


@pytest.fixture
def ends():
    """The ends of a TCP connection on loopback, the server's first."""
    streams = [Stream(end) for end in tcp_pair()]
    yield [stream.ends for stream in streams]
    for stream in streams:
        stream.close()


KEYS = [b"", bytes(KEY_BYTES)]


@contextlib.contextmanager
def pair(ends, key):
    both = [ControlSocket(ends[index], key=key, is_server=index == 0) for index in range(len(ends))]
    yield both
    for one in both:
        one.close()


def read(channel, *, within_s=0.3):
    """Returns what a channel hands over, until something comes or for so long."""
    heard, until_s = Heard(), time.monotonic() + within_s
    while not (heard.datagrams or heard.counters) and time.monotonic() < until_s:
        channel.read(heard, time.monotonic(), waited=False)
        time.sleep(1e-3)
    return heard


@pytest.mark.parametrize("key", KEYS, ids=["no key", "authenticated"])
def test_a_datagram_comes_as_it_was_sent(ends, key):
    with pair(ends, key) as (server, worker):
        for here, there in ((worker, server), (server, worker)):
            here.write([b"probe"])
            assert read(there).datagrams == [b"probe"]


@pytest.mark.parametrize("key", KEYS, ids=["no key", "authenticated"])
def test_a_datagram_that_was_changed_or_forged_is_counted(ends, key):
    server = ControlSocket(ends[0], key=key, is_server=True)
    forger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    local, peer = ends[1]
    forger.bind(local)
    for datagram in (b"", b"x" * 10, bytes(60), bytes(5000)):
        forger.sendto(datagram, peer)
    time.sleep(0.05)
    heard = read(server)
    assert heard.counters == {"control-forged": 4} and heard.datagrams == []
    forger.close()
    server.close()


def test_a_datagram_cannot_be_sent_back_to_its_sender_nor_made_with_another_key(ends):
    with pair(ends, KEYS[1]) as (server, worker):
        worker.write([b"stop"])
        server._socket.send(server._socket.recv(2048))
        assert read(worker).counters == {"control-forged": 1}


@pytest.mark.parametrize("key", [b"", b"1" * KEY_BYTES], ids=["no key", "another"])
def test_a_datagram_with_another_key_is_forged(ends, key):
    with pair(ends[:1], KEYS[1]) as (server,):
        forger = ControlSocket(ends[1], key=key, is_server=False)
        forger.write([b"stop"])
        assert read(server).counters == {"control-forged": 1}
        forger.close()
