"""C carries out plans while the driver waits, as if each batch had woken it up."""

import contextlib
import heapq
import itertools
import math
import signal
import socket
import time
from typing import Any

import numpy as np
import pytest

from testbed.transport import PayloadLayout, preset
from testbed.transport.congestion import FixedRate
from testbed.transport.fast_path import SendPlan, SilenceBudget
from testbed.transport.messages import Ack, Cipher, ControlMessage, MessageType
from testbed.transport.native.fast_path import FAST_PATH, LIBRARY, WHY_NONE
from testbed.transport.net.driver import Driver, Waiter
from testbed.transport.net.tls import TAG_BYTES, Authentication, aes, authentication
from testbed.transport.net.udp import UdpData
from testbed.transport.repair.passes import PassesSender
from testbed.transport.wire import (
    ACK_REQUESTED,
    CHUNK_BITS,
    NUMBER_MODULUS,
    SEND_INDEX_MODULUS,
    fields,
)
from tests.transport.loopback import run_all, site
from tests.transport.test_udp_socket import linked
from tests.transport.virtual import SESSION, Two, all_frames, random_payload

NEEDS_C = pytest.mark.skipif(LIBRARY is None, reason=f"no C: {WHY_NONE}")
pytestmark = NEEDS_C
CHUNK_BYTES = 16
NEEDS_AES = pytest.mark.skipif(aes() is None, reason="no libcrypto.so.3")
CIPHERS = [Cipher.BLAKE2B, pytest.param(Cipher.AES_256_GCM, marks=NEEDS_AES)]


@contextlib.contextmanager
def pair(*, authenticated=False, cipher=Cipher.BLAKE2B):
    with linked(32 + authenticated * TAG_BYTES) as sockets:
        for udp in sockets if authenticated else ():
            is_server = udp is sockets[0]
            udp.seal = authentication(
                bytes(32), is_server=is_server, cipher=cipher, session=SESSION
            )
        yield sockets


def two(chunks=3000, *, repair="passes", rate_bps=10e6, **settings):
    """A worker that has begun to send, and a server that has not received anything."""
    parties = Two(chunks=chunks, repair=repair, rate_bps=rate_bps, fast_path=FAST_PATH, **settings)
    parties.sent[0] = random_payload(parties.layout)
    parties.worker.connection.post_send(0, parties.sent[0], 0.0)
    parties.receive(0)
    return parties


def data_of(udp, **changes):
    settings = {"coalesce_s": math.inf, "measured": False, "leave_out": None, "too_large": str}
    return UdpData(udp, **{**settings, **changes})


def send_planned(sending, now_s):
    """Stands for the driver, which waits, at this time."""
    assert LIBRARY is not None
    LIBRARY.send_planned(sending.address, now_s)


def receive_planned(receiving, now_s):
    """Stands for the driver, which waits, at this time."""
    assert LIBRARY is not None
    LIBRARY.receive_planned(receiving.address, now_s)


# Sending.


def test_each_datagram_goes_with_its_authentication():
    parties = two(500, rate_bps=1e9, tag_bytes=TAG_BYTES)
    with pair(authenticated=True) as (server, udp):
        sending = udp.planned_send()
        plan = parties.worker.connection.send_plan()
        assert sending.begin(plan, 0.0, segmented=udp.segmentation)
        arrived: list[np.ndarray] = []
        server.seal = Authentication(bytes(32), is_server=True)  # by hashlib
        for now_s in (0.0, 1.0):
            send_planned(sending, now_s)
            arrived.append(server.receive()[0].copy())
        assert not server.counters
    frames = np.concatenate(arrived)
    assert len(frames) == sending.sent > plan.pacer.quantum
    rows = parties.layout.rows(parties.sent[0])
    assert np.array_equal(frames[:, 16:], rows[: len(frames)])


