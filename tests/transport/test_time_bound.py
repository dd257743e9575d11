"""OptiReduce-style transfers: two times end them, and each chunk goes once."""

import numpy as np
import pytest

from testbed.transport import preset
from testbed.transport.congestion import FixedRate
from testbed.transport.messages import PASS, ControlMessage, MessageType
from testbed.transport.repair import Once
from testbed.transport.tolerance import EarlyClose, TimeBound
from tests.transport import virtual
from tests.transport.virtual import DELAY_S, Two, ended, gone, layout_of, reports

CHUNKS = 200
LAYOUT = layout_of(CHUNKS)
WARM_UP = 4
ARM = preset("optireduce", warm_up=WARM_UP)


def progress(received, *, first_s=0.0, earliest=(), recent=(), **history):
    return virtual.progress(
        np.arange(CHUNKS) < received,
        first_s=first_s,
        last_s=first_s,
        first_sign_s=first_s,
        recent=[(time_s, CHUNKS) for time_s in recent],
        earliest=[(time_s, CHUNKS) for time_s in earliest],
        **history,
    )


def rule(**options):
    return TimeBound(**options).stop_rule(critical=False)(LAYOUT)


# The rule alone.


def test_warm_up_transfers_are_waited_for():
    state = progress(CHUNKS - 1, now_s=99.0, probes=7, earliest=[1.0] * 19, recent=[1.0] * 16)
    assert not rule().satisfied(state)
    assert rule().deadline_s(state) is None


def test_the_bound_is_a_quantile_of_the_warm_up_alone():
    times_s = np.arange(1.0, 21.0).tolist()  # the 95 % of them: 19
    later = [500.0] * 16
    for bound_s, options in ((19.0, {}), (10.0, {"quantile": 0.5}), (20.0, {"quantile": 1})):
        for now_s, over in ((3.0 + bound_s, False), (3.0 + bound_s + 1e-8, True)):
            state = progress(
                5, now_s=now_s, first_s=3.0, earliest=[*times_s[::-1], *later], recent=later
            )
            assert rule(**options).satisfied(state) is over
            assert rule(**options).deadline_s(state) == pytest.approx(3.0 + bound_s, abs=1e-8)


def test_once_all_has_been_sent_it_waits_for_a_part_of_the_mean():
    history = {"earliest": [10.0] * 20, "recent": [6.0, 2.0]}
    asked = rule(wait=0.25)
    assert not asked.satisfied(progress(5, now_s=3.0, **history))
    assert asked.deadline_s(progress(5, now_s=3.0, **history)) == pytest.approx(10.0)
    assert not asked.satisfied(progress(5, now_s=3.5, probes=1, **history))
    assert asked.deadline_s(progress(5, now_s=3.6, probes=1, **history)) == 4.5
    assert asked.satisfied(progress(5, now_s=4.5, probes=1, **history))
    late = rule(wait=0.25)
    assert not late.satisfied(progress(5, now_s=9.5, probes=1, **history))
    assert late.deadline_s(progress(5, now_s=9.5, probes=1, **history)) == pytest.approx(10.0)


def test_the_end_of_a_transfer_is_a_sign_where_no_chunk_has_come():
    asked = rule(wait=0.5)
    history = {"first_s": None, "earliest": [10.0] * 20, "recent": [10.0]}
    assert not asked.satisfied(progress(0, now_s=50.0, **history))
    assert asked.deadline_s(progress(0, now_s=50.0, **history)) is None
    assert not asked.satisfied(progress(0, now_s=60.0, probes=1, **history))
    assert asked.satisfied(progress(0, now_s=65.0, probes=1, **history))


def test_the_first_chunk_must_be_noticed_at_once():
    assert rule().missing(progress(0, now_s=0.0, first_s=None)) is None
    assert rule().missing(progress(5, now_s=0.0)) == CHUNKS - 5


# Transfers in virtual time.


def warmed(loss=0.0, arm=ARM, **options):
    """Two that have warmed up on a path with this loss."""
    two = Two(layout=LAYOUT, repair=arm.repair, rate_bps=1e6, loss=loss, seed=1, **options)
    for number in range(WARM_UP):
        carry(two, 2 * number, arm)
    return two


