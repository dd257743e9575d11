"""The UDP socket: batches, refusals, and what it drops."""

import contextlib
import errno
import socket
import struct
import time

import numpy as np
import pytest

from testbed.transport.native.fast_path import WHY_NONE
from testbed.transport.net import udp as udp_module
from testbed.transport.net.addresses import resolve
from testbed.transport.net.udp import SOL_UDP, UDP_SEGMENT, UdpSocket

SIZE = 1472
HERE = resolve("127.0.0.1", what="this host")
IP_RECVTTL = 12  # of Linux


@pytest.fixture(autouse=True, params=["compiled", "plain"])
def calls(request, monkeypatch):
    """Each test runs with the compiled calls, and with those of Python, which know no segments."""
    if request.param == "plain":
        monkeypatch.setattr(udp_module, "LIBRARY", None)
    elif udp_module.LIBRARY is None:
        pytest.skip(f"the calls in C: {WHY_NONE}")


@contextlib.contextmanager
def linked(size=SIZE, *, host=HERE, **options):
    sockets = [UdpSocket(local=host.at(0), datagram_bytes=size, **options) for _ in range(2)]
    for udp, other in (sockets, sockets[::-1]):
        udp.set_peer(host.at(other.port))
    try:
        yield sockets
    finally:
        for udp in sockets:
            udp.close()


@pytest.fixture
def pair():
    with linked() as sockets:
        yield sockets


def batch(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE), dtype=np.uint8)


def collect(udp, count, within_s=2.0):
    """The next `count` datagrams, or those that came in time."""
    parts: list[np.ndarray] = []
    deadline_s = time.monotonic() + within_s
    while sum(len(part) for part in parts) < count and time.monotonic() < deadline_s:
        rows, _ = udp.receive()
        parts.append(rows.copy())
    return np.concatenate(parts)


class Refusing:
    """In place of a `BatchSender`: one datagram or segmented send a call, which fails as told."""

    def __init__(self, inner, failures, segmented_only):
        """`failures` maps a call's number, or `always`, to an errno."""
        self.inner, self.failures, self.segmented_only = inner, failures, segmented_only
        self.per_segmented = inner.per_segmented
        self.calls = self.segmented_calls = 0

    def send(self, udp, frames, *, segmented):
        number, self.calls = self.calls, self.calls + 1
        self.segmented_calls += segmented
        code = self.failures.get(number, self.failures.get("always"))
        if code is not None and (segmented or not self.segmented_only):
            raise OSError(code, errno.errorcode[code])
        most = self.per_segmented if segmented else 1
        return self.inner.send(udp, frames[:most], segmented=segmented)


def refuse(udp, failures, *, segmented_only=False):
    udp._sender = Refusing(udp._sender, failures, segmented_only)
    return udp._sender


def test_several_batches_come_out_of_one_receive_but_not_any_number(pair):
    one, two = pair
    frames = [batch(44, seed) for seed in range(40)]
    for frame in frames:
        one.send(frame)
    rows, drained = two.receive()
    assert (44 if udp_module.LIBRARY else 1) < len(rows) < 40 * 44
    assert not drained
    received = np.concatenate([rows.copy(), collect(two, 40 * 44 - len(rows))])
    assert np.array_equal(received, np.concatenate(frames))
    assert two.receive()[1]


@pytest.mark.parametrize("count", [1, 2, 44, 300])
def test_without_segmentation_each_datagram_is_sent_on_its_own(count):
    with linked(segmentation=False) as (one, two):
        fake = refuse(one, {})
        frames = batch(count)
        assert one.send(frames) == count
        assert np.array_equal(collect(two, count), frames)
        assert (fake.segmented_calls, fake.calls) == (0, count)
        assert one.facts()["segmentation"] is False


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, errno.ENOPROTOOPT])
def test_a_refused_segmentation_is_given_up_for_good(pair, code):
    one, two = pair
    fake = refuse(one, {"always": code}, segmented_only=True)
    for seed in range(2):
        assert one.send(batch(20, seed)) == 20
        assert np.array_equal(collect(two, 20), batch(20, seed))
    assert fake.segmented_calls == bool(udp_module.LIBRARY)
    assert one.facts()["segmentation"] is False


def test_a_full_socket_takes_a_part_and_asks_to_be_waited_for(pair):
    one, two = pair
    one.segmentation = False
    refuse(one, {3: errno.EAGAIN})
    frames = batch(10)
    assert one.send(frames) == 3
    assert one.blocked
    assert one.send(frames[3:]) == 7
    assert not one.blocked
    assert np.array_equal(collect(two, 10), frames)


def test_a_full_interface_queue_is_counted_and_not_waited_for(pair):
    one, _ = pair
    refuse(one, {0: errno.ENOBUFS})
    assert one.send(batch(10)) == 0
    assert not one.blocked
    assert one.counters == {"no-buffers": 1}
    assert one.send(batch(10)) == 10
    assert one.facts()["segmentation"] is bool(udp_module.LIBRARY)


