"""A sender and a receiver: what arrives, in how many passes, what is said and ignored."""

import math

import numpy as np
import pytest

from testbed.shared.input_error import InputError
from testbed.transport import ProtocolError, StopRule
from testbed.transport.congestion import FixedRate
from testbed.transport.messages import PASS, ControlMessage, MessageType, pack_arrivals
from testbed.transport.repair import REPAIRS, Passes
from testbed.transport.repair.passes import PassesSender
from testbed.transport.sending_path import SendingPath
from testbed.transport.tolerance import FractionRule
from testbed.transport.wire import fields, wire_bytes
from tests.transport.virtual import (
    Network,
    Recorder,
    all_frames,
    bernoulli,
    layout_of,
    new_receiver,
    new_sender,
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


def test_datagrams_that_the_network_did_not_take_are_offered_again():
    layout = layout_of(20)
    sender = new_sender(layout, rate_bps=math.inf)
    assert fields(sender.offer(0.0), 16)["sequence"].tolist() == list(range(20))
    sender.sent(3, 0.0)
    again = fields(sender.offer(0.1), 16)["sequence"].tolist()
    assert again == list(range(3, 20))
    assert sender.report("r").chunks_sent == 3


# Congestion control.


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


# Control messages.


def probe(number=1, *, ends=True):
    return ControlMessage(MessageType.PROBE, 6, PASS.pack(number, ends))


def bitmap(*chunks):
    body = pack_arrivals(np.array(chunks, dtype=np.int64))
    return ControlMessage(MessageType.BITMAP, 6, body)


def test_a_probe_that_crossed_the_stop_needs_no_answer():
    layout = layout_of(3)
    receiver, _ = new_receiver(layout)
    receiver.on_datagrams(all_frames(layout), 0.0)
    assert receiver.poll_messages() == [ControlMessage(MessageType.STOP, 6, b"\7")]
    receiver.on_message(probe(), 1.0)
    assert receiver.poll_messages() == []


def test_the_receiver_says_nothing_unasked_but_stop():
    layout = layout_of(50)
    receiver, _ = new_receiver(layout)
    frames = all_frames(layout)
    receiver.on_datagrams(frames[:49], 0.0)
    assert receiver.poll_messages() == []
    receiver.on_message(probe(), 0.0)
    assert receiver.poll_messages() == [bitmap(*range(49))]
    receiver.on_datagrams(frames[49:], 0.0)
    assert [message.type for message in receiver.poll_messages()] == [MessageType.STOP]


def asking_sender(**settings):
    sender = new_sender(layout_of(10), rate_bps=math.inf, **settings)
    sender.sent(len(sender.offer(0.0)), 0.0)
    assert [message.type for message in sender.poll_messages()] == [MessageType.PROBE]
    return sender


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (ControlMessage(MessageType.PROBE, 6), "PROBE is not allowed at a sender"),
        (ControlMessage(MessageType.BITMAP, 6, b"\2"), "form 2 in 1 bytes"),
        (bitmap(*range(10)), "without a gap"),
        (bitmap(3, 10), "chunk 10, beyond the last of 10"),
    ],
)
def test_senseless_messages_to_a_sender_are_protocol_errors(message, named):
    sender = asking_sender()
    with pytest.raises(ProtocolError, match=named):
        sender.on_message(message, 1.0)
    assert not sender.stopped


def test_a_bitmap_that_nobody_asked_for_is_a_protocol_error():
    sender = new_sender(layout_of(100), rate_bps=1e3)
    with pytest.raises(ProtocolError, match="without a PROBE"):
        sender.on_message(bitmap(), 0.0)


def test_an_answer_that_crosses_the_stop_is_harmless():
    sender = asking_sender()
    sender.on_message(ControlMessage(MessageType.STOP, 6), 1.0)
    sender.on_message(ControlMessage(MessageType.STOP, 6), 2.0)
    sender.on_message(bitmap(1, 2), 3.0)
    assert sender.stopped
    assert sender.report("r").ended_s == 1.0


def test_an_answer_names_what_came_since_the_last_and_nothing_twice():
    layout = layout_of(500)
    receiver, _ = new_receiver(layout)
    frames = all_frames(layout)
    for number, came in enumerate(([4, 2, 2, 430], [], [2, 3, 430], range(10)), start=1):
        receiver.on_datagrams(frames[list(came)], 0.0)
        receiver.on_message(probe(number), 0.0)
    expected = [bitmap(2, 4, 430), bitmap(), bitmap(3), bitmap(0, 1, *range(5, 10))]
    assert receiver.poll_messages() == expected


