"""What a connection does while its driver waits: the same as if each batch had woken it."""

import contextlib
import math
import signal
import socket
import time
from typing import Any

import numpy as np
import pytest

from testbed.transport import PayloadLayout, preset
from testbed.transport.core.ack import Ack
from testbed.transport.core.events import TransferDone
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.wire import ACK_REQUESTED, SEND_INDEX_MODULUS, fields
from testbed.transport.native import HOT_PATH, LIBRARY, WHY_NONE
from testbed.transport.net.driver import Driver
from testbed.transport.net.socket_waiter import Waiter
from testbed.transport.net.udp_data import UdpData
from testbed.transport.net.udp_socket import UdpSocket
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.repair.passes import PassesSender
from tests.transport.loopback import run_all, site
from tests.transport.transfer_parts import all_frames
from tests.transport.two_parties import Two
from tests.transport.virtual import random_payload

pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"the routine is C: {WHY_NONE}")

CHUNK_BYTES = 16


@contextlib.contextmanager
def pair():
    """Two sockets that know each other."""
    sockets = [UdpSocket(local=("127.0.0.1", 0), datagram_bytes=32) for _ in range(2)]
    for each, other in (sockets, sockets[::-1]):
        each.set_peer(("127.0.0.1", other.port))
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def two(chunks=3000, *, repair="passes", rate_bps=10e6, **settings):
    """A worker that has begun to send, and a server that has not received anything."""
    parties = Two(chunks=chunks, repair=repair, rate_bps=rate_bps, hot_path=HOT_PATH, **settings)
    parties.sent[0] = random_payload(parties.layout)
    parties.worker.connection.post_send(0, parties.sent[0], 0.0)
    parties.receive(0)
    return parties


def data_of(udp, **changes):
    return UdpData(udp, **{"gather_s": math.inf, **changes})


def depart(departing, now_s):
    """The driver waits, and it is so late now."""
    assert LIBRARY is not None
    LIBRARY.depart(departing.address, now_s)


def arrive(arriving, now_s):
    """The driver waits, and it is so late now."""
    assert LIBRARY is not None
    LIBRARY.arrive(arriving.address, now_s)


# Sending.


def offered(connection, times):
    """What goes when each of these times wakes the sender: the sizes, and when it is due then."""
    sizes, due_s = [], []
    for now_s in times:
        frames = connection.offer(now_s)
        sizes.append(len(frames))
        if len(frames):
            connection.sent(len(frames), now_s)
        due_s.append(connection.next_deadline_s(now_s))
    return sizes, due_s


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("queue_bytes", [math.inf, 20_000.0])
@pytest.mark.parametrize("late_s", [0.0, 3e-3, 50e-3])
def test_the_same_batches_go_at_the_same_times_as_if_each_had_woken_the_sender(
    repair, queue_bytes, late_s
):
    random = np.random.default_rng(7)
    ours, theirs = (two(repair=repair) for _ in range(2))
    for each in (ours, theirs):
        each.path.pacer._queue_known = not math.isinf(queue_bytes)
        each.path.pacer._most_late_bytes = queue_bytes / 2
        offered(each.worker.connection, [0.0])
    connection = ours.worker.connection
    with pair() as (udp, other):
        departing = udp.departing()
        departures = connection.departures()
        waiting = len(departures.chunks) + departures.beyond
        due_s = departures.pacer.next_s(0.0, waiting)
        assert departing.begin(departures, due_s, segmented=udp.segmentation)
        times, ends = [0.0], []
        for _ in range(40):
            now_s = max(times[-1], departing._it.due_s) + random.uniform(0, late_s)
            times.append(now_s)
            depart(departing, now_s)
            ends.append(max(now_s, departing._it.due_s))
        was, batches = departing.end()
        connection.departed(was, batches)
        arrived = []
        while len(rows := other.receive()[0]):
            arrived.append(rows.copy())
    sizes, due = offered(theirs.worker.connection, times[1:])
    assert [size for size, _ in batches] == [size for size in sizes if size]
    assert ends == pytest.approx(due, rel=1e-12)
    assert ours.path.pacer.tokens == theirs.path.pacer.tokens
    frames = np.concatenate(arrived)
    first = theirs.path.pacer.quantum
    sent = fields(frames, CHUNK_BYTES)
    np.testing.assert_array_equal(sent["stamp"], np.arange(first, first + len(frames)))
    np.testing.assert_array_equal(
        sent["chunk"], ours.layout.rows(ours.sent[0])[first : first + len(frames)]
    )
    # And afterwards both go on in the same way.
    assert offered(connection, [9.0, 9.5]) == offered(theirs.worker.connection, [9.0, 9.5])
    np.testing.assert_array_equal(ours.path.frames, theirs.path.frames)
    one, other_ = (
        each.worker.connection.outgoing.senders[0].report("server") for each in (ours, theirs)
    )
    assert (one.chunks_sent, one.bytes_sent) == (other_.chunks_sent, other_.bytes_sent)


