"""A sender and a receiver in virtual time: what arrives, in how many passes, what is ignored."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.transport import StopRule
from testbed.transport.core.messages import ControlMessage, MessageType
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.tolerance import required_chunks
from testbed.transport.core.wire import fields, wire_bytes
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.order import ORDERS
from testbed.transport.policies.repair import REPAIRS
from tests.transport.transfer_parts import Recorder, all_frames, new_receiver, new_sender
from tests.transport.virtual import (
    Network,
    bernoulli,
    layout_of,
    random_payload,
    transfer,
)

# Delivery.


def test_without_loss_one_pass_delivers_every_byte():
    layout = layout_of(100, last_elements=1)
    payload = random_payload(layout)
    outcome = transfer(payload, layout)
    assert np.array_equal(outcome.into, payload)
    sent, received = outcome.sender.report("r"), outcome.receiver.report("s")
    assert (sent.passes, sent.chunks_sent, sent.retransmitted_bytes) == (1, 100, 0)
    assert sent.bytes_sent == received.bytes_received == wire_bytes(100, 16)
    assert received.chunks_received == 100
    assert received.received is not None
    assert received.received.all()
    assert received.ignored == {}


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.integers(1, 120),
    last=st.integers(1, 4),
    loss=st.floats(0, 0.95),
    tolerance=st.sampled_from([0.0, 0.008, 0.1, 0.408, 0.9]),
    jitter_s=st.sampled_from([0.0, 0.01]),
    duplicate=st.sampled_from([0.0, 0.3]),
    corrupt=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**16),
    repair=st.sampled_from(list(REPAIRS)),
    order=st.sampled_from(["in-order", "shuffled", "rotating"]),
)
def test_whatever_the_network_does_enough_arrives_and_it_is_right(
    chunks, last, loss, tolerance, jitter_s, duplicate, corrupt, seed, repair, order
):
    layout = layout_of(chunks, last_elements=last)
    payload = random_payload(layout, seed)
    network = Network(
        survives=bernoulli(loss, seed),
        jitter_s=jitter_s,
        duplicate=duplicate,
        corrupt=corrupt,
        seed=seed,
    )
    outcome = transfer(
        payload,
        layout,
        tolerance=tolerance,
        network=network,
        repair=REPAIRS.create(repair),
        order=ORDERS.create(order),
        number=seed,
    )
    receiver = outcome.receiver
    assert receiver.stopped
    assert receiver.received_count == int(receiver.received.sum())
    # One datagram at a time here, so the receiver stops at exactly what is required.
    assert receiver.received_count == required_chunks(chunks, tolerance)
    rows, sent = layout.rows(outcome.into), layout.rows(payload)
    assert np.array_equal(rows[receiver.received], sent[receiver.received])
    assert not rows[~receiver.received].any()


def test_rows_that_do_not_arrive_are_left_untouched():
    layout = layout_of(4)
    receiver, into = new_receiver(layout, tolerance=0.5)
    into[:] = 7
    frames = all_frames(layout)
    receiver.on_datagrams(frames[[1, 3]], 0.0)
    assert receiver.stopped
    rows = layout.rows(into)
    assert (rows[[0, 2]] == 7).all()
    assert np.array_equal(rows[[1, 3]], frames[[1, 3], 16:])


# Passes.


@pytest.mark.parametrize(("losses", "passes"), [(0, 1), (1, 2), (2, 3), (5, 6)])
def test_a_chunk_that_is_lost_n_times_takes_n_more_passes(losses, passes):
    layout = layout_of(30)
    network = Network(survives=lambda sequence, nth: sequence != 17 or nth >= losses)
    outcome = transfer(random_payload(layout), layout, network=network)
    sent, received = outcome.sender.report("r"), outcome.receiver.report("s")
    assert (sent.passes, received.passes) == (passes, passes)
    assert sent.chunks_sent == 30 + losses and network.sent_of[17] == 1 + losses
    assert sent.retransmitted_bytes == wire_bytes(losses, 16)


def test_a_receiver_that_gives_up_before_anything_has_come_was_in_the_first_pass():
    class NoLongerThanASecond(StopRule):
        def satisfied(self, progress):
            return progress.now_s >= 1.0

    receiver, _ = new_receiver(layout_of(3), rule=NoLongerThanASecond())
    receiver.on_deadline(0.5)
    assert not receiver.stopped
    receiver.on_deadline(1.0)
    report = receiver.report("s")
    assert (receiver.stopped, report.passes, report.chunks_received) == (True, 1, 0)
    assert (report.began_s, report.ended_s) == (1.0, 1.0)


def test_a_stop_in_the_middle_of_a_pass_ends_it_at_once():
    layout = layout_of(1000)
    network = Network(delay_s=0.0)
    outcome = transfer(random_payload(layout), layout, tolerance=0.408, network=network)
    sent = outcome.sender.report("r")
    assert outcome.receiver.received_count == 592
    # The batch in which the bound was met, and nothing after it.
    assert 592 <= sent.chunks_sent < 592 + 44
    assert sent.passes == 1
    assert not len(outcome.sender.offer(outcome.ended_s + 1))
    assert outcome.sender.next_deadline_s(outcome.ended_s) is None


def test_each_transfer_begins_with_one_batch_however_long_the_path_was_idle():
    layout = layout_of(2000)
    path = SendingPath(congestion=FixedRate(rate_bps=10e6), chunk_bytes=16)
    for number, now_s in ((0, 0.0), (2, 60.0)):
        sender = new_sender(layout, number=number, path=path, now_s=now_s)
        at_once = 0
        while len(frames := sender.offer(now_s)):
            at_once += len(frames)
            sender.sent(len(frames), now_s)
        assert at_once == path.pacer.quantum
        sender.on_message(ControlMessage(MessageType.STOP, number), now_s)


def test_datagrams_that_the_network_did_not_take_are_offered_again():
    layout = layout_of(20)
    sender = new_sender(layout, rate_bps=math.inf)
    assert fields(sender.offer(0.0), 16)["sequence"].tolist() == list(range(20))
    sender.sent(3, 0.0)
    again = fields(sender.offer(0.1), 16)["sequence"].tolist()
    assert again == list(range(3, 20))
    assert sender.report("r").chunks_sent == 3


# Congestion control.


def test_congestion_control_hears_what_became_of_each_pass():
    layout = layout_of(30)
    lossy = Network(survives=lambda sequence, nth: sequence >= 10 or nth > 0, delay_s=0.004)
    control = Recorder()
    transfer(random_payload(layout), layout, network=lossy, congestion=control)
    assert sum(control.sent) == wire_bytes(40, 16)
    (feedback,) = control.heard
    assert feedback.delivered_bytes == wire_bytes(20, 16)
    assert feedback.lost_bytes == wire_bytes(10, 16)
    assert feedback.in_flight_bytes == 0
    assert feedback.rtt_s == pytest.approx(0.008)


@pytest.mark.parametrize("repair", list(REPAIRS))
@pytest.mark.parametrize("loss", [0.0, 0.5])
@pytest.mark.parametrize("window", [0.0, wire_bytes(3, 16), wire_bytes(64, 16)])
def test_a_window_limits_what_is_in_flight_and_never_locks_the_transfer(window, loss, repair):
    layout = layout_of(100)
    payload = random_payload(layout)
    control = Recorder(window_bytes=window)
    outcome = transfer(
        payload,
        layout,
        network=Network(survives=bernoulli(loss, 3)),
        congestion=control,
        repair=REPAIRS.create(repair),
    )
    assert np.array_equal(outcome.into, payload)
    limit = max(window, wire_bytes(1, 16))
    assert max(control.sent) <= limit
    assert all(feedback.in_flight_bytes <= limit for feedback in control.heard)
    delivered = sum(feedback.delivered_bytes for feedback in control.heard)
    lost = sum(feedback.lost_bytes for feedback in control.heard)
    assert repair != "passes" or delivered <= wire_bytes(100, 16)
    assert delivered + lost <= sum(control.sent)


@pytest.mark.parametrize("repair", list(REPAIRS))
def test_a_sender_that_has_filled_its_window_is_woken_without_being_asked_for_more(repair):
    layout = layout_of(100)
    path = SendingPath(congestion=Recorder(window_bytes=wire_bytes(3, 16)), chunk_bytes=16)
    sender = new_sender(layout, path=path, repair=REPAIRS.create(repair))
    frames = sender.offer(0.0)
    assert len(frames) == 3
    sender.sent(3, 0.0)  # all are lost, and the driver has other things to do
    assert sender.asked_s is not None or sender.next_deadline_s(0.0) is not None
