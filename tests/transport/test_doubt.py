"""When a side doubts that control messages get through, in virtual time."""

import math

import pytest

from tests.transport.energy_rounds import ARM, CHUNKS, Rounds
from tests.transport.two_parties import DELAY_S, TIMEOUT_S, Two

NO_DOUBT = (math.inf, math.inf)
BEFORE = -math.inf


def asking(two):
    """Runs until the worker has asked; returns when."""
    (sender,) = two.worker.connection.outgoing.senders.values()
    two.simulation.run(done=lambda: sender.asked_s is not None, limit=10_000)
    return sender.asked_s


def test_an_answer_is_overdue_after_twice_a_round_trip_and_2_ms():
    two = Two()
    two.receive(0)
    two.send(0)
    asked_s = asking(two)
    connection = two.worker.connection
    # No round trip is known yet, so it is taken for 10 ms.
    assert connection.doubt(BEFORE) == pytest.approx((asked_s + 0.022, asked_s))
    two.run()
    assert connection.doubt(BEFORE) == NO_DOUBT
    two.receive(2)
    two.send(2)
    asked_s = asking(two)
    due_s, since_s = connection.doubt(BEFORE)
    assert since_s == asked_s
    assert asked_s + 4 * DELAY_S + 2e-3 <= due_s < asked_s + 5 * DELAY_S + 2e-3


def test_an_answer_to_a_question_that_was_due_to_a_silence_is_overdue_at_once():
    two = Two()
    two.receive(0)
    two.send(0)
    asked_s = asking(two)
    two.worker.connection.outgoing.senders[0]._repair.was_silent = True
    assert two.worker.connection.doubt(BEFORE) == (asked_s, asked_s)


def test_a_doubt_is_told_of_what_was_asked_later_only():
    two = Two()
    two.receive(0)
    two.send(0)
    asked_s = asking(two)
    assert two.worker.connection.doubt(asked_s) == NO_DOUBT


def test_whoever_is_told_to_hold_does_not_doubt():
    two = Two()
    two.send(0)
    asking(two)
    two.run(until_s=TIMEOUT_S / 2)
    assert two.worker.connection.outgoing.held
    assert two.worker.connection.doubt(BEFORE) == NO_DOUBT


def test_data_without_what_they_are_worth_are_a_doubt_after_2_ms_and_more_for_long_payloads():
    rounds = Rounds()
    rounds.round()
    number, now_s = 2, 1 + rounds.simulation.now_s
    worker, server = rounds.worker.connection, rounds.server.connection
    rule = ARM.gather.stop_rule(False)(rounds.layout)
    server.post_receive(number, rule, rounds.layout.new_buffer(), now_s)
    worker.post_send(number, rounds.sent[0], now_s)
    assert server.doubt(BEFORE) == NO_DOUBT
    server.on_datagrams(worker.offer(now_s).copy(), now_s)
    assert server.doubt(BEFORE) == pytest.approx((now_s + 2e-3 + 1e-6 * CHUNKS, now_s))
    server.on_control(worker.control(), now_s + 1e-3)
    assert server.doubt(BEFORE) == NO_DOUBT


def test_an_order_that_tells_no_worth_makes_nobody_wait_for_it():
    two = Two()
    two.receive(0)
    two.send(0)
    two.run(until_s=0.9 * DELAY_S + 1e-3)
    assert two.server.connection.doubt(BEFORE) == NO_DOUBT
    two.run()
    assert two.intact == [0]
