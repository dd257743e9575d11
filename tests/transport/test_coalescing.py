"""Datagrams that gather in a receiver's socket, and for how long they may."""

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from testbed.transport import preset
from testbed.transport.connection import Connection
from testbed.transport.fast_path import Coalescer
from testbed.transport.messages import ControlMessage, MessageType
from testbed.transport.net.addresses import resolve
from testbed.transport.net.carriers import UdpCarrier
from testbed.transport.net.udp import UdpSocket
from testbed.transport.repair import REPAIRS
from testbed.transport.tolerance import FractionRule, StopRule
from testbed.transport.wire import HEADER_BYTES
from tests.transport.loopback import site
from tests.transport.test_plans import data_of
from tests.transport.virtual import Two, all_frames, layout_of, new_receiver, new_sender

PER_S = 8000  # datagrams: 97 Mbit/s


def measured():
    coalescer = Coalescer()
    steady(coalescer)
    return coalescer


def steady(coalescer, *, per_s=PER_S, from_s=0.0, for_s=0.02, every_s=1e-3):
    for step in range(round(for_s / every_s) + 1):
        coalescer.arrived(round(per_s * every_s), from_s + step * every_s)
    return from_s + for_s


@pytest.mark.parametrize(
    ("times", "wait_s"), [((0.0,), 0), ((0.0, 0.02), 44 / 400), ((0.0, 0.021), 0)]
)
def test_nothing_gathers_before_a_rate_was_measured_over_20_ms_at_most(times, wait_s):
    coalescer = Coalescer()
    for now_s in times:
        coalescer.arrived(8, now_s)
    assert coalescer.wait_s(1000, 1.0) == wait_s


def test_half_of_what_is_missing_may_come_unseen_and_the_last_ones_are_awaited_one_by_one():
    coalescer = measured()
    assert coalescer.wait_s(16, 1.0) == pytest.approx(8 / PER_S)
    assert coalescer.wait_s(int(2 * Coalescer.least_s * PER_S) - 1, 1.0) == 0
    assert coalescer.wait_s(0, 1.0) == 0


def test_a_burst_of_losses_is_expected_to_end_and_a_pause_is_no_low_rate():
    coalescer = Coalescer()
    now_s = steady(coalescer)
    known_s = coalescer.wait_s(1000, 1.0)
    coalescer.arrived(8, now_s + 1.0)
    assert coalescer.wait_s(1000, 1.0) == known_s
    coalescer = Coalescer()
    now_s = steady(coalescer)
    steady(coalescer, per_s=PER_S / 8, from_s=now_s + 1e-3, for_s=3e-3)
    assert coalescer.wait_s(16, 1.0) < 2 * 8 / PER_S


def test_a_connection_lets_gather_what_its_only_transfer_can_spare_and_nothing_once_it_is_lost():
    two = Two(chunks=100)
    connection = two.server.connection
    two.receive(0)
    frames = all_frames(two.layout, number=0)
    assert connection.coalesce_s() == 0
    connection.on_datagrams(frames[:10], 0.0)
    connection.on_datagrams(frames[10:20], 1 / 256)  # 2560 a second; half of 80 are 40
    assert connection.coalesce_s() == min(8e-3, 40 / 2560)
    assert connection.coalesce_s(2e-3) == 2e-3  # the socket has room for no more
    assert connection.coalesce_s(measured=True) == connection.coalesce_s()  # PROBEs wake it at once
    connection.on_datagrams(frames[20:98], 1 / 256)
    assert connection.coalesce_s() == 1 / 2560
    connection.end("it is gone")
    assert connection.coalesce_s() == 0


def test_a_number_that_nobody_asks_for_stops_gathering_only_while_new_chunks_come_for_it():
    two = Two(chunks=100)
    connection = two.server.connection
    two.receive(0)
    frames, strange = (all_frames(two.layout, number=number) for number in (0, 4_000_000_000))
    for step in range(9):
        connection.on_datagrams(frames[10 * step : 10 * step + 10], step / 256)
        if step < 3:
            connection.on_datagrams(strange[: step + 1], step / 256)
        elif step < 7:
            connection.on_datagrams(strange[:3], step / 256)  # nothing new
        assert (connection.coalesce_s() > 0) == (step == 8)  # more than 20 ms after step 2
    connection.on_control(ControlMessage(MessageType.PROBE, 4_000_000_000).encode(), 8 / 256)
    assert connection.coalesce_s() == 0  # it is no accident


@pytest.mark.parametrize("repair", ["selective", "streaming"])
def test_who_speaks_while_data_arrive_looks_at_each_if_the_control_measures_the_path(repair):
    two = Two(chunks=100, repair=repair)
    connection = two.server.connection
    two.receive(0)
    frames = all_frames(two.layout, number=0)
    connection.on_datagrams(frames[:10], 0.0)
    connection.on_datagrams(frames[10:20], 1 / 256)
    assert connection.coalesce_s() == 5e-3
    assert connection.coalesce_s(measured=True) == 0


class FakeSocket(UdpSocket):
    def __init__(self, frames):
        self.frames, self.backlog, self.taken_bytes = list(frames), 0, 0

    @property
    def backlog_bytes(self):
        return self.backlog

    def receive(self):
        if not self.frames:
            return np.empty((0, 0), dtype=np.uint8), True
        frames = self.frames.pop(0)
        self.taken_bytes = frames.size
        return frames, True


