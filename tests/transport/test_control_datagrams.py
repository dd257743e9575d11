"""Control messages in datagrams in virtual time, which are lost, doubled and overtaken."""

import itertools
import math
import random
import struct
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.transport.control_datagrams import (
    ACK_DELAY_S,
    FLAG_BITS,
    HEAD_BYTES,
    PIECE_BYTES,
    DatagramStream,
)
from testbed.transport.errors import ProtocolError
from testbed.transport.events import Announced
from testbed.transport.messages import PASS, ControlMessage, MessageType
from testbed.transport.tolerance import FractionRule
from tests.transport import virtual
from tests.transport.virtual import DELAY_S, Two, ended, reports

SESSION = 7
FIRST_PATIENCE_S = 0.022  # before the first reply
STEP_S = 1e-3
BURST_S = 0.1


class Side:
    """One end; `received` is what has come of the other's stream."""

    def __init__(self):
        self.counters: Counter[str] = Counter()
        self.stream = DatagramStream(SESSION, self.counters)
        self.written = self.received = b""

    def say(self, data, *, urgent=True):
        self.written += data
        self.stream.write(data, urgent=urgent, needed=urgent)

    def take(self, datagrams, now_s, *, by_tcp=False):
        for datagram in datagrams:
            self.received += self.stream.take(datagram, now_s, waited=False, by_tcp=by_tcp)


def pair():
    return Side(), Side()


def exchange(one, other, now_s):
    """Brings what is due from one side, and the reply back a millisecond later each."""
    other.take(one.stream.datagrams(now_s), now_s + STEP_S)
    one.take(other.stream.datagrams(now_s + STEP_S), now_s + 2 * STEP_S)


def test_a_message_costs_one_datagram_and_an_answer_another_one():
    sender, receiver = pair()
    for number in range(50):
        sender.say(b"probe")
        receiver.take(sender.stream.datagrams(number), number + STEP_S)
        receiver.say(b"bitmap", urgent=False)
        sender.take(receiver.stream.datagrams(number + STEP_S), number + 2 * STEP_S)
        assert sender.stream.due_s == pytest.approx(number + 2 * STEP_S + ACK_DELAY_S)
    assert (sender.stream.sent, receiver.stream.sent) == (50, 50)
    assert receiver.received == b"probe" * 50 and sender.received == b"bitmap" * 50
    assert sender.stream.repeated == receiver.stream.repeated == 0


def test_what_needs_no_reply_is_acknowledged_once_for_all_that_came_meanwhile():
    sender, receiver = pair()
    for number in range(10):
        receiver.say(b"ack", urgent=False)
        sender.take(receiver.stream.datagrams(number * STEP_S), number * STEP_S)
    assert sender.stream.datagrams(0.01) == []
    assert sender.stream.due_s == pytest.approx(ACK_DELAY_S)
    receiver.take(sender.stream.datagrams(ACK_DELAY_S), ACK_DELAY_S + STEP_S)
    assert sender.stream.sent == 1
    assert receiver.stream.due_s == math.inf


def test_an_unanswered_message_goes_again_with_more_copies_and_then_less_and_less():
    side = Side()
    side.say(b"probe")
    assert len(side.stream.datagrams(0.0)) == 1
    times, copies = [], []
    for _ in range(40):
        times.append(side.stream.due_s)
        copies.append(len(side.stream.datagrams(times[-1])))
    assert times[0] == pytest.approx(FIRST_PATIENCE_S)
    assert copies[:5] == [2, 4, 8, 8, 8]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[:12] == pytest.approx([FIRST_PATIENCE_S] * 12)
    assert pauses[12:14] == pytest.approx([0.044, 0.088])
    assert pauses[14:] == pytest.approx([0.1] * 25)
    # Datagrams do not get through: one at a time, and TCP has it.
    assert copies[19:] == [1] * 21
    assert side.stream.blocked
    (body,) = side.stream.for_tcp()
    assert body[HEAD_BYTES:] == b"probe"
    assert side.stream.for_tcp() == []