@pytest.mark.parametrize("cipher", CIPHERS)
def test_what_a_plan_seals_and_what_is_offered_have_numbers_that_go_on(cipher):
    parties = two(500, rate_bps=1e9, tag_bytes=TAG_BYTES)
    connection = parties.worker.connection
    with pair(authenticated=True, cipher=cipher) as (server, udp):
        sending = udp.planned_send()
        arrived = []
        for now_s in (1.0, 2.0):
            assert sending.begin(connection.send_plan(), 0.0, segmented=udp.segmentation)
            send_planned(sending, now_s)
            connection.outgoing.on_plan_sent(*sending.end())
            arrived.append(server.receive()[0].copy())
            offered_now = connection.offer(now_s + 0.5)
            connection.outgoing.sent(udp.send(offered_now), now_s + 0.5)
            arrived.append(server.receive()[0].copy())
        assert not server.counters
    frames = np.concatenate(arrived)
    assert all(map(len, arrived))
    rows = parties.layout.rows(parties.sent[0])
    assert np.array_equal(frames[:, 16:], rows[: len(frames)])


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_replayed_datagram_is_counted_and_taken_once(cipher):
    _, connection, rest = under_way()
    with pair(authenticated=True, cipher=cipher) as (udp, other):
        sealed, other.seal = other.seal.seal(rest[:30]).copy(), None
        other.send(np.concatenate([sealed, sealed[:5]]))
        read(data_of(udp), connection, 2e-3, taken=True)
        assert not udp.counters
    receiver = connection.incoming.receivers[0]
    assert receiver.received_count == 70 and receiver.ignored == {"replayed": 5}


def test_nothing_goes_from_frames_without_room_for_the_tags():
    parties = two(500, rate_bps=1e9)
    with pair(authenticated=True) as (_, udp):
        sending = udp.planned_send()
        assert sending.begin(parties.worker.connection.send_plan(), 0.0, segmented=False)
        send_planned(sending, 1.0)
        assert sending.over and not sending.sent


class Course:
    """A transfer over a link of 20 Mbit/s and 5 ms that loses one datagram in 97, in virtual time.

    The worker is woken for each batch or, `planned`, C sends what needs no wake-up. What is due is
    done up to `late_s` later.
    """

    def __init__(self, *, planned, chunks=4000, late_s=0.0, **settings):
        self.parties = parties = two(chunks, **settings)
        self.worker, self.server = parties.worker.connection, parties.server.connection
        self.batches = []  # (when, frames)
        self.wakes = self.planned = 0
        self._coming: list[Any] = []  # (when, order, to whom, its method, what)
        self._plan: SendPlan | None = None
        self._order, self._free_s, self._count = itertools.count(), 0.0, 0
        self._late_s = late_s * np.random.default_rng(7).random(2 * chunks)  # of each batch
        with pair() as (udp, other):
            self._udp, self._other = udp, other
            self._sending, self._plans = udp.planned_send(), planned
            self._run()

    def _run(self):
        now_s = 0.0
        self._work(now_s)
        while self._coming or self._due_s < math.inf:
            # What comes when a batch is due, but for rounding, is taken before.
            coming_s = self._coming[0][0] - 1e-6 if self._coming else math.inf
            late_s = self._late_s[len(self.batches)]
            if self._plan and self._sending.due_s <= min(coming_s, self._due_s):
                now_s = max(now_s, self._sending.due_s + late_s)  # what is late is due at once
                self._go_on(now_s)
                woken = False
            elif self._due_s < coming_s:
                now_s, woken = max(now_s, self._due_s + late_s), True
            else:
                at_s, _, side, take, data = heapq.heappop(self._coming)
                now_s = max(now_s, at_s)
                if woken := side is self.worker:
                    self._settle()
                take(data, now_s)
                if not woken:
                    self._say(self.server, self.worker, now_s)
            if woken:
                self._settle()
                self._work(now_s)
            assert now_s < 60

    def _go_on(self, now_s):
        """Lets C send a batch, and wakes the worker where the plan is over."""
        before = self._sending.sent
        send_planned(self._sending, now_s)
        if count := self._sending.sent - before:
            self.planned += 1
            self._leave(self._received(count), now_s)
        if self._sending.over:
            self._settle()
            self._work(now_s, offers=not count)  # the next batch is late by itself

    def _received(self, count):
        rows = self._other.receive()[0].copy()
        while len(rows) < count:  # a large batch may come in parts
            rows = np.concatenate([rows, self._other.receive()[0]])
        return rows

    def _settle(self):
        if self._plan and self._sending.worked:
            plan, batches = self._sending.end()
            if batches:
                self.worker.outgoing.on_plan_sent(plan, batches)
        self._plan = None

    def _work(self, now_s, *, offers=True):
        self.wakes += 1
        self.worker.on_deadline(now_s)
        if offers and len(frames := self.worker.offer(now_s)):
            self._leave(frames, now_s)
            self.worker.outgoing.sent(len(frames), now_s)
        self._say(self.worker, self.server, now_s)
        self._plan = self.worker.send_plan() if self._plans else None
        if self._plan:
            due_s = self._plan.pacer.next_s(now_s, len(self._plan.chunks) + self._plan.beyond)
            assert self._sending.begin(self._plan, due_s, segmented=self._udp.segmentation)
        due_s = self.worker.next_deadline_s(now_s, planned=self._plan is not None)
        self._due_s = due_s if due_s is not None and self.worker.outgoing.senders else math.inf

    def _say(self, side, other, now_s):
        if data := side.control():
            self._come(now_s + 5e-3, other, other.on_control, data)

    def _come(self, at_s, side, take, data):
        heapq.heappush(self._coming, (at_s, next(self._order), side, take, data))

    def _leave(self, rows, now_s):
        self.batches.append((now_s, rows.copy()))
        size_s = 8 * self.parties.path.datagram_wire_bytes / 20e6
        self._free_s = max(self._free_s, now_s) + size_s * len(rows)
        kept = np.arange(self._count, self._count + len(rows)) % 97 != 96
        self._count += len(rows)
        self._come(self._free_s + 5e-3, self.server, self.server.on_datagrams, rows[kept].copy())