def test_a_sender_adds_up_what_the_answers_name():
    sender = asking_sender()
    sender.on_message(bitmap(0, 1, 2, 7), 1.0)
    assert len(sender.offer(1.0)) == 6
    sender.sent(6, 1.0)
    assert sender.poll_messages() == [probe(2)]
    sender.on_message(bitmap(), 2.0)  # nothing came: all six once more
    assert fields(sender.offer(2.0), 16)["sequence"].tolist() == [3, 4, 5, 6, 8, 9]
    sender.sent(6, 2.0)
    with pytest.raises(ProtocolError, match="a chunk that an earlier one named"):
        sender.on_message(bitmap(3, 7), 3.0)
    with pytest.raises(ProtocolError, match="without a gap"):
        sender.on_message(bitmap(3, 4, 5, 6, 8, 9), 3.0)


def test_a_window_that_is_full_of_another_transfer_is_no_reason_to_ask():
    layout = layout_of(100)
    path = SendingPath(
        congestion=FixedRate(rate_bps=math.inf),
        chunk_bytes=layout.chunk_bytes,
        receive_buffer_bytes=8 * wire_bytes(1, layout.chunk_bytes),
    )
    first, second = (new_sender(layout, number=number, path=path) for number in (6, 7))
    first.sent(len(first.offer(0.0)), 0.0)
    assert not len(second.offer(0.0))
    assert first.poll_messages() == [probe(ends=False)]
    assert second.poll_messages() == []


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (ControlMessage(MessageType.PROBE, 6, bytes(4)), "a body of 4 bytes, not 5"),
        (probe(0), "pass 0, end 1, during pass 1"),
        (probe(2), "pass 2, end 1, during pass 1"),
        (ControlMessage(MessageType.PROBE, 6, PASS.pack(1, 2)), "pass 1, end 2"),
    ],
)
def test_senseless_messages_to_a_receiver_are_protocol_errors(message, named):
    receiver, _ = new_receiver(layout_of(3))
    with pytest.raises(ProtocolError, match=named):
        receiver.on_message(message, 0.0)
    assert receiver.poll_messages() == []


def test_only_a_probe_that_ends_a_pass_counts_as_one():
    counted = []

    class Rule(FractionRule):
        def satisfied(self, progress):
            counted.append(progress.probes)
            return False

    layout = layout_of(10)
    receiver, _ = new_receiver(layout, rule=Rule(chunk_count=10, tolerance=0.0))
    frames = all_frames(layout)
    passes = []
    for message in (probe(1, ends=False), probe(1), probe(2, ends=False), probe(2), probe(3)):
        receiver.on_datagrams(frames[:2], 0.0)
        fields(frames, layout.chunk_bytes)["stamp"] += 10
        receiver.on_message(message, 0.0)
        passes.append(receiver.report("s").passes)
    assert counted[1::2] == [0, 1, 1, 2, 3]
    assert passes == [1, 1, 2, 2, 3]


# What is ignored.


def test_duplicates_are_counted_within_a_batch_and_across_batches():
    layout = layout_of(10)
    receiver, _ = new_receiver(layout)
    frames = all_frames(layout)
    batches = frames[[0, 1, 1, 1, 2]], frames[[2, 3]]
    for first, batch in enumerate(batches):
        fields(batch, layout.chunk_bytes)["stamp"] = np.arange(len(batch)) + 5 * first
        receiver.on_datagrams(batch, 0.0)
    assert receiver.ignored == {"duplicate": 3}
    assert receiver.received_count == 4
    assert receiver.report("s").duplicates == 3


def test_datagrams_after_the_stop_are_late():
    layout = layout_of(10)
    receiver, into = new_receiver(layout, tolerance=0.5)
    frames = all_frames(layout)
    receiver.on_datagrams(frames[:5], 0.0)
    receiver.on_datagrams(frames[5:], 1.0)
    assert receiver.ignored == {"late": 5}
    assert not layout.rows(into)[5:].any()
    assert receiver.report("s").ended_s == 0.0