def test_all_of_a_pass_goes_and_then_the_sender_asks():
    parties = two(100)
    connection = parties.worker.connection
    with pair() as (udp, _):
        data = data_of(udp)
        now_s = time.monotonic()
        routine = data.begin_routine(connection, now_s)
        Waiter().wait_working(now_s + 5, [routine.going], [])
        data.end_routine(connection, now_s)
    assert connection.outgoing.senders[0].report("server").chunks_sent == 100
    (probe,) = connection.outgoing.poll_messages()
    assert probe.type is MessageType.PROBE
    assert connection.departures() is None


@pytest.mark.parametrize("repair", ["selective", "streaming"])
def test_no_datagram_goes_unoffered_that_has_to_ask(repair):
    """The last ones ask for an ACK; what goes before asks for none."""
    parties = two(200, repair=repair)
    connection = parties.worker.connection
    departures = connection.departures()
    assert 0 < len(departures.chunks) < 200
    connection.departed(departures, [(len(departures.chunks), 0.0)])
    assert connection.departures() is None
    asked = []
    for now_s in range(1, 40):
        frames = connection.offer(float(now_s))
        if len(frames):
            asked += (fields(frames, CHUNK_BYTES)["stamp"] >= ACK_REQUESTED).tolist()
            connection.sent(len(frames), float(now_s))
    assert asked[: 200 - len(departures.chunks)].count(True) == 1


class OwnRate(FixedRate):
    """Who knows what it does."""


class SameRate(FixedRate):
    steady = True


class OwnSender(PassesSender):
    """Who knows what it does."""


def test_what_moves_or_may_move_the_sender_is_asked_before_each_batch():
    def departures(change=None, **settings):
        parties = two(**settings)
        if change is not None:
            change(parties)
        return parties.worker.connection.departures()

    def own(control):
        def change(parties):
            parties.path.congestion = control(rate_bps=1e6)

        return change

    def own_repair(parties):
        parties.worker.connection.outgoing.senders[0]._repair.__class__ = OwnSender

    def another(parties):
        parties.worker.connection.post_send(1, parties.sent[0], 0.0)

    def held(parties):
        message = ControlMessage(MessageType.HOLD, 0)
        parties.worker.connection.on_control(message.encode(), 0.0)

    assert departures() is not None
    assert departures(own(SameRate)) is not None
    for change in (own(OwnRate), own_repair, another, held):
        assert departures(change) is None
    assert departures(congestion="reno") is None
    assert departures(rate_bps=math.inf) is None


def test_a_socket_that_takes_no_more_ends_the_routine_and_the_rest_is_offered_again():
    parties = two()
    with pair() as (udp, _):
        departing = udp.departing()
        departures = parties.worker.connection.departures()
        departing.begin(departures, 0.0, segmented=udp.segmentation)
        udp._socket.close()
        depart(departing, 1.0)
        assert departing.worked
        assert departing.end()[1] == []


# Receiving.


