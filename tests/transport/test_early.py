"""Transfers of which one side comes early, or late, or not at all."""

import pytest

from testbed.transport import StopRule
from testbed.transport.messages import Ack
from testbed.transport.tolerance import FractionRule
from testbed.transport.wire import ACK_REQUESTED, fields
from tests.transport.virtual import (
    TIMEOUT_S,
    Two,
    all_frames,
    ended,
    gone,
    random_payload,
    reports,
)

# What comes before it is asked for.


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
def test_data_that_come_before_they_are_asked_for_are_sent_once(repair):
    two = Two(repair=repair)
    two.send(0)
    two.run(until_s=1.0)
    assert ended(two.server) == []
    two.receive(0)
    two.run()
    assert two.intact == [0]
    assert reports(two.worker)[0].chunks_sent == 100


def test_early_data_of_several_transfers_wait_side_by_side():
    two = Two(loss=0.2)
    numbers = [0, 2, 4, 6]
    for number in numbers:
        two.send(number)
    two.run(until_s=1.0)
    for number in numbers:
        two.receive(number)
    two.run()
    assert two.intact == numbers


def test_more_early_transfers_than_may_be_in_flight_cost_repairs_and_no_memory():
    two = Two(transfers_in_flight=2)
    two.send(0)
    two.send(2)
    two.run(until_s=0.5)
    two.receive(0)
    two.run(until_s=0.6)
    with pytest.raises(ValueError, match="numbers must ascend"):
        two.receive(0)
    two.send(4)
    with pytest.raises(ValueError, match="2 are in flight already; valid: at most 2"):
        two.send(6)


def test_a_sender_that_is_told_to_hold_waits_as_long_as_the_receiver_lives():
    two = Two()
    two.send(0)
    two.run(until_s=20 * TIMEOUT_S)
    assert two.worker.connection.lost is None
    two.receive(0)
    two.run(until_s=21 * TIMEOUT_S)
    assert two.intact == [0]


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
@pytest.mark.parametrize("congestion", ["reno", "bbr"])
def test_an_early_transfer_takes_no_window_from_the_one_before_it(repair, congestion):
    two = Two(repair=repair, loss=0.3, chunks=200, congestion=congestion)
    two.server.on_event = lambda event: two.receive(2) if 2 not in two.into else None
    two.begin(0)
    two.send(2)
    two.run(until_s=60.0)
    assert two.intact == [0, 2], (gone(two.worker), gone(two.server))


def test_a_side_keeps_no_more_early_transfers_than_it_allows_in_flight():
    two = Two(transfers_in_flight=2)
    frames = all_frames(two.layout, number=2)[:5].copy()
    for number in range(2, 40):
        fields(frames, two.layout.chunk_bytes)["transfer"] = number
        two.server.connection.on_datagrams(frames, 0.0)
    assert sorted(two.server.connection.incoming._early) == [2, 3]
    # The one that will be needed first has room, whatever came before it.
    fields(frames, two.layout.chunk_bytes)["transfer"] = 1
    two.server.connection.on_datagrams(frames, 0.0)
    assert sorted(two.server.connection.incoming._early) == [1, 2]


def test_what_no_probe_confirms_is_let_go_once_nothing_new_comes_for_it():
    two = Two()
    connection, incoming = two.server.connection, two.server.connection.incoming
    frames = all_frames(two.layout, number=2)
    for now_s, count in ((1.0, 5), (2.0, 6), (3.0, 6)):
        connection.on_datagrams(frames[:count], now_s)
    assert connection.next_deadline_s(3.0) == 2.0 + TIMEOUT_S
    connection.on_deadline(1.9 + TIMEOUT_S)
    assert list(incoming._early) == [2]
    connection.on_deadline(2.0 + TIMEOUT_S)
    assert not incoming._early
    assert not incoming._spares
    assert connection.counters == {"early-transfer": 6, "replayed": 11}
    assert connection.next_deadline_s(3.0) is None


