"""Peers that have joined and mean harm, and peers that are gone without saying so."""

import contextlib
import random
import socket
import threading
import time

import numpy as np
import pytest

from testbed.transport import PayloadLayout, PeerLost, open_endpoint
from testbed.transport.messages import ControlMessage, MessageType, body_limits
from testbed.transport.wire import new_frames
from tests.fuzz.connections import attack
from tests.own_network import alone, drop
from tests.transport.loopback import both, failure, in_thread, joined, site, udp_of


@both
@pytest.mark.parametrize("seed", range(2))
def test_a_joined_peer_that_talks_nonsense_is_given_up_by_name(protocol, seed):
    generator = random.Random(seed)
    place = site(protocol, peer_timeout_s=1, rate_bps=50e6)
    with joined(place) as (worker, server):

        def harm():
            kinds = [kind for kind in MessageType if kind >= MessageType.PROBE]
            limits = body_limits(place.layout.chunk_count)
            for _ in range(200):
                frames = new_frames(4, place.layout.chunk_bytes)
                frames[:] = np.frombuffer(generator.randbytes(frames.size), np.uint8).reshape(
                    frames.shape
                )
                if protocol.carrier == "udp":
                    udp_of(worker).send(frames)
                kind = generator.choice(kinds)
                size = min(limits[kind][generator.randrange(2)], 2000)
                transfer = generator.choice([0, 0, 1, 2**32 - 1])
                message = ControlMessage(kind, transfer, generator.randbytes(size))
                worker._driver.links["server"].stream.write(message.encode())

        harming = in_thread(harm)
        with pytest.raises(PeerLost, match="worker-1"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        harming.result(timeout=30)


def test_a_peer_that_reads_too_slowly_holds_up_nobody_elses_transfer():
    place = site(workers=2, survive_peers=True, peer_timeout_s=3.0)
    opened = in_thread(lambda: open_endpoint(place.server()))
    other = in_thread(lambda: open_endpoint(place.worker(1)))
    with open_endpoint(place.worker(2)) as slow, opened.result(timeout=30) as server:
        connection = slow._driver.links["server"].stream._connection
        connection.setblocking(True)
        pings = ControlMessage(MessageType.PING).encode() * 30_000
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        served = server._driver.links["worker-2"].stream
        served._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        asking = in_thread(connection.sendall, pings)
        over = threading.Event()

        def drip():
            while not over.wait(0.1):
                connection.recv(2000)

        until_s = time.monotonic() + 30
        while not (asking.done() and served.has_unsent) and time.monotonic() < until_s:
            server.poll(0.02)
        assert served.has_unsent
        dripping = in_thread(drip)
        with other.result(timeout=30) as worker:
            buffer = place.layout.new_buffer()
            sending = in_thread(worker.send, 0, {"server": buffer})
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
            assert "worker-2" not in server.lost  # so nobody waited for it
            sending.result(timeout=30)
        with pytest.raises(PeerLost, match="worker-2: it does not read what it is sent"):
            server.receive(2, 0, {"worker-2": place.layout.new_buffer()})
        over.set()
        with contextlib.suppress(OSError):
            dripping.result(timeout=30)


@pytest.mark.parametrize("size", [0, 65536])
def test_announcements_that_are_never_taken_are_bounded(size):
    place = site()
    with joined(place) as (worker, server):

        def announce():
            with contextlib.suppress(PeerLost):
                for _ in range(10_000):
                    server.announce(bytes(size))

        announcing = in_thread(announce)
        with pytest.raises(PeerLost, match="it announces without end"):
            worker.receive(0, 0, {"server": place.layout.new_buffer()})
        announcing.result(timeout=30)
        held = [len(worker.await_announcement()) for _ in range(100)]
    assert held == [size] * 100


def over_a_dying_path():
    """Returns how many seconds later the sender and the receiver give up, and their words."""
    place = site(layout=PayloadLayout([("w", 5_000_000)]), rate_bps=1e6, peer_timeout_s=2.0)

    def lost(work, *arguments):
        return str(failure(work, *arguments)), time.monotonic()

    with joined(place) as (worker, server):
        buffer = place.layout.new_buffer()
        sides = [
            in_thread(lost, worker.send, 0, {"server": buffer}),
            in_thread(lost, server.receive, 0, 0, {"worker-1": buffer}),
        ]
        time.sleep(0.3)
        dead_s = time.monotonic()
        drop("")
        ends = [side.result(timeout=30) for side in sides]
    return [(at_s - dead_s, words) for words, at_s in ends]


def test_a_path_that_swallows_everything_is_noticed_at_both_ends_even_during_a_long_pass():
    ends = alone(over_a_dying_path)
    for (took_s, words), peer in zip(ends, ("server", "worker-1"), strict=True):
        assert 1 <= took_s < 20  # the pass would take 160 s
        assert words.startswith(f"lost {peer}: ")


@pytest.mark.parametrize(
    "share", [0.003, pytest.param(0.1, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_nothing_that_is_built_by_structure_ends_or_fills_a_connection(share):
    """A share of what `python -m tests.fuzz.connections` sends."""
    datagrams, messages = int(share * 1e7), int(share * 1e6)
    done = attack(datagrams, messages, seed=1)
    assert done["datagrams"] >= datagrams
    assert done["messages"] >= messages