class OneSender(Connection):
    """A connection that notes what it is handed, and a rest that it allows."""

    def __init__(self, coalesce_s):
        self.coalescing_s, self.waited = coalesce_s, []
        # Of both it is asked for pieces alone.
        self.outgoing = self.incoming = cast(Any, SimpleNamespace(pieces=1))

    def on_datagrams(self, frames, now_s, *, waited=False):
        self.waited.append(waited)

    def coalesce_s(self, most_s=math.inf, *, measured=False):
        self.measured = measured
        return min(most_s, self.coalescing_s)


def test_after_a_read_the_next_ones_gather_and_count_as_having_waited():
    frames = [np.zeros((2, 20), dtype=np.uint8)] * 2
    data, connection = data_of(FakeSocket(frames)), OneSender(3e-3)
    data.read(connection, 1.0, waited=False)
    assert data.unread_until_s == pytest.approx(1.003)
    data.read(connection, 1.003, waited=False)
    assert connection.waited == [False, True]
    data.read(connection, 1.006, waited=False)  # nothing has come, so the next is read at once
    assert data.unread_until_s == -math.inf


@pytest.mark.parametrize(("most_s", "coalesce_s"), [(0.0, 3e-3), (math.inf, 0.0)])
def test_nothing_gathers_in_a_socket_without_room_nor_near_the_stop(most_s, coalesce_s):
    frames = [np.zeros((2, 20), dtype=np.uint8)]
    data = data_of(FakeSocket(frames), coalesce_s=most_s)
    data.read(OneSender(coalesce_s), 1.0, waited=False)
    assert data.unread_until_s == -math.inf


def test_what_the_control_stream_calls_for_is_read_at_once_and_counts_as_having_waited():
    frames = [np.zeros((2, 20), dtype=np.uint8)] * 2
    udp = FakeSocket(frames)
    data, connection = data_of(udp), OneSender(3e-3)
    data.read(connection, 1.0, waited=False)
    udp.backlog = 40
    data.read_backlog(connection, 1.001, waited=False)
    assert connection.waited == [False, True]


def sender_and_receiver(rule, repair="streaming"):
    """A sender's datagrams, and the receiver that takes them."""
    layout = layout_of(40, chunk_bytes=64, last_elements=16)
    repair = REPAIRS.create(repair)
    receiver, _ = new_receiver(layout, rule=rule, repair=repair)
    return new_sender(layout, rate_bps=1e9, repair=repair), receiver


def test_only_a_rule_that_says_what_is_missing_lets_arrivals_gather():
    class Asked(StopRule):
        def satisfied(self, progress):
            return False

    sender, receiver = sender_and_receiver(FractionRule(0.25))
    receiver.on_datagrams(sender.offer(0.0)[:8], 0.0)
    assert receiver.missing == 22
    for now_s in range(4):
        receiver.on_datagrams(sender.offer(now_s), now_s)
        sender.sent(8, now_s)
    assert (receiver.received_count, receiver.stopped) == (32, True)
    assert sender_and_receiver(Asked())[1].missing == 0
    assert sender_and_receiver(None)[1].missing == 0  # it came early, and has no rule yet


class ShortBuffer(FakeSocket):
    datagram_bytes = HEADER_BYTES + 1456
    buffer_bytes_held = 212_992
    port = 1

    @property
    def buffer_bytes(self):
        return self.buffer_bytes_held

    def set_peer(self, address):
        """Nothing is sent."""


def carrier_of(udp, **settings):
    config = site(**settings).worker()
    here = resolve("127.0.0.1", what="this host")
    return UdpCarrier(config, {"server": udp}, here, {"server": here})


def attached(**settings):
    """A connection whose socket has two datagrams to read."""
    udp, connection = ShortBuffer([np.zeros((2, 20), dtype=np.uint8)]), OneSender(8e-3)
    connection.peer = "server"
    return carrier_of(udp, **settings).attach(connection, 5000, b""), connection


@pytest.mark.parametrize(
    ("rate_bps", "rest_s"), [(1e9, 212_992 / 2 / 125e6), (100e6, 8e-3), (math.inf, 8e-3)]
)
def test_arrivals_gather_for_no_longer_than_the_buffer_holds_them_at_full_rate(rate_bps, rest_s):
    data, connection = attached(rate_bps=rate_bps)
    data.read(connection, 1.0, waited=False)
    assert data.unread_until_s == pytest.approx(1.0 + rest_s)


@pytest.mark.parametrize(("control", "measured"), [("fixed", False), ("bbr", True)])
def test_a_connection_hears_whether_the_congestion_control_measures_the_path(control, measured):
    protocol = preset("dblp", congestion_control=control)
    data, connection = attached(protocol=protocol, rate_bps=100e6)
    data.read(connection, 1.0, waited=False)
    assert connection.measured is measured


@pytest.mark.parametrize(("queue_bytes", "batch"), [(math.inf, 8), (1e6, 33), (16_000, 2)])
def test_the_queue_that_a_user_names_bounds_the_batches_on_the_way(queue_bytes, batch):
    carrier = carrier_of(ShortBuffer([]), rate_bps=100e6, queue_bytes=queue_bytes)
    assert carrier._path("server").pacer.allowance(0.0) == batch
