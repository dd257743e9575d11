"""What the transfers to one peer share: the control's numbers, and what others have to send."""

import math

import numpy as np
import pytest

from testbed.shared.input_error import InputError
from testbed.transport.core.messages import ControlMessage, MessageType, pack_arrivals
from testbed.transport.core.sending_path import SendingPath
from testbed.transport.core.states import SenderEvent
from testbed.transport.core.wire import wire_bytes
from testbed.transport.policies.congestion import FixedRate
from testbed.transport.policies.repair import Passes
from testbed.transport.policies.repair.passes import PassesSender
from tests.transport.transfer_parts import new_sender
from tests.transport.virtual import layout_of


class Own(FixedRate):
    """A control of a user's own, with the numbers that it is given; it notes its feedback."""

    def __init__(self, *, rate_bps=math.inf, window_bytes=math.inf):
        self._numbers = rate_bps, window_bytes
        self.heard = []

    @property
    def rate_bps(self):
        return self._numbers[0]

    @property
    def window_bytes(self):
        return self._numbers[1]

    def on_feedback(self, feedback):
        self.heard.append(feedback)


@pytest.mark.parametrize("rate_bps", [0, 0.0, -1, math.nan, "fast", None])
def test_a_rate_at_which_nothing_would_be_sent_is_refused(rate_bps):
    with pytest.raises(InputError, match=r"Own\.rate_bps is .* expected bit/s above 0"):
        SendingPath(congestion=Own(rate_bps=rate_bps), chunk_bytes=16)
    path = SendingPath(congestion=Own(), chunk_bytes=16)
    path.congestion = Own(rate_bps=rate_bps)  # as one that has fallen so low on its way
    with pytest.raises(InputError, match=r"Own\.rate_bps is .* expected bit/s above 0"):
        path.rate_bps  # noqa: B018 - reading it checks it


@pytest.mark.parametrize(
    ("others", "limited"), [("none", True), ("one", False), ("one held", False), ("ended", True)]
)
def test_the_end_of_a_pass_limits_what_is_sent_unless_another_transfer_is_under_way(
    others, limited
):
    control = Own()
    path = SendingPath(congestion=control, chunk_bytes=16)
    sender = new_sender(layout_of(3), path=path)
    if others != "none":
        other = new_sender(layout_of(3), number=8, path=path)
        if others != "one":
            kind = MessageType.HOLD if others == "one held" else MessageType.STOP
            other.on_message(ControlMessage(kind, 8), 0.0)
    sender.sent(len(sender.offer(0.0)), 0.0)
    answer = ControlMessage(MessageType.BITMAP, 6, pack_arrivals(np.array([1])))
    sender.on_message(answer, 0.25)
    assert [feedback.app_limited for feedback in control.heard] == [limited]


@pytest.mark.parametrize(("chunks", "batch"), [(20, 8), (200, 10), (2000, 33)])
def test_a_sender_fits_its_batches_to_its_transfer(chunks, batch):
    path = SendingPath(congestion=FixedRate(rate_bps=100e6), chunk_bytes=1456, queue_bytes=1e6)
    sender = new_sender(layout_of(chunks, chunk_bytes=1456), path=path)
    assert len(sender.offer(0.0)) == batch


@pytest.mark.parametrize(("window", "unasked"), [(64, 16), (12, 8), (2, 1)])
def test_a_sender_asks_once_more_than_a_quarter_of_a_long_window_is_in_flight(window, unasked):
    path = SendingPath(congestion=Own(window_bytes=window * wire_bytes(1, 16)), chunk_bytes=16)
    sender = new_sender(layout_of(100), path=path)
    for count, asked in ((unasked, False), (1, True)):
        sender.offer(0.0)
        sender.sent(count, 0.0)
        sender.offer(0.0)
        assert bool(sender.poll_messages()) is asked


@pytest.mark.parametrize("held", [False, True])
def test_a_window_is_full_of_what_is_in_flight_also_of_a_transfer_that_is_held(held):
    path = SendingPath(congestion=Own(window_bytes=20 * wire_bytes(1, 16)), chunk_bytes=16)
    sender = new_sender(layout_of(100), path=path)
    sender.offer(0.0)
    sender.sent(5, 0.0)
    if held:
        sender.on_message(ControlMessage(MessageType.HOLD, 6), 0.0)
    assert len(sender.offer(0.0)) == 15


class GivesUp(Passes):
    """Sends all again from 2 s on, answered or not."""

    def sender(self, *, transfer, chunk_count, arrange, estimates):
        class Half(PassesSender):
            def deadline_s(self):
                return 2.0

            def on_deadline(self, now_s):
                self.machine.on(SenderEvent.GAVE_UP)
                self._cursor = 0

        return Half(transfer=transfer, chunk_count=chunk_count, arrange=arrange)


@pytest.mark.parametrize("by", ["answer", "deadline"])
@pytest.mark.parametrize("shared", [False, True])
def test_after_waiting_a_sender_goes_on_with_one_batch(shared, by):
    """Unless another transfer was sending meanwhile: then the path has not been idle."""
    path = SendingPath(congestion=FixedRate(rate_bps=10e6), chunk_bytes=16, queue_bytes=1e6)
    sender = new_sender(layout_of(200), path=path, repair=GivesUp())
    if shared:
        new_sender(layout_of(200), number=8, path=path)
    now_s = 0.0
    while sender.asked_s is None:
        sender.sent(len(sender.offer(now_s)), now_s)
        now_s += 1e-3
    if by == "answer":
        answer = ControlMessage(MessageType.BITMAP, 6, pack_arrivals(np.array([1])))
        sender.on_message(answer, 2.0)
    else:
        sender.on_deadline(2.0)
    at_once = 0
    while len(frames := sender.offer(2.0)):
        sender.sent(len(frames), 2.0)
        at_once += len(frames)
    assert at_once >= path.pacer.quantum
    assert (at_once > path.pacer.quantum) is shared