def carry(two, number, arm=ARM):
    two.receive(number, rule=arm.gather.stop_rule(critical=False)(two.layout))
    two.send(number)
    sides = two.worker, two.server
    two.simulation.run(done=lambda: all(number in ended(side) for side in sides), limit=200_000)
    return [reports(side)[-1] for side in sides]


def test_warm_up_transfers_are_complete_on_a_lossy_path_and_without_loss_all_are():
    assert warmed(loss=0.3).intact == [0, 2, 4, 6]
    two = warmed()
    sent, came = carry(two, 8)
    assert two.intact == [0, 2, 4, 6, 8]
    assert sent.chunks_sent == came.chunks_received == CHUNKS


@pytest.mark.parametrize("loss", [0.1, 0.6, 0.99])
def test_each_chunk_goes_once_and_soon_after_the_last_one_the_transfer_ends(loss):
    two = warmed()
    calm_s = carry(two, 8)[1].duration_s
    two.link.set_loss(loss)
    sent, came = carry(two, 10)
    assert (sent.chunks_sent, sent.passes) == (CHUNKS, 1)
    assert came.chunks_received == pytest.approx(CHUNKS * (1 - loss), abs=25)
    assert came.chunks_received < CHUNKS
    # On a path that is always as fast, the bound is what each transfer takes; the first chunks may
    # be lost, and then its clock starts late.
    assert 0.99 * calm_s < sent.duration_s - 2 * DELAY_S < 1.11 * calm_s


def test_a_sender_that_becomes_slow_is_cut_off_at_the_bound():
    two = warmed()
    calm_s = two.server.events[-1].report.duration_s
    two.path.congestion = FixedRate(rate_bps=0.25e6)
    sent, came = carry(two, 8)
    assert came.chunks_received == pytest.approx(CHUNKS / 4, abs=6)
    assert sent.duration_s < calm_s + 0.02


def test_it_survives_a_second_in_which_nearly_all_is_lost():
    two, random, number = warmed(), np.random.default_rng(2), 8
    until_s = two.simulation.now_s + 1.0
    two.link.set_loss(lambda: two.simulation.now_s < until_s and random.random() < 0.99)
    while two.simulation.now_s < until_s:
        carry(two, number)
        number += 2
    carry(two, number)
    assert two.intact == [0, 2, 4, 6, number]
    assert number > 20
    assert not gone(two.worker) and not gone(two.server)


def test_what_a_rule_still_wants_when_its_time_is_over_is_repaired():
    arm = preset("ltp", tolerance=0.2, deadline_s=1.0, repair="once", congestion_control="fixed")
    two = Two(layout=LAYOUT, repair=arm.repair, rate_bps=1e6, loss=0.5, seed=1)
    assert isinstance(arm.gather, EarlyClose)
    sent, came = carry(two, 0, arm)
    assert came.chunks_received >= 0.8 * CHUNKS
    assert sent.passes > 1
    assert came.duration_s > 1.0


def test_a_question_that_waits_is_answered_although_a_chunk_comes_just_when_the_time_is_over():
    layout = layout_of(10)
    rule = EarlyClose(0.2, 1.0).stop_rule(critical=False)(layout)
    receiver, _ = virtual.new_receiver(layout, rule=rule, repair=Once())
    frames = virtual.all_frames(layout)
    receiver.on_datagrams(frames[:3], 0.0)
    receiver.on_message(ControlMessage(MessageType.PROBE, 6, PASS.pack(1, True)), 0.5)
    assert not receiver.poll_messages()
    receiver.on_datagrams(frames[3:4], 1.1)  # before anybody has looked at the clock
    due_s = receiver.next_deadline_s()
    assert due_s is not None and due_s <= 1.1
    receiver.on_deadline(1.1)
    (answer,) = receiver.poll_messages()
    assert answer.type is MessageType.LATE_BITMAP
    assert receiver.next_deadline_s() is None
