"""What compiled code takes while the driver waits: the same as if the connection had read it."""

import contextlib
import itertools
import math
import socket
import time

import numpy as np
import pytest

from testbed.transport.core.messages import Ack, ControlMessage, MessageType
from testbed.transport.core.routine import Quiet
from testbed.transport.core.wire import (
    ACK_REQUESTED,
    CHUNK_BITS,
    NUMBER_MODULUS,
    SEND_INDEX_MODULUS,
    fields,
)
from testbed.transport.net.driver import Waiter
from tests.transport.routine_parts import CHUNK_BYTES, NEEDS_C, arrive, data_of, pair, two
from tests.transport.transfer_parts import all_frames

pytestmark = NEEDS_C


@contextlib.contextmanager
def arriving_at(connection, **options):
    """What compiled code takes in a wait that has begun, and the socket that sends to it."""
    with pair(**options) as (udp, other):
        arriving = udp.arriving()
        arriving.begin(connection.expected(), 0.0, udp.receiving)
        yield arriving, other


def under_way(chunks=600):
    """Parties of which the server has read two batches, its connection, and what comes next."""
    parties = two(chunks)
    return parties, parties.server.connection, received(parties, [(0.0, 20), (2e-3, 20)])


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
        while not arriving.it.over and (not loss or came + 60 < len(rest)):
            count = int(1e4 * (due_s - 2e-3)) + 1 - came
            other.send(rest[came : came + count])
            arrive(arriving, due_s)
            taker.on_datagrams(rest[came : came + count], due_s, waited=True)
            came += count
            wait_s = taker.gather_s()
            assert arriving.it.over == (wait_s == 0)
            if wait_s:
                assert arriving.it.due_s == due_s + wait_s
            due_s = arriving.it.due_s
        connection.arrived(*arriving.end(), waited=True)
    assert came > 200
    assert connection.gather_s() == taker.gather_s()
    assert (connection.gather_s() == 0) == (loss == 0)
    for one, another in zip(
        *(side.incoming.receivers.values() for side in (connection, taker)), strict=True
    ):
        np.testing.assert_array_equal(one.received, another.received)
        np.testing.assert_array_equal(one.placement.rows, another.placement.rows)
        assert one.received_count == one.received.sum()
        for name in ("received_count", "progress_s", "valid_datagrams"):
            assert getattr(one, name) == getattr(another, name)
    probe = ControlMessage(MessageType.PROBE, 0, b"\0\0\0\1\1").encode()
    for side in (connection, taker):
        side.on_control(probe, 1.0, waited=True)
    assert connection.control() == taker.control()
    assert vars(connection.incoming._gathering) == vars(taker.incoming._gathering)


def quiet_receiver():
    """A server that has just sent an ACK, and what the worker sends after that."""
    parties = two(2000, repair="streaming")
    rest = received(parties, [(0.0, 20), (2e-3, 20), (5e-3, 20)])
    while (quiet := parties.server.connection.incoming.receivers[0].quiet).budget < 60:
        now_s = rest[0, 4:8].view(">u4")[0] / 1e4
        parties.server.connection.on_datagrams(rest[:1], now_s, waited=True)
        rest = rest[1:]
    parties.server.connection.control()
    return parties.server.connection, rest, int(quiet.budget)


@pytest.mark.parametrize("case", ["quiet", "more", "gaps", "asked"])
def test_what_calls_for_an_ack_ends_the_rest(case):
    connection, rest, count = quiet_receiver()
    sent = rest[: count + (case == "more")].copy()
    if case == "gaps":
        sent = np.delete(sent, range(3, 40), axis=0)
    elif case == "asked":
        fields(sent, CHUNK_BYTES)["stamp"][3] |= ACK_REQUESTED
    with arriving_at(connection) as (arriving, other):
        other.send(sent)
        arrive(arriving, 2.0)
        assert arriving.it.over == (case != "quiet")
        arrivals, now_s = arriving.end()
        connection.arrived(arrivals, now_s, waited=True)
    assert len(arrivals.new) == len(sent)
    (message,) = connection.incoming.poll_messages() or [None]
    if case == "quiet":
        assert message is None
    else:
        assert Ack.parse(message.body).arrived.sum() >= len(sent)


@pytest.mark.parametrize("loss", [0.02, 0.1])
@pytest.mark.parametrize("repair", ["selective", "streaming"])
def test_what_is_lost_between_is_as_if_the_receiver_had_read_each_batch(repair, loss):
    with pair() as (udp, other):
        sides = [two(3000, repair=repair).server.connection for _ in range(2)]
        frames = all_frames(two(3000).layout, number=0)
        frames = frames[np.random.default_rng(5).random(len(frames)) >= loss]
        for side, step in itertools.product(sides, range(6)):
            side.on_datagrams(frames[5 * step : 5 * step + 5], 1e-3 * step, waited=True)
        ours, theirs = sides
        data, now_s, first, taken = data_of(udp), 6e-3, 30, 0
        while first + 20 < len(frames):
            batch = frames[first : first + 7]
            other.send(batch)
            data._resting, data._unread_until_s = True, now_s
            data.begin_routine(ours, now_s)
            if data.coming is None:
                data.read(ours, now_s, waited=True)
            else:
                arrive(data.coming, now_s)
                while not data.coming.it.over:  # the wait goes on, and the next batch comes
                    first, now_s = first + 7, now_s + 1e-3
                    theirs.on_datagrams(batch, now_s - 1e-3, waited=True)
                    batch = frames[first : first + 7]
                    other.send(batch)
                    arrive(data.coming, now_s)
                    taken += 1
                data.end_routine(ours, now_s)
            theirs.on_datagrams(batch, now_s, waited=True)
            first, now_s = first + 7, now_s + 1e-3
            assert ours.control() == theirs.control()
        credits = [side.incoming.receivers[0].repair._credit_bytes for side in sides]
        assert credits[0] == pytest.approx(credits[1])
    assert taken > 10


