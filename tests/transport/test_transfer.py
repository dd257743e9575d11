"""A sender and a receiver: what arrives, in how many passes, what is said and ignored."""

import math

import numpy as np
import pytest

from testbed.shared.input_error import InputError
from testbed.transport import ProtocolError
from testbed.transport.messages import PASS, ControlMessage, MessageType, pack_arrivals
from testbed.transport.repair import Passes
from testbed.transport.repair.passes import PassesSender
from testbed.transport.sending_path import SendingPath
from testbed.transport.wire import fields, wire_bytes
from tests.transport.virtual import (
    Network,
    Recorder,
    all_frames,
    bitmap,
    layout_of,
    new_receiver,
    new_sender,
    random_payload,
    transfer,
    unpaced,
)

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
    assert sent.bytes_sent == received.bytes_received + wire_bytes(losses, 16)


def test_a_stop_in_the_middle_of_a_pass_ends_it_at_once():
    layout = layout_of(1000)
    network = Network(delay_s=0.0)
    outcome = transfer(random_payload(layout), layout, tolerance=0.408, network=network)
    sent = outcome.sender.report("r")
    assert outcome.receiver.received_count == 592
    # The batch in which the bound was met, and nothing after it.
    assert 592 <= sent.chunks_sent < 592 + 44
    assert sent.passes == 1


# Control messages.


def probe(number=1, *, ends=True):
    return ControlMessage(MessageType.PROBE, 6, PASS.pack(number, ends))


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
        (bitmap(*range(10)), "without a gap"),
    ],
)
def test_senseless_messages_to_a_sender_are_protocol_errors(message, named):
    sender = asking_sender()
    with pytest.raises(ProtocolError, match=named):
        sender.on_message(message, 1.0)
    assert not sender.stopped
    with pytest.raises(ProtocolError, match="without a PROBE"):
        new_sender(layout_of(100), rate_bps=1e3).on_message(bitmap(), 0.0)


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
    path = unpaced(layout, room=8)
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


@pytest.mark.parametrize("upcoming", [[4], [-1], [0, 1, 2, 3, 0], []])
def test_a_repair_that_names_no_chunks_is_told_what_is_valid(upcoming):
    class OwnSender(PassesSender):
        def upcoming(self, limit):
            return np.array(upcoming, dtype=np.int64)

    class Own(Passes):
        def sender(self, *, estimates, **common):
            return OwnSender(**common)

    sender = new_sender(layout_of(4), rate_bps=math.inf, repair=Own())
    with pytest.raises(InputError, match=r"expected 1 to 4 numbers of chunks from 0 to 3$"):
        sender.offer(0.0)