def patience_s(replies_s):
    """Returns how long a side waits that had these replies, one a second."""
    sender, receiver = pair()
    for number, took_s in enumerate(replies_s):
        sender.say(b"probe")
        receiver.take(sender.stream.datagrams(number), number + took_s)
        sender.take(receiver.stream.datagrams(number + took_s), number + took_s)
    sender.say(b"probe")
    sender.stream.datagrams(100.0)
    return sender.stream.due_s - 100.0


def test_the_patience_is_that_of_recent_replies_and_has_a_most():
    assert patience_s([5e-3] * 50) == pytest.approx(5e-3 + 2e-3, abs=1e-4)
    assert 0.015 < patience_s([2e-3, 2e-3, 10e-3] * 10) < 0.03  # one of three meets a busy peer
    assert patience_s([0.2, 2e-3] * 10) == pytest.approx(0.032)
    assert patience_s([0.2] * 20) == pytest.approx(0.202, abs=1e-3)  # a long path


def test_a_reply_to_what_went_first_ends_the_copies_that_it_came_too_late_for():
    sender, receiver = pair()
    sender.say(b"probe")
    first = sender.stream.datagrams(0.0)
    repeats = [sender.stream.datagrams(sender.stream.due_s) for _ in range(3)]
    assert [len(copies) for copies in repeats] == [2, 4, 8]
    receiver.take(first, 0.2)
    sender.take(receiver.stream.datagrams(0.2), 0.2)
    sender.say(b"next")
    assert len(sender.stream.datagrams(0.3)) == 1


def test_a_gap_is_told_at_once_and_filled_without_waiting():
    sender, receiver = pair()
    receiver.say(b"one", urgent=False)
    receiver.stream.datagrams(0.0)  # lost
    receiver.say(b"two", urgent=False)
    sender.take(receiver.stream.datagrams(STEP_S), STEP_S)
    assert sender.received == b""
    receiver.take(sender.stream.datagrams(STEP_S), 2 * STEP_S)
    sender.take(receiver.stream.datagrams(2 * STEP_S), 3 * STEP_S)
    assert sender.received == b"onetwo"
    assert sender.stream.late


def test_what_is_lost_of_a_long_message_goes_again_once_the_reply_tells():
    sender, receiver = pair()
    sender.say(bytes(5 * PIECE_BYTES))
    pieces = sender.stream.datagrams(0.0)
    assert len(pieces) == 5
    receiver.take([piece for place, piece in enumerate(pieces) if place != 1], STEP_S)
    sender.take(receiver.stream.datagrams(STEP_S), 2 * STEP_S)
    receiver.take(sender.stream.datagrams(2 * STEP_S), 3 * STEP_S)
    assert receiver.received == sender.written


def test_whoever_is_asked_again_says_its_lost_answer_again_with_more_copies():
    sender, receiver = pair()
    sender.say(b"probe")
    receiver.take(sender.stream.datagrams(0.0), STEP_S)
    receiver.say(b"bitmap", urgent=False)
    assert len(receiver.stream.datagrams(STEP_S)) == 1  # lost
    receiver.take(sender.stream.datagrams(FIRST_PATIENCE_S), 0.025)
    answers = receiver.stream.datagrams(0.025)
    assert len(answers) == 2
    sender.take(answers[1:], 0.026)
    assert sender.received == b"bitmap"
    # As many copies stay for what is new, until it is confirmed without a repeat.
    sender.say(b"probe")
    sent = sender.stream.datagrams(0.03)
    assert len(sent) == 2
    assert sender.stream.due_s == pytest.approx(0.03 + sender.stream._pause_s)
    receiver.take(sent, 0.031)
    sender.take(receiver.stream.datagrams(0.031), 0.032)
    sender.say(b"probe")
    assert len(sender.stream.datagrams(0.04)) == 1