@pytest.mark.parametrize("code", [errno.ECONNREFUSED, errno.EPERM, errno.EMSGSIZE])
@pytest.mark.parametrize("segmentation", [True, False])
def test_what_the_network_or_the_interface_loses_counts_as_sent(pair, code, segmentation):
    one, _ = pair
    one.segmentation = segmentation
    refuse(one, {0: code})
    assert one.send(batch(5)) == 5
    assert one.counters == {"too-large" if code == errno.EMSGSIZE else "unreachable": 1}
    assert one.segmentation is segmentation


def test_a_mistake_of_this_program_is_not_counted_as_loss(pair):
    one, _ = pair
    refuse(one, {0: errno.EBADF})
    with pytest.raises(OSError, match="EBADF"):
        one.send(batch(1))


@pytest.mark.parametrize("count", [64, 65, 200])
def test_many_small_datagrams_go_segmented(count):
    with linked(300) as (one, two):
        frames = batch(count)[:, :300].copy()
        assert one.send(frames) == count
        assert np.array_equal(collect(two, count), frames)
        assert one.facts()["segmentation"] is bool(udp_module.LIBRARY)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_strangers_and_other_sizes_are_counted_and_dropped(address):
    host = resolve(address, what="this host")
    try:
        with socket.socket(host.family, socket.SOCK_DGRAM) as trial:
            trial.bind(host.at(0))
    except OSError as error:
        pytest.skip(f"no {address}: {error}")
    with linked(host=host) as (one, two), socket.socket(host.family, socket.SOCK_DGRAM) as unknown:
        there = host.at(two.port)
        for size in (SIZE, 1):
            unknown.sendto(bytes(size), there)
        for size in (0, 1, SIZE - 1, SIZE + 1, 2 * SIZE, 65000):
            one._socket.sendto(bytes(size), there)
        one.send(batch(100))
        assert np.array_equal(collect(two, 100), batch(100))
        assert two.counters == {"unknown-address": 2, "wrong-size": 6}


def test_a_segmented_send_of_another_size_is_counted(pair):
    one, two = pair
    for segment, size in ((736, 4 * 736), (SIZE, 3 * SIZE - 5)):
        pieces = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment))]
        one._socket.sendmsg([bytes(size)], pieces, 0, ("127.0.0.1", two.port))
    rows = collect(two, 2)
    assert len(rows) == 2
    assert two.counters == {"wrong-size": 5}


@pytest.mark.parametrize("segmentation", [True, False])
@pytest.mark.parametrize("coalescing", [True, False])
def test_long_batches_arrive_as_they_were_sent(pair, segmentation, coalescing):
    one, two = pair
    one.segmentation = segmentation
    two._socket.setsockopt(SOL_UDP, udp_module.UDP_GRO, int(coalescing))
    for count in (1, 1, 300, 7, 1, 2, 300, 45, 1):
        frames = batch(count, seed=count)
        assert one.send(frames) == count
        assert np.array_equal(collect(two, count), frames)
    assert not two.counters
    several = [batch(count, seed=count) for count in (1, 1, 30, 1, 44, 44, 3, 1, 20)]
    for frames in several:  # they wait in one queue
        one.send(frames)
    assert np.array_equal(collect(two, 145), np.concatenate(several))


@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("coalescing", [True, False])
def test_what_else_the_kernel_says_of_a_datagram_is_not_its_size(count, coalescing):
    """The hop limit of 64 is not the size of two datagrams of 64 bytes."""
    with linked(64, segmentation=False) as (one, two):
        two._socket.setsockopt(SOL_UDP, udp_module.UDP_GRO, int(coalescing))
        two._socket.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        for size in (128, 64, 65):  # beside the peer's own
            one._socket.sendto(bytes(size), ("127.0.0.1", two.port))
        frames = batch(count)[:, :64].copy()
        assert one.send(frames) == count
        expected = np.concatenate([np.zeros((1, 64), np.uint8), frames])
        assert np.array_equal(collect(two, count + 1), expected)
        assert two.receive()[1]
        assert two.counters == {"wrong-size": 2}


def test_what_waits_in_the_socket_is_known(pair):
    one, two = pair
    assert two.backlog_bytes == 0
    one.send(batch(44))
    assert 44 * SIZE <= two.backlog_bytes <= 4 * 44 * SIZE
    collect(two, 44)
    assert two.backlog_bytes == 0


def test_a_buffer_that_is_not_granted_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(udp_module, "_warned", set())
    size = 8 << 20
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *option: 212_992)
    with pytest.warns(RuntimeWarning) as caught:
        for _ in range(2):
            UdpSocket(local=("127.0.0.1", 0), datagram_bytes=SIZE).close()
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert f"net.core.rmem_max={size}" in messages[0]
    assert f"net.core.wmem_max={size}" in messages[1]


def test_a_taken_port_is_named(pair):
    port = pair[0].port
    with pytest.raises(OSError, match=f"cannot bind UDP 127.0.0.1:{port}"):
        UdpSocket(local=("127.0.0.1", port), datagram_bytes=SIZE)