def compare(**settings):
    """The same goes at the same times, whether the worker is woken for each batch or not."""
    singly, planned = (Course(planned=planned, **settings) for planned in (False, True))
    assert not singly.worker.outgoing.senders and not planned.worker.outgoing.senders
    assert planned.planned > 20
    assert [len(rows) for _, rows in singly.batches] == [len(rows) for _, rows in planned.batches]
    ours, theirs = (np.concatenate([rows for _, rows in it.batches]) for it in (planned, singly))
    np.testing.assert_array_equal(ours, theirs)
    times = [[at_s for at_s, _ in it.batches] for it in (planned, singly)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert planned.wakes < 0.7 * singly.wakes


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming:lost_first=true"])
@pytest.mark.parametrize(
    ("congestion", "chunks"),
    [("bbr", 12000), ("ltp", 4000), ("timely", 2000), ("cubic", 700), ("compensated", 2000)],
)
def test_between_feedbacks_the_same_goes_at_the_same_times_as_if_woken_for_each(
    congestion, chunks, repair
):
    compare(congestion=congestion, chunks=chunks, repair=repair)


@pytest.mark.parametrize("queue_bytes", [math.inf, 20_000.0])
@pytest.mark.parametrize("late_s", [3e-3, 50e-3])
def test_what_is_late_is_made_up_for_as_if_each_batch_had_woken_the_sender(queue_bytes, late_s):
    compare(late_s=late_s, queue_bytes=queue_bytes)


@pytest.mark.parametrize("repair", ["selective", "streaming"])
def test_no_datagram_goes_unoffered_that_has_to_ask(repair):
    parties = two(200, repair=repair)
    connection = parties.worker.connection
    plan = connection.send_plan()
    assert 0 < len(plan.chunks) < 200
    connection.outgoing.on_plan_sent(plan, [(len(plan.chunks), 0.0)])
    assert connection.send_plan() is None
    asked = []
    for now_s in range(1, 40):
        frames = connection.offer(float(now_s))
        if len(frames):
            asked += (fields(frames, CHUNK_BYTES)["stamp"] >= ACK_REQUESTED).tolist()
            connection.outgoing.sent(len(frames), float(now_s))
    assert asked[: 200 - len(plan.chunks)].count(True) == 1


def test_what_moves_or_may_move_the_sender_is_asked_before_each_batch():
    def send_plan(change=lambda parties: None, **settings):
        parties = two(**settings)
        change(parties)
        return parties.worker.connection.send_plan()

    def own_rate(parties):
        parties.path.congestion = type("OwnRate", (FixedRate,), {})(rate_bps=1e6)

    def steady_rate(parties):
        own = {"steady_until_s": 0.0}
        parties.path.congestion = type("Steady", (FixedRate,), own)(rate_bps=10e6)

    def faster_from_the_next_offer_on(parties):
        parties.path.congestion = FixedRate(rate_bps=20e6)

    def own_repair(parties):
        own = type("OwnSender", (PassesSender,), {})
        parties.worker.connection.outgoing.senders[0]._repair.__class__ = own

    def another_waits(parties):
        parties.worker.connection.post_send(1, parties.sent[0], 0.0)

    def another_is_on_its_way(parties):
        another_waits(parties)
        parties.worker.connection.outgoing.senders[1]._repair.in_flight = 1

    def another_is_short(parties):
        another_waits(parties)
        parties.worker.connection.outgoing.senders[1]._repair._reached = 1

    def the_first_asks(parties):
        another_waits(parties)
        parties.worker.connection.outgoing.senders[0]._repair.asking = True

    def held(parties):
        message = ControlMessage(MessageType.HOLD, 0)
        parties.worker.connection.on_control(message.encode(), 0.0)

    assert send_plan() is not None
    assert send_plan(steady_rate).steady_until_s == 0
    assert send_plan(another_waits).composer.transfer == 0
    assert send_plan(the_first_asks).composer.transfer == 1
    for change in (
        *(own_rate, own_repair, faster_from_the_next_offer_on),
        *(another_is_on_its_way, another_is_short, held),
    ):
        assert send_plan(change) is None
    assert send_plan(congestion="reno") is None  # it has no pace before a round trip is known
    assert send_plan(rate_bps=math.inf) is None


def test_a_socket_that_takes_no_more_ends_the_plan_and_the_rest_is_offered_again():
    parties = two()
    with pair() as (udp, _):
        sending = udp.planned_send()
        plan = parties.worker.connection.send_plan()
        sending.begin(plan, 0.0, segmented=udp.segmentation)
        udp._socket.close()
        send_planned(sending, 1.0)
        assert sending.worked
        assert sending.end()[1] == []


# Taking.


@contextlib.contextmanager
def receiving_by(plan):
    """Yields what receives by the plan in a wait, and the socket that sends to it."""
    with pair() as (udp, other):
        receiving = udp.planned_receive()
        receiving.begin(plan, 0.0)
        yield receiving, other


def read(data, connection, now_s, *, taken):
    """Reads in the wait, and returns whether that would end it; or has the connection read."""
    data.unread_until_s = now_s
    if not taken:
        data.read(connection, now_s, waited=True)
        return None
    data.begin_plans(connection, now_s)
    receive_planned(data.receiving, now_s)
    assert data.worked
    over = data.receiving.over
    data.end_plans(connection, now_s)
    return over


def under_way():
    """Parties of which the server has read two batches, its connection, and what comes next."""
    parties = two(600)
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
    (_, connection, rest), (_, taker, _) = under_way(), under_way()
    rest = rest[np.random.default_rng(3).random(len(rest)) >= loss]
    with pair() as (udp, other):
        receiving = udp.planned_receive()
        due_s = 2e-3 + connection.coalesce_s()
        assert receiving.begin(connection.receive_plan(), due_s)
        came = 0
        while not receiving.over and (not loss or came + 60 < len(rest)):
            count = int(1e4 * (due_s - 2e-3)) + 1 - came
            other.send(rest[came : came + count])
            receive_planned(receiving, due_s)
            taker.on_datagrams(rest[came : came + count], due_s, waited=True)
            came += count
            wait_s = taker.coalesce_s()
            assert receiving.over == (wait_s == 0)
            if wait_s:
                assert receiving.due_s == due_s + wait_s
            due_s = receiving.due_s
        connection.on_plan_received(*receiving.end(), waited=True)
    assert came > 200
    assert connection.coalesce_s() == taker.coalesce_s()
    assert (connection.coalesce_s() == 0) == (loss == 0)
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
    assert vars(connection.incoming._coalescer) == vars(taker.incoming._coalescer)


def silent_receiver():
    """A server that has just sent an ACK, and what the worker sends after that."""
    parties = two(2000, repair="streaming")
    rest = received(parties, [(0.0, 20), (2e-3, 20), (5e-3, 20)])
    while (silence := parties.server.connection.incoming.receivers[0].silence).budget < 60:
        now_s = rest[0, 4:8].view(">u4")[0] / 1e4
        parties.server.connection.on_datagrams(rest[:1], now_s, waited=True)
        rest = rest[1:]
    parties.server.connection.control()
    return parties.server.connection, rest, int(silence.budget)


@pytest.mark.parametrize("case", ["silence", "more", "gaps", "asked"])
def test_what_calls_for_an_ack_ends_the_rest(case):
    connection, rest, count = silent_receiver()
    sent = rest[: count + (case == "more")].copy()
    if case == "gaps":
        sent = np.delete(sent, range(3, 40), axis=0)
    elif case == "asked":
        fields(sent, CHUNK_BYTES)["stamp"][3] |= ACK_REQUESTED
    with receiving_by(connection.receive_plan()) as (receiving, other):
        other.send(sent)
        receive_planned(receiving, 2.0)
        assert receiving.over == (case != "silence")
        arrivals, now_s = receiving.end()
        connection.on_plan_received(arrivals, now_s, waited=True)
    assert len(arrivals.new) == len(sent)
    (message,) = connection.incoming.poll_messages() or [None]
    if case == "silence":
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
            data.unread_until_s = now_s
            data.begin_plans(ours, now_s)
            if data.receiving is None:
                data.read(ours, now_s, waited=True)
            else:
                receive_planned(data.receiving, now_s)
                while not data.receiving.over:  # the wait goes on, and the next batch comes
                    first, now_s = first + 7, now_s + 1e-3
                    theirs.on_datagrams(batch, now_s - 1e-3, waited=True)
                    batch = frames[first : first + 7]
                    other.send(batch)
                    receive_planned(data.receiving, now_s)
                    taken += 1
                data.end_plans(ours, now_s)
            theirs.on_datagrams(batch, now_s, waited=True)
            first, now_s = first + 7, now_s + 1e-3
            assert ours.control() == theirs.control()
        credits = [side.incoming.receivers[0].repair._credit_bytes for side in sides]
        assert credits[0] == pytest.approx(credits[1])
    assert taken > 10


@pytest.mark.parametrize("case", ["behind", "too far ahead to tell"])
def test_what_comes_in_another_order_is_left_to_the_connection(case):
    connection, rest, _ = silent_receiver()
    expected = connection.receive_plan()
    expected = expected._replace(silence=SilenceBudget(1e9, expected.silence.newest))
    later = rest[[12, 11, 13]]
    if case != "behind":
        later, number = rest[10:11].copy(), expected.silence.newest + 9 + NUMBER_MODULUS // 2
        fields(later, CHUNK_BYTES)["sequence"] |= number // SEND_INDEX_MODULUS << CHUNK_BITS
        fields(later, CHUNK_BYTES)["stamp"] = number % SEND_INDEX_MODULUS
    with receiving_by(expected) as (receiving, other):
        other.send(rest[:10])
        receive_planned(receiving, 1.0)
        assert not receiving.over
        other.send(later)
        receive_planned(receiving, 2.0)
        assert receiving.over and receiving.unplaced
        assert len(receiving.end()[0].new) == 10


def test_send_indices_follow_one_another_around_their_end():
    connection, rest, _ = silent_receiver()
    records = fields(rest, CHUNK_BYTES)
    records["sequence"] |= 63 << CHUNK_BITS
    records["sequence"][10:] &= (1 << CHUNK_BITS) - 1
    records["stamp"] = (np.arange(len(rest)) - 10) % SEND_INDEX_MODULUS
    receiver = connection.incoming.receivers[0]
    receiver.repair._newest = receiver.placement._it.newest = NUMBER_MODULUS - 11
    with receiving_by(connection.receive_plan()) as (receiving, other):
        other.send(rest[:40])
        receive_planned(receiving, 2.0)
        assert not receiving.over


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
            other.send(sent)
            if case == "stranger":
                strange.sendto(bytes(sent[0]), ("127.0.0.1", udp.port))
            over = read(data_of(udp), connection, 2e-3, taken=taken)
            assert not over or case != "stranger"  # who is dropped there, and wakes nobody
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


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("tampered", [[], [7]], ids=["genuine", "tampered"])
@pytest.mark.parametrize("taken", [True, False], ids=["in the wait", "by the connection"])
def test_sealed_datagrams_are_delivered_and_tampered_ones_are_counted_and_dropped(
    cipher, tampered, taken
):
    parties, connection, rest = under_way()
    with pair(authenticated=True, cipher=cipher) as (udp, other):
        sealed, other.seal = other.seal.seal(rest[:30]).copy(), None
        sealed[tampered, 20] ^= 1
        other.send(sealed)
        assert not read(data_of(udp), connection, 2e-3, taken=taken)  # a forger wakes nobody
        assert udp.counters == ({"forged": 1} if tampered else {})
    came = np.arange(600) < 70
    came[[40 + row for row in tampered]] = False
    assert np.array_equal(connection.incoming.receivers[0].received, came)
    into, sent = (parties.layout.rows(rows[0]) for rows in (parties.into, parties.sent))
    assert np.array_equal(into[came], sent[came]) and not into[~came].any()


def test_of_two_transfers_the_one_is_taken_whose_data_come_until_those_of_the_other_do():
    sides = []
    for taken in (False, True):
        parties, connection, rest = under_way()
        parties.receive(1)
        first = connection.incoming.receivers[0]
        batches = [rest[:30], rest[30:60], all_frames(parties.layout, number=1)[:30]]
        with pair() as (udp, other):
            data = data_of(udp)
            for number, batch in enumerate(batches):
                if not taken:
                    connection.on_datagrams(batch, 3e-3 + number, waited=True)
                    continue
                data.begin_plans(connection, 3e-3 + number)
                assert data.receiving.at_once and data.receiving.most_s == 0
                other.send(batch)
                receive_planned(data.receiving, 3e-3 + number)
                assert data.receiving.over == (number == 2)
                data.end_plans(connection, 3e-3 + number)
        second = connection.incoming.receivers[1]
        sides.append([(it.received.tolist(), it.progress_s > 2) for it in (first, second)])
        assert (first.received_count, second.received_count) == (100, 30)
        assert connection.receive_plan(measured=True).placement is second.placement
    assert sides[0] == sides[1]


def test_nothing_is_taken_while_a_transfer_that_nobody_asked_for_is_under_way():
    parties, connection, _ = under_way()
    assert connection.receive_plan() is not None
    connection.on_datagrams(all_frames(parties.layout, number=3)[:1], 2e-3)
    assert connection.receive_plan() is None


@pytest.mark.parametrize("room_s", [0.0, math.inf])
def test_what_may_not_rest_is_taken_as_it_comes_and_answered_with_its_time(room_s):
    parties = two(2000, repair="streaming")
    connection = parties.server.connection
    frames = all_frames(parties.layout, number=0)
    connection.on_datagrams(frames[:1], 0.0)
    assert connection.receive_plan() is None  # the rate is not known yet
    connection.on_datagrams(frames[1:10], 1e-3)
    connection.control()
    frames[59, 14] |= ACK_REQUESTED >> 8
    with pair() as (udp, other):
        data, waiter = data_of(udp, coalesce_s=room_s), Waiter()
        now_s, sent = time.monotonic(), 10
        data.begin_plans(connection, now_s)
        assert data.receiving.at_once
        waiter.register(data, reading=True, writing=False)
        while not data.worked or not data.receiving.over:
            other.send(frames[sent : sent + 10])
            sent += 10
            time.sleep(2e-3)
            assert waiter.wait(time.monotonic() + 1e-3, [], [data.receiving]) == ([], [])
            assert sent < 100
        data.end_plans(connection, now_s)
        assert (data.unread_until_s > now_s) == (room_s > 0)
    receiver = connection.incoming.receivers[0]
    assert receiver.received_count == sent == (sent if room_s else 60)
    if not room_s:
        (message,) = connection.incoming.poll_messages()
        assert Ack.parse(message.body).echo == 59


# The wait.


def test_the_wait_ends_with_what_can_be_read_or_written():
    waiter = Waiter()
    one, other = socket.socketpair()
    with one, other:
        waiter.register(one, reading=True, writing=False)
        waiter.register(other, reading=False, writing=True)
        assert waiter.wait(time.monotonic() + 30, [], []) == ([], [other])
        other.send(b"x")
        assert waiter.wait(time.monotonic() + 30, [], []) == ([one], [other])
        waiter.register(other, reading=False, writing=False)
        assert waiter.wait(time.monotonic() + 30, [], []) == ([one], [])
        one.recv(1)
        began_s = time.monotonic()
        assert waiter.wait(began_s + 0.02, [], []) == ([], [])
        assert 0.02 <= time.monotonic() - began_s < 10


def test_a_signal_ends_the_wait():
    ticks = []
    before = signal.signal(signal.SIGALRM, lambda *_: ticks.append(time.monotonic()))
    try:
        began_s = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        Waiter().wait(began_s + 60, [], [])
        assert ticks and time.monotonic() - began_s < 30
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("repair", "most"), [("passes", 20), ("streaming", 40)])
def test_a_paced_megabyte_wakes_each_side_a_few_times_and_arrives_whole(monkeypatch, repair, most):
    protocol = preset("fixed-low", tolerance=0, repair=repair)
    layout = PayloadLayout([("w", 250_000)])
    place = site(protocol, layout=layout, rate_bps=100e6, queue_bytes=1e6)
    payload, buffer = random_payload(layout), layout.new_buffer()
    counted: list[Any] = []
    per_round = []
    wait = Driver._wait

    def count(self, until_s):
        counted.append(self)
        wait(self, until_s)

    monkeypatch.setattr(Driver, "_wait", count)

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