def test_what_is_longer_than_a_few_datagrams_goes_by_tcp_too():
    sender, receiver = pair()
    sender.say(bytes(200_000))
    sender.stream.datagrams(0.0)  # lost
    bodies = sender.stream.for_tcp()
    assert [len(body) - HEAD_BYTES for body in bodies] == [65536, 65536, 65536, 3392]
    receiver.take(bodies, 0.1, by_tcp=True)
    assert receiver.received == sender.written
    (reply,) = receiver.stream.for_tcp()
    sender.take([reply], 0.2, by_tcp=True)
    assert sender.stream.due_s == math.inf


def test_whoever_leaves_lets_tcp_bring_what_the_peer_may_lack_once():
    sender, receiver = pair()
    sender.say(b"probe")
    exchange(sender, receiver, 0.0)
    assert sender.stream.for_tcp(leaving=True) == []
    sender.say(b"stop")
    sender.stream.datagrams(1.0)
    assert sender.stream.for_tcp() == []
    (body,) = sender.stream.for_tcp(leaving=True)
    assert sender.stream.for_tcp(leaving=True) == []
    receiver.take([body], 1.1, by_tcp=True)
    assert receiver.received == b"probestop"
    assert receiver.stream.for_tcp() == []  # nobody is there to hear a reply


def test_a_datagram_that_gets_through_ends_what_tcp_does():
    sender, receiver = pair()
    sender.say(b"probe")
    while not sender.stream.blocked:
        sent = sender.stream.datagrams(sender.stream.due_s if sender.stream.sent else 0.0)
    receiver.take(sent, 5.0)
    sender.take(receiver.stream.datagrams(5.0), 5.0)
    assert not sender.stream.blocked


def test_a_peer_that_acknowledges_nothing_fills_no_memory():
    side = Side()
    with pytest.raises(ProtocolError, match="does not acknowledge"):
        for _ in range(20):
            side.say(bytes(1 << 20))
            side.stream.datagrams(0.0)
            side.stream.for_tcp()


@pytest.mark.parametrize(
    ("datagram", "why"),
    [
        (b"", "malformed"),
        (b"x" * (HEAD_BYTES - 1), "malformed"),
        (b"\0" * (HEAD_BYTES + PIECE_BYTES + 1), "malformed"),
        ((8).to_bytes(4) + bytes(32), "wrong-session"),
        # It has heard more than was said, or of more datagrams than were sent.
        (SESSION.to_bytes(4) + bytes(16) + (6).to_bytes(8) + bytes(8), "malformed"),
        (SESSION.to_bytes(4) + bytes(8) + (2).to_bytes(8) + bytes(16), "malformed"),
        (SESSION.to_bytes(4) + bytes(24) + (1 << 40).to_bytes(8) + b"far", "far-ahead"),
    ],
)
def test_what_makes_no_sense_is_counted_and_changes_nothing(datagram, why):
    side = Side()
    side.say(b"hello")
    side.stream.datagrams(0.0)
    due_s = side.stream.due_s
    side.take([datagram], 0.001)
    assert side.counters == {f"control-{why}": 1}
    assert side.received == b""
    assert side.stream.due_s in (due_s, 0.001 + ACK_DELAY_S)


def test_pieces_ahead_of_the_stream_are_bounded():
    side = Side()
    for first in range(10, 10 + 2 * 100, 2):
        number = (first << 3).to_bytes(8)
        side.take([SESSION.to_bytes(4) + number + bytes(16) + first.to_bytes(8) + b"z"], 1.0)
    assert len(side.stream._ahead) == 64
    assert side.received == b""


