"""Peers and strangers who mean harm, and peers that are gone without saying so."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from testbed.transport import PayloadLayout, PeerLost, ProtocolError, open_endpoint, preset
from testbed.transport.core.messages import (
    ControlMessage,
    Hello,
    MessageType,
    body_limits,
)
from testbed.transport.core.wire import new_frames
from testbed.transport.net.stream import Stream
from testbed.transport.policies.repair import REPAIRS
from tests.transport.hostile import CHUNK, Victim, control_bytes, encoded, record, stranger_record
from tests.transport.loopback import SESSION, in_thread, say, site, tcp_of, udp_of

CARRIERS = [preset("fixed-low", tolerance=0), preset("tcp")]
both = pytest.mark.parametrize("protocol", CARRIERS, ids=lambda protocol: protocol.carrier)
repairs = st.sampled_from(sorted(REPAIRS))


class HostilePeer(RuleBasedStateMachine):
    """Any interleaving of datagrams, control messages and time."""

    @initialize(repair=repairs, chunks=st.integers(1, 40), tolerance=st.sampled_from([0, 0.1, 0.5]))
    def begin(self, repair, chunks, tolerance):
        self.victim = Victim(repair, chunks, tolerance)

    @rule(records=st.lists(record, min_size=1, max_size=8))
    def datagrams(self, records):
        self.victim.datagrams(encoded(records))

    @rule(records=st.lists(stranger_record, min_size=1, max_size=8))
    def datagrams_of_another_session(self, records):
        assert self.victim.datagrams(encoded(records)) == 0

    @rule(size=st.sampled_from([16, 17, 20, 25, 1472]), noise=st.binary(min_size=20, max_size=200))
    def datagrams_of_another_size(self, size, noise):
        assert self.victim.datagrams(noise * (1472 // 20), size) == 0

    @rule(noise=st.binary(min_size=24, max_size=240))
    def noise(self, noise):
        self.victim.datagrams(noise)

    @rule(side=st.sampled_from(["sender", "receiver"]), data=control_bytes())
    def control(self, side, data):
        self.victim.control(side, data)

    @rule(seconds=st.sampled_from([0.0, 1e-4, 0.01, 1.0, 1000.0]))
    def wait(self, seconds):
        self.victim.wait(seconds)

    @invariant()
    def everything_is_accounted_for(self):
        if hasattr(self, "victim"):
            self.victim.check()


TestHostilePeer = HostilePeer.TestCase
TestHostilePeer.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# Nobody is answered who has not shown that they belong here.


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
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:
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
        receiving.result(timeout=10)
        sending.result(timeout=10)


@both
@pytest.mark.parametrize(
    "said",
    [
        Hello(session=SESSION + 1, name="worker-1", layout=bytes(1000)).message().encode(),
        Hello(session=SESSION, name="worker-1").message().encode(),  # not from its address
        ControlMessage(MessageType.PROBE, 0).encode() * 50,
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(2000),
    ],
    ids=["another-session", "another-address", "probes", "http", "noise"],
)
def test_a_stranger_gets_no_byte_for_what_it_says_at_a_door(protocol, said):
    place = site(protocol, connect_timeout_s=3)
    opened = in_thread(lambda: open_endpoint(place.server()))
    config = place.server()
    ports = [config.control_port] + [config.data_port] * (protocol.carrier == "tcp")
    for port in ports:
        connection = connect(config.bind_address, port)
        with connection, contextlib.suppress(OSError):
            connection.sendall(said)
            assert drained(connection) == 0
    with open_endpoint(place.worker()), opened.result(timeout=5) as server:
        assert sum(server.counters().values()) == len(ports)


def connect(address, port, source=""):
    deadline_s = time.monotonic() + 3
    while True:
        try:
            return socket.create_connection((address, port), timeout=3, source_address=(source, 0))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_who_cannot_name_the_session_is_shown_out_before_a_long_hello_is_complete():
    place = site(connect_timeout_s=3)
    opened = in_thread(lambda: open_endpoint(place.server()))
    hello = Hello(session=SESSION + 1, name="worker-1", layout=bytes(1 << 19)).message().encode()
    with connect(place.server_address, 21000) as connection:
        connection.settimeout(2)
        connection.sendall(hello[:10])
        time.sleep(0.05)
        connection.sendall(hello[10:16])
        assert connection.recv(1) == b""
    with open_endpoint(place.worker()), opened.result(timeout=5) as server:
        assert server.counters() == {"stranger-wrong-session": 1}


# Peers that have joined and mean harm.


def test_a_peer_without_a_port_for_its_data_is_named_when_it_joins():
    place = site(connect_timeout_s=3)
    opened = in_thread(lambda: open_endpoint(place.server()))
    layout = place.layout.encode()
    terms = place.server().terms
    hello = Hello(session=SESSION, name="worker-1", terms=terms, layout=layout).message()
    with connect(place.server_address, 21000, source=place.addresses["worker-1"]) as connection:
        connection.sendall(hello.encode())
        with pytest.raises(ProtocolError, match="worker-1 names no port"):
            opened.result(timeout=5)


def test_a_hello_that_is_refused_does_not_end_the_connection_of_the_same_name():
    place = site(survive_peers=True)
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:
        hello = Hello(  # names no port for its data
            session=SESSION,
            name="worker-1",
            terms=place.server().terms,
            layout=place.layout.encode(),
        )
        with connect(place.server_address, 21000, source=place.addresses["worker-1"]) as another:
            another.sendall(hello.message().encode())
            server.poll(0.2)
        assert server.counters()["stranger-refused"] == 1
        sending = in_thread(worker.send, 0, {"server": place.layout.new_buffer()})
        server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        sending.result(timeout=5)


@both
@pytest.mark.parametrize("seed", range(6))
def test_a_joined_peer_that_talks_nonsense_is_given_up_by_name(protocol, seed):
    generator = random.Random(seed)
    place = site(protocol, peer_timeout_s=1, rate_bps=50e6)
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:

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
                say(worker, [ControlMessage(kind, transfer, generator.randbytes(size))])

        harming = in_thread(harm)
        with pytest.raises(PeerLost, match="worker-1"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        harming.result(timeout=5)


@both
@pytest.mark.parametrize("kind", [kind for kind in MessageType if kind >= MessageType.PROBE])
def test_any_message_while_a_receive_is_posted_costs_its_sender_at_most(protocol, kind):
    place = site(protocol, peer_timeout_s=0.5)
    opened = in_thread(lambda: open_endpoint(place.server()))
    body = bytes(body_limits(place.layout.chunk_count)[kind][0])
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:
        receiving = in_thread(server.receive, 0, 0, {"worker-1": place.layout.new_buffer()})
        time.sleep(0.05)
        say(worker, [ControlMessage(kind, 0, body)])
        with pytest.raises(PeerLost, match="worker-1"):
            receiving.result(timeout=5)


def test_a_peer_that_reads_too_slowly_holds_up_nobody_elses_transfer():
    place = site(workers=2, survive_peers=True, peer_timeout_s=3.0)
    opened = in_thread(lambda: open_endpoint(place.server()))
    other = in_thread(lambda: open_endpoint(place.worker(1)))
    with open_endpoint(place.worker(2)) as slow, opened.result(timeout=5) as server:
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

        until_s = time.monotonic() + 5
        while not (asking.done() and served.has_unsent) and time.monotonic() < until_s:
            server.poll(0.02)
        assert served.has_unsent
        dripping = in_thread(drip)
        with other.result(timeout=5) as worker:
            buffer = place.layout.new_buffer()
            sending = in_thread(worker.send, 0, {"server": buffer})
            began_s = time.monotonic()
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
            assert time.monotonic() - began_s < 2.5
            sending.result(timeout=5)
        with pytest.raises(PeerLost, match="worker-2: it does not read what it is sent"):
            server.receive(2, 0, {"worker-2": place.layout.new_buffer()})
        over.set()
        with contextlib.suppress(OSError):
            dripping.result(timeout=5)


@pytest.fixture
def connected():
    """A stream and its peer's end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    stream = Stream(connection)
    yield stream, peer
    peer.close()
    stream.close()


