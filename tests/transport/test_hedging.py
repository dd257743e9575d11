"""Hedges of a control stream in virtual time: a TCP that stalls, and datagrams that vanish."""

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.transport.hedging import HEAD_BYTES, PIECE_BYTES, Hedge

SESSION = 7


class Side:
    """One end, and what it knows of TCP: all that was said, until it is told what arrived."""

    def __init__(self):
        self.counters: Counter[str] = Counter()
        self.hedge = Hedge(SESSION, self.counters)
        self.written = b""
        self.received = b""
        self.by_tcp = 0  # of what the other side said

    def say(self, data, now_s=0.0):
        self.written += data
        self.hedge.on_written(data, now_s, taken_bytes=len(self.written))

    def deliver(self, other, count):
        """TCP brings the next bytes to the other side, and their acknowledgement back."""
        piece = self.written[other.by_tcp : other.by_tcp + count]
        other.by_tcp += len(piece)
        other.received += other.hedge.from_stream(piece)
        self.hedge.acknowledged(other.by_tcp)

    def take(self, datagrams, now_s):
        for datagram in datagrams:
            self.received += self.hedge.from_datagram(datagram, now_s)


def pair():
    """Two sides that have joined: the first words are not hedged, and TCP has delivered them."""
    sides = Side(), Side()
    for side, other in (sides, sides[::-1]):
        side.say(b"hello")
        side.deliver(other, 5)
        assert side.hedge.datagrams(0.05) == []
    return sides


def doubting(now_s=1.01, word=b"worth"):
    """Two sides, of which the worker doubts that TCP delivers its latest word."""
    worker, server = pair()
    worker.say(word, 1.0)
    worker.hedge.doubt(now_s)
    return worker, server


def test_a_calm_connection_sends_no_hedge():
    worker, server = pair()
    for step in range(100):
        worker.say(b"worth", step)
        worker.deliver(server, 5)
        assert worker.hedge.datagrams(step + 0.5) == server.hedge.datagrams(step + 0.5) == []
    assert not worker.hedge.troubled


def test_tcp_that_catches_up_brings_nothing_twice():
    worker, server = doubting()
    server.take(worker.hedge.datagrams(1.01), 1.011)
    worker.take(server.hedge.datagrams(1.011), 1.012)
    worker.hedge.datagrams(1.013)  # asks once more, since the answer brought something
    worker.take(server.hedge.datagrams(1.013), 1.014)
    worker.say(b"probe", 1.02)
    worker.deliver(server, 4)
    assert worker.hedge.troubled
    worker.deliver(server, 3)
    assert server.received == b"helloworthpr"
    assert not worker.hedge.troubled  # TCP has brought what was lacking then
    worker.deliver(server, 100)
    assert server.received == b"helloworthprobe"


def test_what_the_kernel_does_not_acknowledge_for_50_ms_is_hedged():
    worker, _ = pair()
    worker.say(b"stop", 1.0)
    assert worker.hedge.datagrams(1.049) == []
    assert worker.hedge.due_s == pytest.approx(1.05)
    assert len(worker.hedge.datagrams(1.05)) == 1


def test_a_long_round_trip_is_given_its_time():
    hedge = Hedge(SESSION, Counter(), written=5, received=5)
    hedge.round_trip_s = 0.1
    hedge.on_written(b"stop", 1.0, taken_bytes=9)
    assert hedge.due_s == pytest.approx(1.25)


def test_what_belongs_to_joining_is_never_hedged():
    server = Side()
    server.say(b"a key", 1.0)
    server.hedge.doubt(1.0)
    assert all(b"key" not in datagram for datagram in server.hedge.datagrams(1.0))
    server.say(b"ready", 1.0)
    assert {datagram[HEAD_BYTES:] for datagram in server.hedge.datagrams(1.0)} == {b"ready"}


def test_a_peer_that_never_answers_is_hedged_with_more_copies_and_then_less_and_less():
    worker, _ = doubting(1.0)
    times, copies = [], []
    for _ in range(50):
        times.append(worker.hedge.due_s)
        copies.append(len(worker.hedge.datagrams(times[-1])))
    assert copies[:6] == [1, 2, 4, 8, 8, 8]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[:12] == pytest.approx([2e-3] * 12)
    assert pauses[12:17] == pytest.approx([2e-3, 4e-3, 8e-3, 16e-3, 32e-3])
    assert pauses[20:] == pytest.approx([0.1] * 29)


