"""A control connection whose other end does not read, or writes without end."""

import contextlib
import socket
import threading
import time

import pytest

from testbed.transport.layout import MAX_CHUNKS
from testbed.transport.messages import ControlMessage, MessageType, body_limits
from testbed.transport.net.control import Stream
from tests.transport.loopback import in_thread, tcp_pair


@pytest.fixture
def connected():
    connection, peer = tcp_pair()
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


def test_the_longest_stop_waits_for_a_peer_that_has_read_nothing_yet(connected):
    stream, peer = connected
    _, longest = body_limits(MAX_CHUNKS)[MessageType.STOP]
    while not stream.has_unsent:
        stream.write(bytes(1 << 16))
    stream.write(ControlMessage(MessageType.STOP, 0, bytes(longest)).encode())
    assert stream.closed is None
    peer.settimeout(0.01)
    while stream.has_unsent:
        with contextlib.suppress(TimeoutError):
            peer.recv(1 << 20)
        stream.flush()


def test_a_long_patience_stays_within_what_the_kernel_takes(connected):
    stream, _ = connected
    kernel = stream._connection
    stream.set_timeout(140_000.0)
    assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 32767
    assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 140_000_000
    stream.set_timeout(1e9)
    assert kernel.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2**31 - 1


def test_a_peer_that_reads_all_at_last_is_kept(connected):
    stream, peer = connected
    stream.set_timeout(10.0)
    while not stream.has_unsent:
        stream.write(bytes(1 << 20))
    while stream.has_unsent:
        peer.recv(1 << 20)
        stream.flush()
    stream.expire(time.monotonic() + 1e6)
    assert stream.closed is None


def test_a_peer_that_writes_without_end_is_read_in_turns(connected):
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
    writing.result(timeout=30)
    assert max(turns) <= 256 << 10
    assert sum(turns) > 1 << 20