def test_a_peer_that_does_not_read_what_it_asked_for_is_given_up(connected):
    stream, _ = connected
    bitmap = ControlMessage(MessageType.BITMAP, 0, bytes(12_500)).encode()
    for _ in range(3000):
        stream.write(bitmap)
    assert stream.closed == "it does not read what it is sent"
    assert not stream.has_unsent


def test_a_peer_that_reads_too_little_for_too_long_is_given_up(connected):
    stream, peer = connected
    stream.give_up_after(10.0)
    now_s = time.monotonic()
    while not stream.has_unsent:
        stream.write(bytes(1 << 20))
    stream.write(bytes(4 << 20))
    for later_s in (5.0, 9.0):
        peer.recv(1 << 16)
        stream.flush()
        assert stream.has_unsent
        stream.expire(now_s + later_s)
        assert stream.closed is None
    stream.expire(now_s + 11.0)
    assert stream.closed == "it does not read what it is sent"


def test_a_long_patience_stays_within_what_the_kernel_takes(connected):
    stream, _ = connected
    kernel = stream._connection
    stream.give_up_after(140_000.0)
    assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 32767
    assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 140_000_000
    stream.give_up_after(1e9)
    assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2**31 - 1


def test_a_peer_that_reads_all_at_last_is_kept(connected):
    stream, peer = connected
    stream.give_up_after(10.0)
    while not stream.has_unsent:
        stream.write(bytes(1 << 20))
    while stream.has_unsent:
        peer.recv(1 << 20)
        stream.flush()
    stream.expire(time.monotonic() + 1e6)
    assert stream.closed is None