def hopeless():
    """Two sides, and how many hedges the worker sent until it gave up, since none got through."""
    worker, server = pair()
    worker.say(b"probe", 1.0)
    worker.deliver(server, 5)
    worker.hedge.doubt(1.01)
    sent = 0
    while worker.hedge.due_s < 60:
        sent += len(worker.hedge.datagrams(worker.hedge.due_s))
        worker.hedge.acknowledged(len(worker.written))
    return worker, server, sent


def test_whoever_only_doubts_gives_up_where_no_hedge_gets_through():
    worker, _, sent = hopeless()
    assert 20 <= sent <= 8 * 20
    assert not worker.hedge.troubled
    worker.hedge.doubt(70.0)
    assert len(worker.hedge.datagrams(70.0)) == 1  # from now on it tries once
    worker.hedge.acknowledged(len(worker.written))
    assert worker.hedge.due_s == math.inf


def test_where_no_hedge_gets_through_a_slow_acknowledgement_costs_one_each_tenth_of_a_second():
    worker, *_ = hopeless()
    worker.say(b"stop", 10.0)
    sent = []
    while (due_s := worker.hedge.due_s) < 10.5:
        sent.append(len(worker.hedge.datagrams(due_s)))
    assert sum(sent) <= 1 + 2 + 4 + 8 + 8
    assert sent[0] == 1


def test_a_hedge_of_the_peer_restores_hope():
    worker, server, _ = hopeless()
    server.hedge.doubt(20.0)
    worker.take(server.hedge.datagrams(20.0), 20.0)
    worker.hedge.datagrams(20.0)
    worker.say(b"stop", 21.0)
    times = []
    for _ in range(3):
        times.append(worker.hedge.due_s)
        worker.hedge.datagrams(times[-1])
    assert times == pytest.approx([21.05, 21.052, 21.054])


def test_a_stream_that_leaves_too_much_undelivered_is_hedged_again_from_then_on():
    worker, _ = doubting(word=bytes((1 << 20) + 1))
    assert [datagram[HEAD_BYTES:] for datagram in worker.hedge.datagrams(1.01)] == [b""]
    worker.say(b"after", 1.02)
    assert {datagram[HEAD_BYTES:] for datagram in worker.hedge.datagrams(1.02)} == {b"after"}


def test_what_is_said_in_trouble_goes_at_once_and_does_not_hurry_the_timer():
    worker, _ = doubting()
    worker.hedge.datagrams(1.01)
    again_s = worker.hedge.due_s
    worker.say(b"ack", 1.0105)
    assert {datagram[HEAD_BYTES:] for datagram in worker.hedge.datagrams(1.0105)} == {b"ack"}
    assert worker.hedge.due_s == again_s
    assert {datagram[HEAD_BYTES:] for datagram in worker.hedge.datagrams(again_s)} == {b"worthack"}


def test_no_piece_lies_further_ahead_than_the_peer_takes():
    worker, server = doubting(word=bytes(200_000))
    for _ in range(40):
        server.take(worker.hedge.datagrams(worker.hedge.due_s)[1:], 1.01)
    assert not server.counters


def test_a_peer_that_was_told_what_is_lacking_becomes_troubled_itself():
    worker, server = pair()
    worker.say(b"worth", 1.0)
    server.hedge.doubt(1.003)
    worker.take(server.hedge.datagrams(1.003), 1.0031)
    assert worker.hedge.troubled
    assert [datagram[HEAD_BYTES:] for datagram in worker.hedge.datagrams(1.0031)] == [b"worth"]


