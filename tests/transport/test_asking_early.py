"""A sender of what is worth most asks for an answer when its first datagrams have none."""

import numpy as np
import pytest

from testbed.transport.core.messages import Ack, MessageType
from testbed.transport.core.order import Arranger
from testbed.transport.core.path_estimates import PathEstimates
from testbed.transport.policies.repair import REPAIRS

CHUNKS, USUAL_S = 100, 1e-3


def sender(estimates):
    arrange = Arranger(np.arange(CHUNKS), np.full(CHUNKS, 100, np.uint8), 40)
    repair = REPAIRS.create("streaming:lost_first=true")
    return repair.sender(transfer=2, chunk_count=CHUNKS, arrange=arrange, estimates=estimates)


def answer(probed, *arrived):
    seen = np.zeros(max(arrived, default=-1) + 1, dtype=np.bool_)
    seen[list(arrived)] = True
    ack = Ack(first=0, arrived=seen, echo=None, held_s=0.0, probed=probed, at_once=True)
    return ack.message(2)


def known_path():
    """Estimates after five transfers whose first datagrams had an answer after 1 ms."""
    estimates = PathEstimates()
    for number in range(5):
        one = sender(estimates)
        one.on_sent(8, float(number))
        one.on_message(answer(0, 0, 7), number + USUAL_S)
    return estimates


def probes(one):
    return [message for message in one.outbox if message.type is MessageType.PROBE]


def test_it_asks_when_nothing_has_come_for_twice_the_usual_time_though_more_is_to_be_sent():
    one = sender(known_path())
    one.on_sent(8, 10.0)
    at_s = one.deadline_s()
    assert at_s == pytest.approx(10.0 + 2 * USUAL_S + 2e-3)
    one.on_sent(8, 10.003)
    assert one.deadline_s() == at_s
    one.on_deadline(at_s)
    assert len(probes(one)) == 1
    assert one.was_silent
    assert one.remaining  # it goes on sending meanwhile
    one.on_message(answer(16), at_s + USUAL_S)
    assert one.estimates.loss > 0.5
    # What is lost is sent again, the first in the order first; and after a silence it asks again.
    assert one.upcoming(1).tolist() == [0]
    one.outbox.clear()
    later_s = one.deadline_s()
    assert later_s <= at_s + USUAL_S + 2 * USUAL_S + 2e-3
    one.on_deadline(at_s + USUAL_S + 2 * USUAL_S + 2e-3)
    assert len(probes(one)) == 1


def test_it_does_not_ask_when_the_first_datagrams_were_answered():
    one = sender(known_path())
    one.on_sent(8, 10.0)
    one.on_message(answer(0, *range(8)), 10.001)
    one.on_sent(8, 10.003)
    assert one.deadline_s() is None
    assert not probes(one)