def test_a_sender_that_falls_silent_early_and_goes_on_sends_again_what_was_let_go():
    two = Two(rate_bps=66e3)  # a pass of about a second
    two.send(0)
    two.run(until_s=0.5)
    assert two.server.connection.incoming._early[0].received_count > 10
    two.worker.be_busy(9.0)
    two.run(until_s=8.0)
    assert not two.server.connection.incoming._early
    two.receive(0)
    two.run()
    assert two.intact == [0]


def test_data_that_came_early_gives_no_sample_of_the_round_trip():
    two = Two(repair="selective")
    frames = all_frames(two.layout, number=0)
    rule = FractionRule(0.0)
    incoming = two.server.connection.incoming
    two.server.connection.on_datagrams(frames[:5], 0.0)
    incoming.post(0, rule, two.layout.new_buffer(), 1.0)
    (answer,) = incoming.poll_messages()
    assert (Ack.parse(answer.body).arrived.sum(), Ack.parse(answer.body).echo) == (5, None)
    fields(frames, two.layout.chunk_bytes)["stamp"][8] |= ACK_REQUESTED
    two.server.connection.on_datagrams(frames[5:9], 2.0)
    (answer,) = incoming.poll_messages()
    assert Ack.parse(answer.body).echo == 8


def test_a_transfer_that_waited_and_was_asked_for_no_longer_counts_as_waiting():
    two = Two()
    two.send(0)
    two.run(until_s=1.0)
    two.receive(0)
    two.run(until_s=2.0)
    assert two.intact == [0]
    two.server.connection.post_send(1, random_payload(two.layout), 2.0)
    two.server.work()
    two.run(until_s=5 * TIMEOUT_S)
    assert two.server.connection.outgoing.held
    assert gone(two.worker) == gone(two.server) == ""


# Transfers that are late, and rules that give one up.


LATE_S = 10 * TIMEOUT_S


class AtOnce(StopRule):
    """Gives up whatever has not come at a time."""

    def __init__(self, until_s):
        self.until_s = until_s

    def satisfied(self, progress):
        return progress.now_s >= self.until_s

    def deadline_s(self, progress):
        return self.until_s


@pytest.mark.parametrize("repair", ["passes", "selective", "streaming"])
def test_a_sender_that_answers_may_begin_late(repair):
    two = Two(repair=repair, late_s=LATE_S)
    two.receive(0)
    two.run(until_s=8 * TIMEOUT_S)
    two.send(0)
    two.run()
    assert two.intact == [0]


@pytest.mark.parametrize("posted", ["receive", "send"])
def test_one_that_answers_and_never_begins_is_given_up_in_the_end(posted):
    two = Two(late_s=LATE_S)
    waiting = two.server if posted == "receive" else two.worker
    getattr(two, posted)(0)
    two.run(until_s=0.9 * LATE_S)
    assert waiting.connection.lost is None
    two.run()
    expected = f"it answers, but has not come to transfer 0 for {LATE_S:g} s"
    assert gone(waiting) == expected
    assert two.simulation.now_s < 1.1 * LATE_S


def test_one_that_does_not_answer_is_given_up_sooner():
    two = Two(late_s=LATE_S)
    two.receive(0)
    two.run(until_s=3 * TIMEOUT_S)
    two.worker.be_busy(1e6)
    two.run(until_s=5 * TIMEOUT_S)
    assert gone(two.server) == f"silent for {TIMEOUT_S:g} s"


def test_a_transfer_that_was_given_up_before_it_began_is_over_at_once():
    two = Two(late_s=LATE_S)
    for number in (0, 2):
        two.into[number] = two.layout.new_buffer()
        rule = AtOnce(1.0 + number)
        two.server.connection.post_receive(number, rule, two.into[number], 0.0)
    two.server.work()
    two.run(until_s=3 * TIMEOUT_S)
    assert ended(two.server) == [0, 2]
    two.send(0)
    two.send(2)
    two.run(until_s=4 * TIMEOUT_S)
    assert ended(two.worker) == [0, 2]
    assert [report.chunks_received for report in reports(two.worker)] == [0, 0]
    assert [report.chunks_sent for report in reports(two.worker)] == [0, 0]
    two.carry(4)
    assert two.intact == [4]