def test_a_replayed_datagram_is_neither_answered_nor_news():
    sender, receiver = pair()
    sender.say(b"worth")
    recorded = sender.stream.datagrams(0.0)
    receiver.take(recorded, STEP_S)
    assert receiver.stream.datagrams(STEP_S)
    receiver.take(recorded * 3, 0.1)
    assert receiver.stream.datagrams(0.1) == []
    assert receiver.counters == {"control-replayed": 3}
    far = ((1 << 60) << FLAG_BITS).to_bytes(8)  # costs no memory, however far it is
    receiver.take([recorded[0][:4] + far + recorded[0][12:], recorded[0]], 0.2)
    assert receiver.stream._newest == 1 << 60 and receiver.stream._seen == 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.3, 0.9]),
    tcp=st.sampled_from([0.0, 0.3]),
    sizes=st.lists(st.integers(1, 12_000), min_size=1, max_size=12),
)
def test_each_byte_is_heard_once_and_in_order_whatever_is_lost_doubled_or_overtaken(
    seed, loss, tcp, sizes
):
    chance = random.Random(seed)
    sides = pair()
    waiting = [chance.randbytes(size) for size in sizes]
    lines: dict[int, list[bytes]] = {0: [], 1: []}  # what TCP has not brought yet
    now_s = 1.0
    for _ in range(20_000):
        now_s += 1e-3
        if waiting and chance.random() < 0.2:
            chance.choice(sides).say(waiting.pop(), urgent=chance.random() < 0.5)
        for index, (side, other) in enumerate((sides, sides[::-1])):
            lines[index] += side.stream.for_tcp(leaving=chance.random() < 0.01)
            if chance.random() < tcp and lines[index]:
                other.take([lines[index].pop(0)], now_s, by_tcp=True)
            if side.stream.due_s <= now_s:
                sent = [
                    datagram for datagram in side.stream.datagrams(now_s) if chance.random() >= loss
                ]
                sent += [datagram for datagram in sent if chance.random() < 0.1]
                chance.shuffle(sent)
                other.take(sent, now_s)
            assert side.written.startswith(other.received)
        done = all(side.written == other.received for side, other in (sides, sides[::-1]))
        if done and not waiting:
            break
    assert sides[0].written == sides[1].received
    assert sides[1].written == sides[0].received
    assert not any(side.counters["control-malformed"] for side in sides)


places = st.one_of(st.integers(0, 200), st.integers(0, 2**64 - 1))
heads = st.tuples(st.sampled_from([virtual.SESSION, 1]), places, places, places, places)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(heads, st.binary(max_size=60)), max_size=100), st.binary(max_size=100))
def test_whatever_datagrams_say_nothing_breaks_and_what_is_kept_is_bounded(built, other):
    two = Two(control_datagrams=True)
    two.begin(0)
    connection = two.server.connection
    datagrams = [struct.pack("!IQQQQ", *head) + data for head, data in built]
    connection.on_control_datagrams([*datagrams, other], 0.0)
    stream = connection._datagrams
    assert stream is not None and len(stream._ahead) <= 64
    assert len(connection.control_datagrams(0.0)) <= 8
    if connection.lost is None:
        two.run(until_s=1.0)
        assert ended(two.server) in ([], two.intact)


# Whole transfers.


@pytest.mark.parametrize("repair", ["passes", "streaming", "selective"])
def test_a_lost_stop_is_said_again_to_whoever_asks(repair):
    two = Two(control_datagrams=True, chunks=5, repair=repair)
    said = []

    def lose_the_first():
        said.append(two.simulation.now_s)
        return [] if len(said) == 1 else [0.0]

    two.server.control_fate = lose_the_first
    two.begin(0)
    two.run(until_s=1.0)
    assert ended(two.worker) == [0]
    # One way for the data, and then the PROBE goes again after its patience.
    assert reports(two.worker)[0].ended_s < 2 * DELAY_S + FIRST_PATIENCE_S + 2 * DELAY_S
    assert len(said) >= 2