@pytest.mark.parametrize("case", ["behind", "too far ahead to tell"])
def test_what_comes_in_another_order_is_left_to_the_connection(case):
    connection, rest, _ = quiet_receiver()
    expected = connection.expected()
    expected = expected._replace(quiet=Quiet(1e9, expected.quiet.newest))
    later = rest[[12, 11, 13]]
    if case != "behind":
        later, number = rest[10:11].copy(), expected.quiet.newest + 9 + NUMBER_MODULUS // 2
        fields(later, CHUNK_BYTES)["sequence"] |= number // SEND_INDEX_MODULUS << CHUNK_BITS
        fields(later, CHUNK_BYTES)["stamp"] = number % SEND_INDEX_MODULUS
    with pair() as (udp, other):
        arriving = udp.arriving()
        arriving.begin(expected, 0.0, udp.receiving)
        other.send(rest[:10])
        arrive(arriving, 1.0)
        assert not arriving.it.over
        other.send(later)
        arrive(arriving, 2.0)
        assert arriving.it.over and arriving.it.unplaced
        assert len(arriving.end()[0].new) == 10


def test_send_indices_follow_one_another_around_their_end():
    connection, rest, _ = quiet_receiver()
    records = fields(rest, CHUNK_BYTES)
    records["sequence"] |= 63 << CHUNK_BITS
    records["sequence"][10:] &= (1 << CHUNK_BITS) - 1
    records["stamp"] = (np.arange(len(rest)) - 10) % SEND_INDEX_MODULUS
    receiver = connection.incoming.receivers[0]
    receiver.repair._newest = receiver.placement._it.newest = NUMBER_MODULUS - 11
    with arriving_at(connection) as (arriving, other):
        other.send(rest[:40])
        arrive(arriving, 2.0)
        assert not arriving.it.over


@pytest.mark.parametrize("case", ["transfer", "session", "duplicate", "stranger"])
def test_whatever_is_not_expected_is_left_to_the_connection_and_counted_as_ever(case):
    outcomes = []
    for taken in (False, True):
        _, connection, rest = under_way()
        sent = rest[:30].copy()
        if case == "duplicate":
            sent[7] = sent[6]
        elif case in ("transfer", "session"):
            fields(sent, CHUNK_BYTES)[case][7] += 1
        with pair() as (udp, other), socket.socket(type=socket.SOCK_DGRAM) as strange:
            data, now_s = data_of(udp), 2e-3
            data._resting, data._unread_until_s = True, now_s
            other.send(sent)
            if case == "stranger":
                strange.sendto(bytes(sent[0]), ("127.0.0.1", udp.port))
            if taken:
                data.begin_routine(connection, now_s)
                arrive(data.coming, now_s)
                assert data.worked
                if case == "stranger":  # who is dropped there, and wakes nobody
                    assert not data.coming.it.over
                data.end_routine(connection, now_s)
            else:
                data.read(connection, now_s, waited=True)
            counters = udp.counters
        receiver = connection.incoming.receivers[0]
        outcomes.append(
            (
                receiver.received.tolist(),
                receiver.placement.rows.tolist(),
                dict(receiver.ignored),
                dict(connection.counters),
                dict(counters),
                sorted(connection.incoming._early),
            )
        )
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("tampered", [[], [7]], ids=["genuine", "tampered"])
@pytest.mark.parametrize("taken", [True, False], ids=["in the wait", "by the connection"])
def test_sealed_datagrams_are_delivered_and_tampered_ones_are_counted_and_dropped(tampered, taken):
    parties, connection, rest = under_way()
    with pair(authenticated=True) as (udp, other):
        data, now_s = data_of(udp), 2e-3
        data._resting, data._unread_until_s = True, now_s
        sealed, other.seal = other.seal.seal(rest[:30]).copy(), None
        sealed[tampered, 20] ^= 1
        other.send(sealed)
        if taken:
            data.begin_routine(connection, now_s)
            arrive(data.coming, now_s)
            assert data.coming.it.over == bool(tampered)
            data.end_routine(connection, now_s)
        else:
            data.read(connection, now_s, waited=True)
        assert udp.counters == ({"forged": 1} if tampered else {})
    came = np.arange(600) < 70
    came[[40 + row for row in tampered]] = False
    assert np.array_equal(connection.incoming.receivers[0].received, came)
    into, sent = (parties.layout.rows(rows[0]) for rows in (parties.into, parties.sent))
    assert np.array_equal(into[came], sent[came]) and not into[~came].any()


def test_nothing_is_taken_while_a_transfer_that_nobody_asked_for_is_under_way():
    parties, connection, _ = under_way()
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
        data.begin_routine(connection, now_s)
        assert data.coming.it.at_once
        waiter.want(data, reading=True, writing=False)
        while not data.worked or not data.coming.it.over:
            other.send(frames[sent : sent + 10])
            sent += 10
            time.sleep(2e-3)
            assert waiter.wait_working(time.monotonic() + 1e-3, [], [data.coming]) == ([], [])
            assert sent < 100
        data.end_routine(connection, now_s)
        assert (data.unread_until_s > now_s) == (room_s > 0)
    receiver = connection.incoming.receivers[0]
    assert receiver.received_count == sent == (sent if room_s else 60)
    if not room_s:
        (message,) = connection.incoming.poll_messages()
        assert Ack.parse(message.body).echo == 59
