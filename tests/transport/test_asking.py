"""A sender asks for replies."""

import math

import numpy as np
import pytest

from testbed.transport import SendingPath
from testbed.transport.messages import Ack, MessageType
from testbed.transport.order import Arranger
from testbed.transport.path_estimates import PathEstimates
from testbed.transport.repair import REPAIRS
from testbed.transport.wire import ACK_REQUESTED, fields, wire_bytes
from tests.transport.virtual import Recorder, layout_of, new_sender

# Which datagrams of a batch ask for an ACK.


def asking(*, window: float, waiting: int) -> tuple[list[int], int]:
    """Returns which places of an offer ask, if the repair wants an answer, and its length."""
    layout = layout_of(waiting)
    control = Recorder(rate_bps=math.inf, window_bytes=window * wire_bytes(1, 16))
    path = SendingPath(congestion=control, chunk_bytes=layout.chunk_bytes)
    sender = new_sender(layout, path=path, repair=REPAIRS.create("selective"))
    sender._repair.wants_ack = lambda count, window_left: True
    stamps = fields(sender.offer(0.0), layout.chunk_bytes)["stamp"]
    return np.flatnonzero(stamps & ACK_REQUESTED).tolist(), len(stamps)


@pytest.mark.parametrize(
    ("window", "waiting", "places"),
    [
        (6000, 5000, [0]),  # with room left the first asks: a full queue drops the last
        (20, 9, [8]),  # the last of all asks, so that the answer names them
        (math.inf, 9, [8]),
        (20, 1, [0]),
        # A batch that fills the window asks at both ends if it is worth it, also if it is the last.
        (1, 20, [0]),
        (3, 20, [2]),
        (4, 20, [0, 3]),
        (9, 20, [0, 8]),
        (9, 9, [0, 8]),
    ],
)
def test_which_of_a_batch_ask(window, waiting, places):
    asked, count = asking(window=window, waiting=waiting)
    assert asked == places
    assert count < 5000


# Who sends what is worth most asks when its first datagrams have no answer.


EARLY_CHUNKS, USUAL_S = 100, 1e-3


def early_sender(estimates):
    arrange = Arranger(np.arange(EARLY_CHUNKS), np.full(EARLY_CHUNKS, 100, np.uint8), 40)
    repair = REPAIRS.create("streaming:lost_first=true")
    return repair.sender(transfer=2, chunk_count=EARLY_CHUNKS, arrange=arrange, estimates=estimates)


def answer(probed, *arrived):
    seen = np.zeros(max(arrived, default=-1) + 1, dtype=np.bool_)
    seen[list(arrived)] = True
    ack = Ack(first=0, arrived=seen, echo=None, held_s=0.0, probed=probed, at_once=True)
    return ack.message(2)


def known_path():
    """Estimates after five transfers whose first datagrams had an answer after 1 ms."""
    estimates = PathEstimates()
    for number in range(5):
        one = early_sender(estimates)
        one.on_sent(8, float(number))
        one.on_message(answer(0, 0, 7), number + USUAL_S)
    return estimates


def probes(one):
    return [message for message in one.outbox if message.type is MessageType.PROBE]


def test_it_asks_when_nothing_has_come_for_twice_the_usual_time_though_more_is_to_be_sent():
    one = early_sender(known_path())
    one.on_sent(8, 10.0)
    at_s = one.deadline_s()
    assert at_s == pytest.approx(10.0 + 2 * USUAL_S + 2e-3)
    one.on_sent(8, 10.003)
    assert one.deadline_s() == at_s
    one.on_deadline(at_s)
    assert len(probes(one)) == 1
    assert one.remaining  # it goes on sending meanwhile
    one.on_message(answer(16), at_s + USUAL_S)
    assert one.estimates.loss > 0.5
    # What is lost is sent again, the first in the order first; and after a silence it asks again.
    assert one.upcoming(1).tolist() == [0]
    # But not before something went: any ACK on its way would seem to be the reply to a second one.
    one.outbox.clear()
    later_s = at_s + USUAL_S + 2 * USUAL_S + 2e-3
    one.on_deadline(later_s)
    assert not probes(one)
    one.on_sent(8, at_s + USUAL_S)
    assert one.deadline_s() <= later_s
    one.on_deadline(later_s)
    assert len(probes(one)) == 1


def test_it_does_not_ask_when_the_first_datagrams_were_answered():
    one = early_sender(known_path())
    one.on_sent(8, 10.0)
    one.on_message(answer(0, *range(8)), 10.001)
    one.on_sent(8, 10.003)
    assert one.deadline_s() is None
    assert not probes(one)