def test_an_answer_to_a_hedge_is_hedged_and_asks_for_nothing():
    worker, server = doubting()
    server.take(worker.hedge.datagrams(1.01), 1.011)
    server.say(b"ack", 1.0112)
    hedges = server.hedge.datagrams(1.0112)
    assert [hedge[HEAD_BYTES:] for hedge in hedges] == [b"ack"]
    worker.take(hedges, 1.012)
    assert worker.received == b"helloack"
    # It asks once more: the answer may have had more pieces.
    (again,) = worker.hedge.datagrams(1.013)
    server.take([again], 1.014)
    worker.take(server.hedge.datagrams(1.014), 1.015)
    assert worker.hedge.datagrams(2.0) == []


@pytest.mark.parametrize(
    ("datagram", "why"),
    [
        (b"", "malformed"),
        (b"x" * (HEAD_BYTES - 1), "malformed"),
        (b"\0" * (HEAD_BYTES + PIECE_BYTES + 1), "malformed"),
        ((8).to_bytes(4) + bytes(20), "wrong-session"),
        # It has heard more than was said.
        (SESSION.to_bytes(4) + bytes(4) + (6).to_bytes(8) + bytes(8), "malformed"),
        (SESSION.to_bytes(4) + bytes(12) + (1 << 40).to_bytes(8) + b"far", "far-ahead"),
    ],
)
def test_what_is_no_hedge_is_counted_and_changes_nothing(datagram, why):
    worker, _ = pair()
    worker.take([datagram], 1.0)
    assert worker.counters == {f"hedge-{why}": 1}
    assert worker.received == b"hello"
    assert worker.hedge.datagrams(1.0) == []


def test_pieces_ahead_of_the_stream_are_bounded():
    worker, _ = pair()
    for first in range(10, 10 + 2 * 100, 2):
        number = (first << 1).to_bytes(4)
        worker.take([SESSION.to_bytes(4) + number + bytes(8) + first.to_bytes(8) + b"z"], 1.0)
    assert len(worker.hedge._ahead) == 64
    assert worker.received == b"hello"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.3, 0.9]),
    sizes=st.lists(st.integers(1, 4000), min_size=1, max_size=12),
)
def test_each_byte_is_heard_once_and_in_order_whatever_is_lost_doubled_or_overtaken(
    seed, loss, sizes
):
    chance = random.Random(seed)
    sides = pair()
    words = [chance.randbytes(size) for size in sizes]
    now_s, waiting = 1.0, list(words)
    for _ in range(20_000):
        now_s += 1e-3
        if waiting and chance.random() < 0.2:
            chance.choice(sides).say(waiting.pop(), now_s)
        for side, other in (sides, sides[::-1]):
            if chance.random() < 0.01:
                side.hedge.doubt(now_s)
            if chance.random() < 0.02:
                side.deliver(other, chance.randrange(1, 500))
            if side.hedge.due_s <= now_s:
                sent = [
                    datagram for datagram in side.hedge.datagrams(now_s) if chance.random() >= loss
                ]
                sent += [datagram for datagram in sent if chance.random() < 0.1]
                chance.shuffle(sent)
                other.take(sent, now_s)
        done = all(side.written == other.received for side, other in (sides, sides[::-1]))
        assert all(side.written.startswith(other.received) for side, other in (sides, sides[::-1]))
        if done and not waiting:
            break
    assert sides[0].written == sides[1].received
    assert sides[1].written == sides[0].received
    assert not any(side.counters["hedge-malformed"] for side in sides)


def test_a_replayed_hedge_is_neither_answered_nor_news():
    worker, server = doubting()
    recorded = worker.hedge.datagrams(1.01)
    server.take(recorded, 1.011)
    assert server.hedge.datagrams(1.011)
    newer = [datagram for n in range(20) for datagram in worker.hedge.datagrams(1.1 + n)]
    server.take(recorded * 3, 1.2)
    assert server.hedge.datagrams(1.2) == []
    server.take(newer, 30.0)
    assert server.hedge.datagrams(30.0)
    server.take(recorded + newer, 31.0)
    assert server.hedge.datagrams(31.0) == []
    assert server.counters == {"hedge-replayed": 4 * len(recorded) + len(newer)}
    far = (2**31 - 1 << 1).to_bytes(4, "big")  # costs no memory, however far it is
    server.take([recorded[0][:4] + far + recorded[0][8:], recorded[0]], 40.0)
    assert server.hedge._newest == 2**31 - 1 and server.hedge._seen == 1
