"""A rank that is late costs the others little, and one that is gone no more than its share."""

import math
import os
import re
import signal
import time

import numpy as np
import pytest
import torch

from testbed.ddp import BoundedLoss
from testbed.ddp import exchange as exchange_module
from testbed.ddp import owner as owner_module
from testbed.ddp.owner import Lateness, UntilLate
from testbed.ddp.settings import WINDOW
from testbed.transport import preset
from testbed.transport.settings import LATE
from testbed.transport.tolerance import FractionRule
from tests.ddp.ranks import Ledger, assert_complete, drawn, exchange, last, launch, values
from tests.ddp.test_failures import PARAMETERS, SIZES, heard
from tests.transport import virtual

LATE_AT = 15
LATE_BY_S, IN_TIME_S = 2.0, 1.6  # the late rank's sleep; what no other may take because of it
PATIENCE_S = 0.5  # more than a busy machine delays a rank that is not late
STEPS = LATE_AT + 6


def busy(rank, collective):
    """Rank 1 computes for longer than a silent peer would be waited for."""
    exchange_module._SILENT_S = 1.0
    state = BoundedLoss(timeout_s=20, collective=collective)
    for step in range(6):
        if rank == 1 and step == 4:
            time.sleep(2.2)
        exchange(state, drawn(SIZES, rank, step), PARAMETERS)
        if step == 4:
            waited_for = last(state).slowest
    return last(state).carried_by, waited_for


@pytest.mark.parametrize(("collective", "named"), [("sharded", [1, 1]), ("server", [1, 0])])
def test_a_rank_that_computes_for_long_is_waited_for_and_named(collective, named):
    returned = values(launch(busy, 3, collective=collective))
    assert [carried_by for carried_by, _ in returned] == ["transport"] * 3
    # Where one rank averages, the others see no more than that its mean is not there.
    for rank, culprit in zip((0, 2), named, strict=True):
        bucket = returned[rank][1]
        assert bucket.slowest == culprit
        assert 2.0 < bucket.slowest_s < 10


def absent(rank):
    """Rank 1 computes for longer than it may; returns what each rank raises."""
    state = BoundedLoss(timeout_s=6)
    for step in range(8):
        if rank == 1 and step == 4:
            time.sleep(4.5)
        if error := heard(state, rank, step):
            return error[1]
    return None


def test_a_rank_that_is_late_by_half_the_timeout_ends_all_with_its_name():
    line = "lost rank 1: " + LATE.format(transfer=r"\d+", late_s=3)
    assert all(re.fullmatch(line, error) for error in values(launch(absent, 3)))


def late(rank, collective="server", culprit=2, **changes):
    """One is late twice: the ledger, and what the steps say."""
    owner_module._SHORTEST_S = PATIENCE_S
    protocol, others = preset("none", **changes), {"collective": collective, "late_share": 0.2}
    state = BoundedLoss(protocol, rate_bps=math.inf, timeout_s=60, **others)
    steps, ledger = [], Ledger(SIZES)
    for step in range(STEPS):
        if rank == culprit and step in (LATE_AT, STEPS - 1):  # the others end before it
            time.sleep(LATE_BY_S)
        gradients = drawn(SIZES, rank, step)
        began_s = time.monotonic()
        means = exchange(state, gradients, PARAMETERS)
        steps.append((time.monotonic() - began_s, last(state).buckets))
        ledger.enter(gradients, means)
    ledger.close(state)
    state.close()  # as at a program's exit
    return ledger, steps


def test_a_late_gradient_is_left_out_owed_and_reported():
    outcomes = values(launch(late, 3))
    assert_complete([ledger for ledger, _ in outcomes])
    took_s, buckets = outcomes[0][1][LATE_AT]
    assert took_s < IN_TIME_S
    assert [bucket.late for bucket in buckets] == [(2,), (2,)]
    assert [bucket.loss for bucket in buckets] == [0.5, 0.5]
    assert [bucket.loss for bucket in outcomes[2][1][LATE_AT][1]] == [1.0, 1.0]
    assert [bucket.late for bucket in outcomes[1][1][LATE_AT][1]] == [(), ()]