def received(parties, at):
    """The server's connection has read these batches: at each time so many datagrams."""
    connection = parties.server.connection
    frames, first = all_frames(parties.layout, number=0), 0
    for now_s, count in at:
        connection.on_datagrams(frames[first : first + count], now_s, waited=True)
        first += count
    return frames[first:]


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_what_gathers_is_taken_as_if_each_rest_had_woken_the_receiver(loss):
    begun = [(0.0, 20), (2e-3, 20)]
    with pair() as (udp, other):
        ours, theirs = two(600), two(600)
        rest = received(ours, begun)
        received(theirs, begun)
        rest = rest[np.random.default_rng(3).random(len(rest)) >= loss]
        taker, connection = theirs.server.connection, ours.server.connection
        arriving = udp.arriving()
        due_s = 2e-3 + connection.gather_s()
        assert arriving.begin(connection.expected(), due_s, udp.receiving)
        came = 0
        while not arriving.over and (not loss or came + 60 < len(rest)):
            count = int(1e4 * (due_s - 2e-3)) + 1 - came
            other.send(rest[came : came + count])
            arrive(arriving, due_s)
            taker.on_datagrams(rest[came : came + count], due_s, waited=True)
            came += count
            wait_s = taker.gather_s()
            assert arriving.over == (wait_s == 0)
            if wait_s:
                assert arriving.due_s == due_s + wait_s
            due_s = arriving.due_s
        connection.arrived(*arriving.end(), waited=True)
    assert came > 200
    assert connection.gather_s() == taker.gather_s()
    assert (connection.gather_s() == 0) == (loss == 0)
    for one, another in zip(
        *(each.incoming.receivers.values() for each in (connection, taker)), strict=True
    ):
        np.testing.assert_array_equal(one.received, another.received)
        np.testing.assert_array_equal(one.into, another.into)
        assert one.received_count == another.received_count == one.received.sum()
        assert one.progress_s == another.progress_s
        assert one.valid_datagrams == another.valid_datagrams
    probe = ControlMessage(MessageType.PROBE, 0, b"\0\0\0\1\1").encode()
    for each in (connection, taker):
        each.on_control(probe, 1.0, waited=True)
    assert connection.control() == taker.control()
    assert vars(connection.incoming._gathering) == vars(taker.incoming._gathering)


def test_a_transfer_that_ends_in_a_rest_is_reported():
    parties = two(100)
    rest = received(parties, [(0.0, 20), (4e-3, 20)])
    with pair() as (udp, other):
        connection = parties.server.connection
        arriving = udp.arriving()
        arriving.begin(connection.expected(), 0.0, udp.receiving)
        other.send(rest)  # more than the rate promised
        arrive(arriving, 5e-3)
        assert arriving.over
        connection.arrived(*arriving.end(), waited=True)
    assert [type(event) for event in connection.events()] == [TransferDone]
    np.testing.assert_array_equal(parties.into[0], parties.sent[0])


def quiet_receiver():
    """A server that has just sent an ACK, and what the worker sends after that."""
    parties = two(2000, repair="streaming")
    rest = received(parties, [(0.0, 20), (2e-3, 20), (5e-3, 20)])
    while (quiet := parties.server.connection.incoming.receivers[0].quiet).datagrams < 60:
        now_s = rest[0, 4:8].view(">u4")[0] / 1e4
        parties.server.connection.on_datagrams(rest[:1], now_s, waited=True)
        rest = rest[1:]
    parties.server.connection.control()
    return parties, rest, quiet.datagrams


def test_an_acknowledging_receiver_says_nothing_of_as_many_as_it_has_said():
    parties, rest, count = quiet_receiver()
    connection = parties.server.connection
    connection.on_datagrams(rest[:count], 1.0, waited=True)
    assert connection.control() == b""
    connection.on_datagrams(rest[count : count + 1], 2.0, waited=True)
    assert connection.control()


@pytest.mark.parametrize("case", ["quiet", "more", "gap", "asked"])
def test_what_calls_for_an_ack_ends_the_rest(case):
    parties, rest, count = quiet_receiver()
    connection = parties.server.connection
    sent = rest[: count + (case == "more")].copy()
    if case == "gap":
        sent = np.delete(sent, 3, axis=0)
    elif case == "asked":
        fields(sent, CHUNK_BYTES)["stamp"][3] |= ACK_REQUESTED
    with pair() as (udp, other):
        arriving = udp.arriving()
        arriving.begin(connection.expected(), 0.0, udp.receiving)
        other.send(sent)
        arrive(arriving, 2.0)
        assert arriving.over == (case != "quiet")
        arrivals, now_s = arriving.end()
        connection.arrived(arrivals, now_s, waited=True)
    assert len(arrivals.new) == len(sent)
    (message,) = connection.incoming.poll_messages() or [None]
    if case == "quiet":
        assert message is None
    elif case != "gap":
        assert Ack.parse(message.body).arrived.sum() >= len(sent)