class Round:
    """A gather of five chunks and a broadcast; in a burst all datagrams may be lost or doubled."""

    def __init__(self, repair, skew_s, seed):
        self.two = Two(
            control_datagrams=True, chunks=5, chunk_bytes=1440, repair=repair, delay_s=5e-4
        )
        self.skew_s, self.burst_s, self.chance = skew_s, -math.inf, random.Random(seed)
        for peer in (self.two.worker, self.two.server):
            peer.fate = lambda frame: None if self._is_lost() else frame
            peer.control_fate = lambda: (
                [] if self._is_lost() else [0.0] * self.chance.choice([1, 2])
            )

    def _is_lost(self):
        now_s = self.two.simulation.now_s
        return self.burst_s <= now_s < self.burst_s + BURST_S and self.chance.random() < 0.9

    def broadcast(self, number):
        two, now_s = self.two, self.two.simulation.now_s
        two.server.connection.post_send(number, two.sent[number - 1], now_s)
        two.server.work()
        later_s = now_s + self.chance.uniform(0, self.skew_s)
        two.simulation.at(later_s, lambda: self.expect(number))

    def expect(self, number):
        two, into = self.two, self.two.layout.new_buffer()
        two.worker.connection.post_receive(number, FractionRule(0.0), into, two.simulation.now_s)
        two.worker.work()

    def took_s(self, number):
        two, simulation = self.two, self.two.simulation
        began_s = simulation.now_s
        self.burst_s = began_s + self.chance.uniform(-2e-3, 4e-3)
        two.send(number)
        simulation.at(began_s + self.chance.uniform(0, self.skew_s), lambda: two.receive(number))
        simulation.run(done=lambda: number in ended(two.server), limit=100_000)
        self.broadcast(number + 1)
        both = (two.worker, two.server)
        simulation.run(done=lambda: all(number + 1 in ended(it) for it in both), limit=100_000)
        took_s = simulation.now_s - began_s
        simulation.run(until_s=simulation.now_s + 0.3, limit=100_000)
        return took_s


@pytest.mark.parametrize("skew_s", [0.0, 4e-3])
@pytest.mark.parametrize("repair", ["passes", "streaming", "selective"])
def test_what_a_burst_hits_ends_soon_after_it(repair, skew_s):
    rounds = Round(repair, skew_s, seed=5)
    took_s = [rounds.took_s(number) for number in range(0, 80, 2)]
    assert max(took_s) < 2 * BURST_S
    assert rounds.two.intact == list(range(0, 80, 2))


def test_messages_of_each_kind_reach_the_other_side_over_tcp_where_no_datagram_does():
    two = Two(control_datagrams=True, chunks=40)
    two.worker.control_fate = two.server.control_fate = list
    for number in range(0, 12, 2):
        two.begin(number)
        two.server.connection.announce(b"next")
        two.server.work()
        two.run(until_s=two.simulation.now_s + 1.5)
    assert ended(two.worker) == ended(two.server) == [0, 2, 4, 6, 8, 10]
    assert two.intact == [0, 2, 4, 6, 8, 10]
    heard = [event.body for event in two.worker.events if isinstance(event, Announced)]
    assert heard == [b"next"] * 6
    # Once datagrams are known not to get through, TCP has each message at once.
    last = reports(two.worker)[-1]
    assert last.ended_s - last.began_s < 0.1


def test_a_sender_that_asks_again_unanswered_in_pieces_breaks_the_protocol():
    two = Two(control_datagrams=True)
    two.begin(0)
    stream, pieces = DatagramStream(virtual.SESSION, Counter()), b""
    for _ in range(2):
        probe = ControlMessage(MessageType.PROBE, 0, PASS.pack(1, True))
        stream.write(probe.encode(), urgent=True)
        for body in stream.for_tcp(leaving=True):
            pieces += ControlMessage(MessageType.PIECE, body=body).encode()
    two.server.connection.on_control(pieces, 0.0)
    assert "awaits its answer" in (two.server.connection.lost or "")


def test_a_side_without_datagrams_takes_none():
    two = Two()
    piece = ControlMessage(MessageType.PIECE, body=bytes(40)).encode()
    two.server.connection.on_control(piece, 0.0)
    assert "unexpected type" in (two.server.connection.lost or "")