def test_a_peer_that_writes_without_end_is_read_in_turns(connected):
    """One that fills the connection again as soon as it is read holds nobody up."""
    stream, peer = connected
    over = threading.Event()

    def write():
        with contextlib.suppress(OSError):
            while not over.is_set():
                peer.sendall(bytes(1 << 20))

    writing = in_thread(write)
    time.sleep(0.1)
    turns = [len(stream.read()) for _ in range(50)]
    over.set()
    stream.close()
    writing.result(timeout=5)
    assert max(turns) <= 256 << 10
    assert sum(turns) > 1 << 20


@pytest.mark.parametrize("size", [0, 65536])
def test_announcements_that_are_never_taken_are_bounded(size):
    place = site()
    opened = in_thread(lambda: open_endpoint(place.server()))
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:

        def announce():
            with contextlib.suppress(PeerLost):
                for _ in range(10_000):
                    server.announce(bytes(size))

        announcing = in_thread(announce)
        with pytest.raises(PeerLost, match="it announces without end"):
            worker.receive(0, 0, {"server": place.layout.new_buffer()})
        announcing.result(timeout=10)
        held = [len(worker.await_announcement()) for _ in range(100)]
    assert held == [size] * 100


# Peers that are gone without saying so.


@both
@pytest.mark.parametrize("stopped", ["sender", "receiver"])
def test_a_stopped_process_is_noticed_in_time_and_named(protocol, stopped):
    place = site(
        protocol, layout=PayloadLayout([("w", 250_000)]), rate_bps=20e6, peer_timeout_s=1.0
    )
    buffer = place.layout.new_buffer()
    child = os.fork()
    if child == 0:
        try:
            with open_endpoint(place.worker()) as endpoint:
                if stopped == "sender":
                    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGSTOP)).start()
                    if protocol.carrier == "tcp":  # it would be through in no time
                        tcp_of(endpoint).send(bytes(1))
                        time.sleep(30)
                    endpoint.send(0, {"server": buffer})
                else:
                    os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    try:
        with open_endpoint(place.server()) as server:
            began_s = time.monotonic()
            with pytest.raises(PeerLost, match="worker-1") as caught:
                if stopped == "sender":
                    server.receive(0, 0, {"worker-1": buffer})
                else:
                    server.send(0, {"worker-1": buffer})
            assert caught.value.peer == "worker-1"
            # A pass takes 0.4 s; then the timeout.
            assert 0.9 < time.monotonic() - began_s < 3
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_forged_datagrams_do_not_keep_a_dead_peer_alive():
    place = site(peer_timeout_s=0.5)
    opened = in_thread(lambda: open_endpoint(place.server()))
    over = threading.Event()
    with open_endpoint(place.worker()) as worker, opened.result(timeout=5) as server:
        udp = udp_of(worker)
        frames = new_frames(2, place.layout.chunk_bytes)  # from the peer's own address and port

        def forge():
            while not over.wait(0.02):
                udp.send(frames)

        forging = in_thread(forge)
        began_s = time.monotonic()
        with pytest.raises(PeerLost, match=r"worker-1: silent.* for 0\.5 s"):
            server.receive(0, 0, {"worker-1": place.layout.new_buffer()})
        over.set()
        forging.result(timeout=5)
        assert time.monotonic() - began_s < 2


def test_a_path_that_swallows_everything_is_noticed_at_both_ends_even_during_a_long_pass():
    namespace = ["unshare", "--user", "--map-root-user", "--net"]
    if os.geteuid() == 0:
        namespace = ["unshare", "--net"]
    trial = subprocess.run([*namespace, "nft", "list", "ruleset"], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip(f"needs '{' '.join(namespace)}' and nft")
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "tests.transport.black_hole"],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert set(lines) == {"sender", "receiver"}
    for side, peer in (("sender", "server"), ("receiver", "worker-1")):
        seconds, words = lines[side].split(" ", 1)
        assert 1 <= float(seconds) < 7, done.stdout
        assert words.startswith(f"lost {peer}: "), done.stdout


@settings(max_examples=200, deadline=None)
@given(repairs, st.lists(stranger_record, min_size=1, max_size=20))
def test_datagrams_of_other_sessions_are_counted_and_leave_no_trace(name, records):
    victim = Victim(name, 30, 0.1)
    assert victim.datagrams(encoded(records)) == 0
    assert victim.receiver.ignored == {"wrong-session": len(records)}
    assert victim.receiver.received_count == 0
    assert len(encoded(records)) == len(records) * (16 + CHUNK)
    victim.check()
