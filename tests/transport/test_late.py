"""Transfers that are late, and rules that give one up or answer what makes no sense.

In virtual time; `late_s`.
"""

import numpy as np
import pytest

from testbed.transport import StopRule
from testbed.transport.core.events import TransferDone
from tests.transport.transfer_parts import all_frames, new_receiver
from tests.transport.two_parties import TIMEOUT_S, Two, ended, gone
from tests.transport.virtual import layout_of

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
    reports = [event.report for event in two.worker.events if isinstance(event, TransferDone)]
    assert [report.chunks_received for report in reports] == [0, 0]
    assert [report.chunks_sent for report in reports] == [0, 0]
    two.carry(4)
    assert two.intact == [4]


def test_without_late_s_no_transfer_may_be_given_up_before_it_began():
    two = Two()
    two.server.connection.post_receive(0, AtOnce(1.0), two.layout.new_buffer(), 0.0)
    two.server.work()
    two.run(until_s=2.0)
    assert "STOP for transfer 0, which was not sent" in gone(two.worker)


LAYOUT = layout_of(10)


class Own(StopRule):
    def __init__(self, *, satisfied=False, deadline_s=None, missing=None):
        self._answers = satisfied, deadline_s, missing

    def satisfied(self, progress):
        return self._answers[0]

    def deadline_s(self, progress):
        return self._answers[1]

    def missing(self, progress):
        return self._answers[2]


def receiver(**answers):
    return new_receiver(LAYOUT, rule=Own(**answers))[0]


@pytest.mark.parametrize(
    ("missing", "expected"), [(None, 0), (3, 3), (np.int64(3), 3), (8, 8), (9, 8), (1000, 8)]
)
def test_what_is_missing_is_unknown_or_as_much_as_has_not_arrived_at_most(missing, expected):
    it = receiver(missing=missing)
    it.on_datagrams(all_frames(LAYOUT)[:2], 0.0)
    assert it.missing == expected