def test_what_was_done_counts_although_a_signals_handler_raises(monkeypatch):
    class TickError(Exception):
        pass

    wait = Waiter.wait
    ticks: list[Waiter] = []

    def interrupted(self, until_s, sends=(), receives=()):
        ended = wait(self, until_s, sends, receives)
        if any(plan.worked for plan in (*sends, *receives)) and ticks.count(self) < 3:
            ticks.append(self)
            raise TickError
        return ended

    monkeypatch.setattr(Waiter, "wait", interrupted)

    def ended(handle):
        while True:
            try:
                return next(iter(handle.wait().values()))
            except TickError:
                continue

    layout = PayloadLayout([("w", 100_000)])
    place = site(layout=layout, rate_bps=20e6, queue_bytes=1e6)
    payload, buffer = random_payload(layout), layout.new_buffer()
    got, [sent] = run_all(
        place,
        lambda endpoint: ended(endpoint.post_receive(0, 0, {"worker-1": buffer})),
        lambda endpoint, index: ended(endpoint.post_send(0, {"server": payload})),
    )
    assert len(set(ticks)) == 2  # both sides
    assert np.array_equal(buffer, payload)
    assert got.chunks_received == layout.chunk_count
    assert got.duplicates == sent.chunks_sent - layout.chunk_count