def test_send_indices_follow_one_another_around_their_end():
    parties, rest, _ = quiet_receiver()
    connection = parties.server.connection
    stamps = fields(rest, CHUNK_BYTES)["stamp"]
    stamps += np.uint16(SEND_INDEX_MODULUS - 10 - int(stamps[0]))
    stamps %= SEND_INDEX_MODULUS
    receiver = connection.incoming.receivers[0]
    receiver._repair._newest = int(stamps[0]) - 1
    with pair() as (udp, other):
        arriving = udp.arriving()
        arriving.begin(connection.expected(), 0.0, udp.receiving)
        other.send(rest[:40])
        arrive(arriving, 2.0)
        assert not arriving.over


@pytest.mark.parametrize("case", ["transfer", "session", "duplicate", "stranger"])
def test_whatever_is_not_expected_is_left_to_the_connection_and_counted_as_ever(case):
    outcomes = []
    for taken in (False, True):
        parties = two(600)
        rest = received(parties, [(0.0, 20), (2e-3, 20)])
        connection = parties.server.connection
        sent = rest[:30].copy()
        if case == "duplicate":
            sent[7] = sent[6]
        elif case != "stranger":
            fields(sent, CHUNK_BYTES)[case][7] += 1
        with pair() as (udp, other), socket.socket(type=socket.SOCK_DGRAM) as strange:
            data, now_s = data_of(udp), 2e-3
            data._resting, data._unread_until_s = True, now_s
            other.send(sent)
            if case == "stranger":
                strange.sendto(bytes(sent[0]), ("127.0.0.1", udp.port))
            if taken:
                routine = data.begin_routine(connection, now_s)
                arrive(routine.coming, now_s)
                assert routine.worked
                data.end_routine(connection, now_s)
            else:
                data.read(connection, now_s, waited=True)
            counters = udp.counters
        receiver = connection.incoming.receivers[0]
        outcomes.append(
            (
                receiver.received.tolist(),
                receiver.into.tolist(),
                dict(receiver.ignored),
                dict(connection.counters),
                dict(counters),
                sorted(connection.incoming._early),
            )
        )
    assert outcomes[0] == outcomes[1]


def test_nothing_is_taken_while_a_transfer_that_nobody_asked_for_is_under_way():
    parties = two(600)
    received(parties, [(0.0, 20), (2e-3, 20)])
    connection = parties.server.connection
    assert connection.expected() is not None
    connection.on_datagrams(all_frames(parties.layout, number=3)[:1], 2e-3)
    assert connection.expected() is None


@pytest.mark.parametrize("room_s", [0.0, math.inf])
def test_what_may_not_rest_is_taken_as_it_comes_and_answered_with_its_time(room_s):
    parties = two(2000, repair="streaming")
    connection = parties.server.connection
    frames = all_frames(parties.layout, number=0)
    connection.on_datagrams(frames[:1], 0.0)
    assert connection.expected() is None  # the rate is not known yet
    connection.on_datagrams(frames[1:10], 1e-3)
    connection.control()
    frames[59, 14] |= ACK_REQUESTED >> 8
    with pair() as (udp, other):
        data, waiter = data_of(udp, gather_s=room_s), Waiter()
        now_s, sent = time.monotonic(), 10
        routine = data.begin_routine(connection, now_s)
        assert routine.coming.at_once
        waiter.want(data, reading=True, writing=False)
        while not routine.worked or not routine.coming.over:
            other.send(frames[sent : sent + 10])
            sent += 10
            time.sleep(2e-3)
            assert waiter.wait_working(time.monotonic() + 1e-3, [], [routine.coming]) == ([], [])
            assert sent < 100
        data.end_routine(connection, now_s)
        assert (data.unread_until_s > now_s) == (room_s > 0)
    receiver = connection.incoming.receivers[0]
    assert receiver.received_count == sent == (sent if room_s else 60)
    if not room_s:
        (message,) = connection.incoming.poll_messages()
        assert Ack.parse(message.body).echo == 59


def test_a_control_that_measures_the_path_has_each_datagram_read_by_the_connection():
    for repair, expected in (("streaming", False), ("passes", True)):
        parties = two(2000, repair=repair)
        received(parties, [(0.0, 20), (2e-3, 20)])
        parties.server.connection.control()
        assert parties.server.connection.expected() is not None
        asked = parties.server.connection.expected(measured=True)
        assert (asked is not None) == expected