def test_datagrams_of_another_size_are_counted():
    receiver, _ = new_receiver(layout_of(10))
    receiver.on_datagrams(np.zeros((4, 31), dtype=np.uint8), 0.0)
    receiver.on_datagrams(np.zeros((0, 32), dtype=np.uint8), 0.0)
    assert receiver.ignored == {"wrong-size": 4}


@pytest.mark.parametrize(
    ("kind", "attentive", "rtt_s", "sent_s"),
    [
        (MessageType.BITMAP, True, 0.25, 0.0),
        (MessageType.LATE_BITMAP, True, None, 0.0),
        (MessageType.BITMAP, False, None, None),
    ],
)
def test_an_answer_that_waited_on_either_side_gives_no_round_trip(kind, attentive, rtt_s, sent_s):
    control = Recorder(rate_bps=math.inf)
    path = SendingPath(congestion=control, chunk_bytes=16)
    sender = asking_sender(path=path)
    sender.attentive = attentive
    sender.on_message(ControlMessage(kind, 6, pack_arrivals(np.array([1]))), 0.25)
    (feedback,) = control.heard
    assert (feedback.rtt_s, feedback.newest_sent_s) == (rtt_s, sent_s)
    assert feedback.newest_lost_sent_s == sent_s
    size = path.datagram_wire_bytes
    assert (feedback.delivered_bytes, feedback.lost_bytes) == (size, 9 * size)


def repair_of(kind):
    """A user's own repair, by passes, with this side for the sender."""

    class Own(Passes):
        def sender(self, *, transfer, chunk_count, arrange, estimates):
            return kind(transfer=transfer, chunk_count=chunk_count, arrange=arrange)

    return Own()


def test_a_repair_may_have_no_feedback_and_is_called_when_its_deadline_has_passed():
    called = []

    class OwnSender(PassesSender):
        def on_message(self, message, now_s):
            super().on_message(message, now_s)

        def deadline_s(self):
            return 1.0

        def on_deadline(self, now_s):
            called.append(now_s)

    sender = asking_sender(repair=repair_of(OwnSender))
    sender.on_message(bitmap(1), 0.25)
    assert sender.stall.since_s is None
    for now_s in (0.5, 1.0, 1.5):
        sender.on_deadline(now_s)
    sender.on_message(ControlMessage(MessageType.STOP, 6), 1.6)
    sender.on_deadline(2.0)
    assert called == [1.0, 1.5]


def test_a_sender_whose_many_answers_name_nothing_for_a_second_sends_less_and_asks_each_time():
    layout = layout_of(100)
    sender = new_sender(layout, rate_bps=math.inf)
    sender.sent(len(sender.offer(0.0)), 0.0)
    for answered_s in np.linspace(0.25, 1.3, 15).tolist():
        sender.on_message(bitmap(), answered_s)
        assert sender.stall.since_s == 0.25
        sender.poll_messages()
        sent = len(sender.offer(answered_s))
        assert sent == 100  # also after a second, because there were fifteen answers at most
        sender.sent(sent, answered_s)
    sender.on_message(bitmap(), 1.35)
    sender.poll_messages()
    # From the sixteenth on: 32 at a time, with pauses that double.
    now_s = 1.35
    for pause_s in (0.05, 0.1, 0.2):
        assert len(sender.offer(now_s)) == 32
        sender.sent(32, now_s)
        assert sender.poll_messages() == [probe(17, ends=False)]
        sender.on_message(bitmap(), now_s + 0.01)
        assert sender.next_deadline_s(now_s + 0.01) == now_s + pause_s
        assert len(sender.offer(now_s + 0.01)) == 0
        now_s += pause_s
    sender.sent(len(sender.offer(2.0)), 2.0)
    sender.on_message(bitmap(7), 2.25)
    assert sender.stall.since_s is None


@pytest.mark.parametrize("upcoming", [[4], [-1], [0, 1, 2, 3, 0], []])
def test_a_repair_that_names_no_chunks_is_told_what_is_valid(upcoming):
    class OwnSender(PassesSender):
        def upcoming(self, limit):
            return np.array(upcoming, dtype=np.int64)

    sender = new_sender(layout_of(4), rate_bps=math.inf, repair=repair_of(OwnSender))
    with pytest.raises(InputError, match=r"expected 1 to 4 numbers of chunks from 0 to 3$"):
        sender.offer(0.0)