@pytest.mark.parametrize(("collective", "culprit"), [("sharded", 1), ("server", 0)], ids=str)
def test_nobody_waits_for_a_late_rank_that_averages(collective, culprit):
    outcomes = values(launch(late, 3, collective=collective, culprit=culprit))
    assert_complete([ledger for ledger, _ in outcomes])
    # Its own gradient is left out where it averages, and the others are two steps ahead of it.
    averaging = [0] if collective == "server" else [0, 1, 2]
    for step in (LATE_AT, LATE_AT + 1):
        for rank in {0, 1, 2} - {culprit}:
            assert outcomes[rank][1][step][0] < IN_TIME_S, (rank, step)
    for rank in averaging:
        buckets = outcomes[rank][1][LATE_AT][1]
        assert [bucket.late for bucket in buckets] == [(culprit,)] * 2
        assert {bucket.slowest for bucket in buckets} == {culprit}
    assert outcomes[2 if culprit == 1 else 1][0].left == {}  # of who was in time nothing is left


def gone(rank):
    """Rank 2 is killed; then rank 1, after which too few are left."""
    state = BoundedLoss(timeout_s=20, collective="server", min_ranks=2)
    means, raised = [], ""
    for step in range(12):
        if (rank, step) in ((2, 5), (1, 9)):
            os.kill(os.getpid(), signal.SIGKILL)
        gradients = [torch.full((size,), float(rank + 1)) for size in SIZES]
        try:
            means.append(float(exchange(state, gradients, PARAMETERS)[0][0]))
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            break
    return means, last(state).buckets[0].lost, raised


def test_the_others_go_on_without_a_rank_until_they_are_too_few():
    (outcome,) = launch(gone, 3, killed=[1, 2]).values()
    means, lost, raised = outcome.value
    assert means == [2.0] * 5 + [1.5] * 4
    assert lost == (2,)
    assert raised.startswith("PeerLost: lost rank 1: ")


def test_a_timeout_follows_recent_rounds_of_the_same_part():
    lateness = Lateness(0.02)
    for part in range(10):
        assert lateness.timeout_s(1, 0) == math.inf
        lateness.note(1, 0, 0.1 * (part + 1), late=False)
    assert lateness.timeout_s(1, 0) == pytest.approx(2 * 0.99)  # of nine of ten
    assert lateness.timeout_s(1, 1) == math.inf  # another part
    for _ in range(WINDOW):
        lateness.note(1, 0, 1e-4, late=False)
    assert lateness.timeout_s(1, 0) == 0.05
    assert Lateness(0).timeout_s(1, 0) == math.inf


def test_parts_under_way_count_before_any_of_them_was_left_out():
    lateness = Lateness(0.02)

    def may_be_late():
        return [lateness.timeout_s(1, index) < math.inf for index in range(4)]

    for index in range(4):
        for _ in range(10):
            lateness.note(1, index, 0.2, late=False)
    assert may_be_late() == 2 * [True] + 2 * [False]
    assert lateness.timeout_s(2, 0) < math.inf
    lateness.note(1, 0, 0.1, late=False)  # it was in time, so another may be late
    lateness.note(1, 1, 0.4, late=True)
    assert may_be_late() == [True] + 3 * [False]


@pytest.mark.parametrize("percent", [1, 29, 57, 58, 100])
def test_a_share_is_that_of_the_last_hundred(percent):
    lateness = Lateness(percent / 100)
    for late in (*10 * [False], *(percent - 1) * [True]):
        lateness.note(1, 0, 0.2, late=late)
    assert lateness.timeout_s(1, 0) < math.inf
    lateness.note(1, 0, 0.2, late=True)
    assert lateness.timeout_s(1, 0) == math.inf


def test_a_patient_rule_is_the_other_one_until_the_time_is_over():
    rule, began_s = UntilLate(FractionRule(0)), 100.0

    def progress(count, after_s):
        came = np.arange(4) < count
        return virtual.progress(came, now_s=began_s + after_s, first_s=None, last_s=None)

    assert not rule.satisfied(progress(3, 1e6))  # nothing else has come yet
    assert rule.deadline_s(progress(3, 9.0)) is None
    rule.until_s = began_s + 10
    assert not rule.satisfied(progress(3, 9.0))
    assert rule.deadline_s(progress(3, 9.0)) == began_s + 10
    assert rule.missing(progress(3, 9.0)) == 1
    assert rule.satisfied(progress(3, 10.0))
    assert rule.late
    assert rule.satisfied(progress(4, 11.0))
    assert not rule.late  # what has come at the last moment counts
