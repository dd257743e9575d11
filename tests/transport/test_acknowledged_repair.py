"""Repairs with acknowledgements: scoreboard, queues, estimates, options, whole transfers."""

import numpy as np
import pytest

from testbed.transport import SendingPath
from testbed.transport.congestion import FixedRate
from testbed.transport.events import TransferDone
from testbed.transport.repair import REPAIRS
from testbed.transport.repair.selective import Scoreboard, SendQueue
from tests.transport.virtual import Network, Recorder, Two, layout_of, random_payload, transfer


def indices(*values):
    return np.array(values, dtype=np.int64)


def test_a_loss_is_proven_by_what_was_sent_later_and_came():
    scoreboard = Scoreboard(10)
    scoreboard.record(np.arange(10), 0.0)
    scoreboard.arrive(indices(0, 5))
    assert scoreboard.in_flight == 8
    lost, newest_s, gone = scoreboard.declare_lost(sent_by=6, ahead=3, sent_before_s=-1)
    assert (lost, newest_s, gone.tolist()) == (2, 0.0, [1, 2])
    assert scoreboard.in_flight == 6
    lost, _, gone = scoreboard.declare_lost(sent_by=6, ahead=3, sent_before_s=0.0)
    assert (lost, gone.tolist()) == (2, [3, 4])  # not 6 to 9, which nothing has overtaken


def test_a_late_datagram_is_taken_back_once():
    scoreboard = Scoreboard(8)
    scoreboard.record(np.arange(8), 0.0)
    scoreboard.arrive(indices(7))
    scoreboard.declare_lost(sent_by=8, ahead=3, sent_before_s=-1)
    late = scoreboard.arrive(indices(1, 4))
    assert (late.datagrams, late.overtaken, late.extent) == (2, 2, 6)
    assert late.chunks.tolist() == [1, 4]
    assert scoreboard.arrive(indices(1, 4)).datagrams == 0
    assert scoreboard.in_flight == 2


@pytest.mark.parametrize("lost_first", [True, False])
def test_what_is_taken_out_of_turn_waits_no_more_lost_or_not(lost_first):
    queue = SendQueue(np.arange(6), lost_first=lost_first)
    queue.drop(3)
    queue.push_lost(np.array([2, 0]))
    queue.take(np.array([0, 4, 1]))  # lost, never sent, and in flight
    assert queue.waiting == 3
    assert sorted(queue.peek(10).tolist()) == [2, 3, 5]


def outcome_of(repair, chunks, *, rate_bps=10e6, path=None, **settings):
    layout = layout_of(chunks)
    return transfer(
        random_payload(layout),
        layout,
        repair=REPAIRS.create(repair),
        path=path or SendingPath(congestion=FixedRate(rate_bps=rate_bps), chunk_bytes=16),
        **settings,
    )


@pytest.mark.parametrize("repair", list(REPAIRS))
def test_time_before_the_receiver_listened_is_not_taken_for_a_round_trip(repair):
    control = Recorder(rate_bps=100e6)
    path = SendingPath(congestion=control, chunk_bytes=16)
    network = Network(survives=lambda sequence, nth: nth > 0 or sequence % 3 > 0, delay_s=0.002)
    outcome_of(repair, 300, path=path, network=network, listens_s=1.0)
    heard = [feedback.rtt_s for feedback in control.heard]
    assert heard[0] is None
    assert max((rtt_s for rtt_s in heard if rtt_s is not None), default=0.0) < 0.01


def test_an_absent_receiver_is_not_sent_copies():
    path = SendingPath(congestion=FixedRate(rate_bps=100e6), chunk_bytes=16)
    path.estimates.on_fates(lost=1000)
    path.estimates.on_round_trip(1e-3)
    outcome = outcome_of("streaming", 300, path=path, listens_s=1.0)
    # 16 000 would fit into the second.
    assert outcome.sender.report("r").chunks_sent < 300 + 1200


def test_more_datagrams_than_send_indices_are_unambiguous():
    """A receiver that is away while 20 000 are sent, of which the network loses all but a few."""
    network = Network(survives=lambda sequence, nth: nth > 0 or sequence % 1000 == 0)
    outcome = outcome_of("selective", 20_000, rate_bps=1e9, network=network, listens_s=0.3)
    assert np.array_equal(outcome.into, random_payload(layout_of(20_000)))
    assert outcome.sender.report("r").chunks_sent <= 1.02 * (2 * 20_000)


@pytest.mark.parametrize("repair", ["streaming", "streaming:lost_first=true"])
def test_where_answers_take_long_few_copies_are_sent_that_nobody_needs(repair):
    # A payload takes 36 ms, and a round trip 100 ms: time for three times its chunks.
    two = Two(repair=repair, chunk_bytes=1432, rate_bps=33e6, delay_s=0.05, seed=1)
    for number, loss in enumerate((0.0, 0.9, 0.9, 0.0)):
        two.link.set_loss(loss)
        two.send(number)
        two.receive(number, tolerance=0.4)
        two.run()
    reports = [event.report for event in two.worker.events if isinstance(event, TransferDone)]
    assert reports[1].chunks_sent > 300
    assert reports[3].chunks_sent <= 150
