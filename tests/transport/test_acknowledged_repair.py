"""Parts of the repairs with acknowledgements: scoreboard, queues, estimates, ACKs, requests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport import ProtocolError, SendingPath
from testbed.transport.core.ack import Ack
from testbed.transport.core.messages import (
    MAX_ACK_BYTES,
    SENT,
    ControlMessage,
    ControlParser,
    MessageType,
    body_limits,
)
from testbed.transport.core.wire import ACK_REQUESTED, SEND_INDEX_MODULUS
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.repair import REPAIRS, PathEstimates, Streaming
from testbed.transport.policies.repair.scoreboard import ChunkQueue, Scoreboard
from testbed.transport.policies.repair.selective import AcknowledgingReceiver
from testbed.transport.policies.tolerance import Progress
from tests.transport.virtual import Network, layout_of, random_payload, transfer


def indices(*values):
    return np.array(values, dtype=np.int64)


# What became of each datagram.


def test_a_loss_is_proven_by_what_was_sent_later_and_came():
    scoreboard = Scoreboard(10)
    scoreboard.record(np.arange(10), 0.0)
    scoreboard.arrive(indices(0, 5))
    assert scoreboard.in_flight == 8
    lost, newest_s, gone = scoreboard.give_up(sent_by=6, ahead=3, sent_before_s=-1)
    assert (lost, newest_s, gone.tolist()) == (2, 0.0, [1, 2])
    assert scoreboard.in_flight == 6
    lost, _, gone = scoreboard.give_up(sent_by=6, ahead=3, sent_before_s=0.0)
    assert (lost, gone.tolist()) == (2, [3, 4])  # not 6 to 9, which nothing has overtaken


def test_a_chunk_is_not_lost_while_a_copy_is_under_way():
    scoreboard = Scoreboard(2)
    for _ in range(2):
        scoreboard.record(indices(0, 1), 0.0)
    lost, _, gone = scoreboard.give_up(sent_by=2, ahead=3, sent_before_s=0.0)
    assert (lost, gone.tolist()) == (2, [])
    assert scoreboard.copies.tolist() == [1, 1]
    scoreboard.arrive(indices(2))
    lost, _, gone = scoreboard.give_up(sent_by=4, ahead=3, sent_before_s=0.0)
    assert (lost, gone.tolist()) == (1, [1])
    assert scoreboard.losses.tolist() == [1, 2]


def test_a_late_datagram_is_taken_back_once():
    scoreboard = Scoreboard(8)
    scoreboard.record(np.arange(8), 0.0)
    scoreboard.arrive(indices(7))
    scoreboard.give_up(sent_by=8, ahead=3, sent_before_s=-1)
    late = scoreboard.arrive(indices(1, 4))
    assert (late.datagrams, late.overtaken, late.extent) == (2, 2, 6)
    assert late.chunks.tolist() == [1, 4]
    assert scoreboard.arrive(indices(1, 4)).datagrams == 0
    assert scoreboard.in_flight == 2


def test_memory_is_bounded_by_what_reports_can_name():
    scoreboard = Scoreboard(100)
    for _ in range(4000):
        scoreboard.record(np.arange(100), 0.0)
        scoreboard.arrive(np.arange(scoreboard.next - 100, scoreboard.next))
    assert len(scoreboard._fate) <= 4 * SEND_INDEX_MODULUS
    assert scoreboard.sent_s(0) is None
    assert scoreboard.arrive(indices(5)).datagrams == 0  # forgotten


@given(st.integers(0, 2**20), st.integers(0, SEND_INDEX_MODULUS - 1))
def test_send_indices_are_told_from_their_lower_bits(sent, behind):
    scoreboard = Scoreboard(1)
    scoreboard.next = sent
    index = sent - 1 - behind
    assert scoreboard.index(index % SEND_INDEX_MODULUS) == index


@given(st.lists(st.one_of(st.integers(1, 90), st.integers(-90, -1)), max_size=40))
def test_the_queue_keeps_its_order_whatever_its_size(steps):
    queue, fresh = ChunkQueue(), 0
    model: list[int] = []
    for step in steps:
        if step > 0:
            queue.push(np.arange(fresh, fresh + step))
            model += range(fresh, fresh + step)
            fresh += step
        else:
            assert queue.peek(-step).tolist() == model[:-step]
            count = min(-step, len(model))
            queue.drop(count)
            del model[:count]
        if fresh and step % 3 == 0:
            unwanted = np.arange(fresh) % 7 == 0
            queue.remove(unwanted)
            model = [chunk for chunk in model if chunk % 7]
        assert len(queue) == len(model)
    assert queue.peek(10**6).tolist() == model


# What is learnt about the path.


def test_the_loss_estimate_follows_a_microburst():
    estimates = PathEstimates()
    for _ in range(50):
        estimates.on_fates(arrived=10)
    for _ in range(12):
        estimates.on_fates(arrived=1)
        estimates.on_fates(lost=9)
    assert estimates.loss == pytest.approx(0.9, abs=0.15)
    estimates.on_fates(arrived=500)
    assert estimates.loss < 0.01


def test_a_round_trip_far_below_all_others_begins_the_estimate_anew():
    estimates = PathEstimates()
    estimates.on_round_trip(1.0)  # a host was busy
    estimates.on_round_trip(0.004)
    assert (estimates.smoothed_s, estimates.deviation_s) == (0.004, 0.002)
    estimates.on_round_trip(0.0012)  # still what a path may do
    assert estimates.smoothed_s == pytest.approx(0.004 - 0.0028 / 8)


def test_reordering_makes_cautious_and_is_forgotten_slowly():
    estimates = PathEstimates()
    estimates.on_round_trip(0.01)
    assert estimates.overtaking_s() == pytest.approx(0.0025)
    estimates.on_overtaken(1, 40)
    assert (estimates.reordering, estimates.patience) == (41, 2)
    for expected in (41, 22, 12, 7):  # the first transfer begins after one that reordered
        estimates.on_transfer_begin()
        assert estimates.reordering == expected
    for _ in range(100):
        estimates.on_overtaken(1, 10**6)
    assert estimates.reordering == 300
    assert estimates.overtaking_s() == pytest.approx(0.01)  # a round trip at most


def test_long_queues_are_told_from_the_round_trip():
    estimates = PathEstimates()
    assert not estimates.queueing
    for _ in range(20):
        estimates.on_round_trip(0.01)
    assert not estimates.queueing
    for _ in range(20):
        estimates.on_round_trip(0.022)
    assert estimates.queueing


# Reports.


@given(
    st.integers(0, SEND_INDEX_MODULUS - 1),
    st.lists(st.booleans(), max_size=300),
    st.one_of(st.none(), st.integers(0, SEND_INDEX_MODULUS - 1)),
    st.floats(0, 5000),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_reports_survive_the_way(first, bits, echo, held_s, probed, at_once):
    mask = np.array(bits, dtype=np.bool_)
    report = Ack(
        first=first,
        arrived=mask,
        echo=echo,
        held_s=held_s,
        probed=probed,
        marked=3,
        at_once=at_once,
    )
    message = report.message(6)
    (got,) = ControlParser(body_limits(1)).feed(message.encode())
    back = Ack.parse(got.body)
    assert np.flatnonzero(back.arrived).tolist() == np.flatnonzero(mask).tolist()
    assert (back.first, back.echo, back.probed, back.marked, back.at_once) == (
        *(first, echo, probed),
        *(3, at_once),
    )
    assert back.held_s == pytest.approx(min(held_s, 2**32 / 1e6), abs=1e-6)


@given(st.binary(min_size=0, max_size=64))
def test_random_reports_are_read_or_refused(body):
    try:
        report = Ack.parse(body)
    except ProtocolError:
        return
    assert report.first < SEND_INDEX_MODULUS
    assert len(report.arrived) == 8 * (len(body) - 16)


def test_a_report_names_a_turn_of_send_indices_at_most():
    arrived = np.ones(SEND_INDEX_MODULUS, dtype=np.bool_)
    report = Ack(first=0, arrived=arrived, echo=None, held_s=0.0, probed=0)
    assert len(report.message(0).body) == MAX_ACK_BYTES


def progress(now_s):
    return Progress(
        received=np.zeros(9, dtype=np.bool_),
        received_count=0,
        now_s=now_s,
        first_arrival_s=None,
        last_arrival_s=None,
        probes=0,
    )


def reporting():
    return AcknowledgingReceiver(
        transfer=6, datagram_wire_bytes=1514, interval_s=1e-3, overhead=0.0125
    )


def stamps(*values):
    return np.array(values, dtype=np.uint16)


def test_reports_name_what_came_across_the_turn_of_the_send_index():
    receiver = reporting()
    probe = ControlMessage(MessageType.PROBE, 6, SENT.pack(SEND_INDEX_MODULUS - 3))
    assert len(receiver.on_probe(probe, progress(0.0), True)) == 1
    wanted = 2 | ACK_REQUESTED
    receiver.on_arrivals(stamps(SEND_INDEX_MODULUS - 2, 0, wanted), 1.0, True)
    (message,) = receiver.on_data(progress(1.25))
    report = Ack.parse(message.body)
    assert (report.first, report.echo) == (SEND_INDEX_MODULUS - 2, 2)
    assert np.flatnonzero(report.arrived).tolist() == [0, 2, 4]
    assert report.held_s == pytest.approx(0.25)
    assert (report.probed, report.at_once) == (SEND_INDEX_MODULUS - 3, False)


def test_what_waited_in_the_socket_does_not_time_the_path():
    receiver = reporting()
    receiver.on_arrivals(stamps(0 | ACK_REQUESTED), 1.0, False)
    (message,) = receiver.on_data(progress(1.0))
    assert Ack.parse(message.body).echo is None
    probe = ControlMessage(MessageType.PROBE, 6, SENT.pack(1))
    for attentive in (False, True):
        (message,) = receiver.on_probe(probe, progress(1.0), attentive)
        assert Ack.parse(message.body).at_once == attentive


def test_losses_are_worth_more_reports_than_arrivals():
    spoke = []
    for every in (1, 2):  # nothing is lost, half is
        receiver = AcknowledgingReceiver(
            transfer=6,
            datagram_wire_bytes=1514,
            interval_s=1e-4,
            overhead=0.0025,
            loss_overheads=(0.0125, 0.005),
        )
        times = []
        for number in range(0, 2048, every):
            receiver.on_arrivals(stamps(number), number * 1e-3, True)
            times += [number for _ in receiver.on_data(progress(number * 1e-3))]
        spoke.append(times)
    assert 2048 * 1514 * 0.0025 / 200 < len(spoke[0]) < 2048 * 1514 * 0.0025 / 80
    assert len(spoke[1]) > 1.3 * len(spoke[0])
    # The first 256 losses are among the first 512 datagrams, and are worth more than later ones.
    first, last = (sum(low <= at < low + 512 for at in spoke[1]) for low in (0, 1536))
    assert first > 1.5 * last > 0


def test_unasked_reports_keep_their_distance_and_their_budget():
    receiver, times, cost = reporting(), [], 0
    for number in range(2000):  # nine of ten are lost
        now_s = number * 1.2e-4
        if number % 10 == 0:
            receiver.on_arrivals(stamps(number), now_s, True)
            for message in receiver.on_data(progress(now_s)):
                times.append(now_s)
                cost += message.wire_bytes + 66
    assert len(times) > 50
    assert np.diff(times).min() >= 1e-3
    assert cost <= 0.0125 * 2000 * 1514 + 300
    # Slow data: fewer reports, not dearer ones.
    slow = reporting()
    spoke = 0
    for number in range(200):
        slow.on_arrivals(stamps(number), number * 0.1, True)
        spoke += len(slow.on_data(progress(number * 0.1)))
        if (deadline_s := slow.deadline_s(progress(number * 0.1))) is not None:
            spoke += len(slow.on_deadline(progress(deadline_s)))
    assert 10 < spoke <= 30


@pytest.mark.parametrize("body", [b"", b"\0\0\0"])
def test_a_probe_without_a_count_is_refused_by_those_who_need_it(body):
    with pytest.raises(ProtocolError, match="PROBE with a body"):
        reporting().on_probe(ControlMessage(MessageType.PROBE, 6, body), progress(0.0), True)


# Options.


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("streaming:residual=0", "residual is 0"),
        ("streaming:interval_s=0", "interval_s is 0"),
        ("selective:overhead=2", "overhead is 2"),
        ("selective:residual=0.1", "no option 'residual'"),
        ("stream", "unknown repair 'stream'"),
    ],
)
def test_senseless_options_are_refused(text, named):
    with pytest.raises(ValueError, match=named):
        REPAIRS.create(text)


def test_options_are_text():
    assert REPAIRS.create("streaming:residual=0.5,interval_s=0.002") == Streaming(
        residual=0.5, interval_s=0.002
    )


# Whole transfers.


@pytest.mark.parametrize("repair", list(REPAIRS))
def test_time_before_the_receiver_listened_is_not_taken_for_a_round_trip(repair):
    heard = []

    class Listening(FixedRate):
        def on_feedback(self, feedback):
            heard.append(feedback.rtt_s)

    layout = layout_of(300)
    path = SendingPath(congestion=Listening(rate_bps=100e6), chunk_bytes=16)
    network = Network(survives=lambda sequence, nth: nth > 0 or sequence % 3 > 0, delay_s=0.002)
    transfer(
        random_payload(layout),
        layout,
        repair=REPAIRS.create(repair),
        path=path,
        network=network,
        listens_s=1.0,
    )
    samples = [rtt_s for rtt_s in heard if rtt_s is not None]
    assert max(samples, default=0.0) < 0.01
    assert heard[0] is None


def test_an_absent_receiver_is_not_sent_copies():
    layout = layout_of(300)
    path = SendingPath(congestion=FixedRate(rate_bps=100e6), chunk_bytes=16)
    path.estimates.on_fates(lost=1000)
    path.estimates.on_round_trip(1e-3)
    outcome = transfer(
        random_payload(layout), layout, repair=REPAIRS.create("streaming"), path=path, listens_s=1.0
    )
    # 16 000 would fit into the second.
    assert outcome.sender.report("r").chunks_sent < 300 + 1200


@pytest.mark.parametrize("repair", ["streaming", "selective"])
def test_more_datagrams_than_send_indices_are_unambiguous(repair):
    """A receiver that is away while 20 000 are sent, of which the network loses all but a few."""
    layout = layout_of(20_000)
    payload = random_payload(layout)
    network = Network(survives=lambda sequence, nth: nth > 0 or sequence % 1000 == 0)
    path = SendingPath(congestion=FixedRate(rate_bps=1e9), chunk_bytes=16)
    outcome = transfer(
        payload,
        layout,
        repair=REPAIRS.create(repair),
        network=network,
        path=path,
        listens_s=0.3,
    )
    assert np.array_equal(outcome.into, payload)
    assert outcome.sender.report("r").chunks_sent <= 1.02 * (2 * 20_000)


@pytest.mark.parametrize("repair", list(REPAIRS))
def test_the_sender_learns_which_chunks_arrived(repair):
    layout = layout_of(1000)
    network = Network(survives=lambda sequence, nth: sequence % 200 > 0)
    outcome = transfer(
        random_payload(layout),
        layout,
        repair=REPAIRS.create(repair),
        network=network,
        tolerance=0.008,
    )
    sent, got = outcome.sender.report("r"), outcome.receiver.report("s")
    assert sent.received is not None
    assert sent.received.tolist() == outcome.receiver.received.tolist()
    assert sent.chunks_received == got.chunks_received == 992