def test_what_completes_a_transfer_is_noticed_at_once():
    parties = two(100)
    connection = parties.server.connection
    rest = received(parties, [(0.0, 90), (1e-3, 8)])
    with pair() as (udp, other):
        data, waiter = data_of(udp), Waiter()
        routine = data.begin_routine(connection, time.monotonic())
        waiter.want(data, reading=True, writing=False)
        for frame in rest:
            other.send(frame[None])
            waiter.wait_working(time.monotonic() + 0.02, [], [routine.coming])
        data.end_routine(connection, time.monotonic())
    assert [type(event) for event in connection.events()] == [TransferDone]


def test_where_datagrams_come_faster_than_they_could_gather_the_connection_reads_them():
    parties = two(600)
    received(parties, [(0.0, 20), (1e-3, 400)])
    assert parties.server.connection.expected() is None


# The wait.


def test_the_wait_ends_with_what_can_be_read_or_written():
    waiter = Waiter()
    one, other = socket.socketpair()
    with one, other:
        waiter.want(one, reading=True, writing=False)
        waiter.want(other, reading=False, writing=True)
        assert waiter.wait_working(time.monotonic() + 5, [], []) == ([], [other])
        other.send(b"x")
        assert waiter.wait_working(time.monotonic() + 5, [], []) == ([one], [other])
        waiter.want(other, reading=False, writing=False)
        assert waiter.wait_working(time.monotonic() + 5, [], []) == ([one], [])
        one.recv(1)
        began_s = time.monotonic()
        assert waiter.wait_working(began_s + 0.02, [], []) == ([], [])
        assert 0.02 <= time.monotonic() - began_s < 1


def test_a_signal_ends_the_wait():
    told = []
    before = signal.signal(signal.SIGALRM, lambda *_: told.append(time.monotonic()))
    try:
        began_s = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        Waiter().wait_working(began_s + 10, [], [])
        assert told and time.monotonic() - began_s < 5
    finally:
        signal.signal(signal.SIGALRM, before)


def waits(monkeypatch):
    """Counts how often drivers wait, by thread."""
    counted: list[Any] = []
    wait = Driver._wait

    def count(self, until_s):
        counted.append(self)
        wait(self, until_s)

    monkeypatch.setattr(Driver, "_wait", count)
    return counted


@pytest.mark.parametrize(("repair", "most"), [("passes", 20), ("streaming", 40)])
def test_a_paced_megabyte_wakes_each_side_a_few_times_and_arrives_whole(monkeypatch, repair, most):
    protocol = preset("fixed-low", tolerance=0, repair=repair)
    layout = PayloadLayout([("w", 250_000)])
    place = site(protocol, layout=layout, rate_bps=100e6, queue_bytes=1e6)
    payload, buffer = random_payload(layout), layout.new_buffer()
    counted = waits(monkeypatch)
    per_round = []

    def worker(endpoint, index):
        for number in range(3):
            counted.clear()
            report = endpoint.send(number, {"server": payload})["server"]
            per_round.append(len(counted))
        return report

    def server(endpoint):
        for number in range(3):
            buffer[:] = 0
            endpoint.receive(number, 0, {"worker-1": buffer})
            assert np.array_equal(buffer, payload)

    _, [sent] = run_all(place, server, worker)
    assert sent.chunks_sent >= layout.chunk_count
    assert min(per_round) < most  # both sides together; each batch alone would be 60


@pytest.mark.parametrize("settings", [{"checksum": True}, {"leave_out": lambda count: None}])
def test_with_a_checksum_or_a_drop_before_the_socket_each_batch_is_offered(settings):
    layout = PayloadLayout([("w", 100_000)])
    place = site(layout=layout, rate_bps=100e6, queue_bytes=1e6, **settings)
    payload, buffer = random_payload(layout), layout.new_buffer()
    _, [sent] = run_all(
        place,
        lambda endpoint: endpoint.receive(0, 0, {"worker-1": buffer}),
        lambda endpoint, index: endpoint.send(0, {"server": payload})["server"],
    )
    assert np.array_equal(buffer, payload)
    assert sent.chunks_sent >= layout.chunk_count


def test_a_sealed_socket_has_no_routine():
    with pair() as (udp, _):
        assert udp.departing() is not None and udp.arriving() is not None
        udp.seal = object()
        assert udp.departing() is None and udp.arriving() is None
        parties = two()
        assert data_of(udp).begin_routine(parties.worker.connection, 0.0) is None
