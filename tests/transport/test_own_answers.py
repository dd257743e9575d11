"""What a user's own rule or repair answers a receiver: taken if it makes sense, refused by name."""

import math

import numpy as np
import pytest

from testbed.shared.input_error import InputError
from testbed.transport import StopRule
from testbed.transport.core.receiver import Receiver
from testbed.transport.policies.repair import Passes
from testbed.transport.policies.repair.passes import PassesReceiver
from tests.transport.transfer_parts import all_frames, new_receiver
from tests.transport.virtual import SESSION, layout_of

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


@pytest.mark.parametrize("deadline_s", [None, 0, -1.0, 3.5, math.inf, np.float32(2)])
def test_a_deadline_is_any_time_or_none(deadline_s):
    assert receiver(deadline_s=deadline_s).next_deadline_s() == deadline_s


@pytest.mark.parametrize("deadline_s", [math.nan, -math.inf, "soon", [1.0]])
def test_a_deadline_that_is_no_time_is_refused(deadline_s):
    with pytest.raises(InputError, match=r"Own\.deadline_s returned .* a time in seconds, or None"):
        receiver(deadline_s=deadline_s).next_deadline_s()


@pytest.mark.parametrize("satisfied", [True, np.bool_(True)])
def test_a_rule_that_is_satisfied_ends_the_transfer(satisfied):
    it = receiver(satisfied=satisfied)
    it.on_datagrams(all_frames(LAYOUT)[:1], 0.0)
    assert it.stopped


@pytest.mark.parametrize("satisfied", [None, 1, "yes", np.ones(2, dtype=np.bool_)])
def test_a_rule_that_says_neither_yes_nor_no_is_refused(satisfied):
    with pytest.raises(InputError, match=r"Own\.satisfied returned .* expected True or False"):
        receiver(satisfied=satisfied).on_datagrams(all_frames(LAYOUT)[:1], 0.0)


@pytest.mark.parametrize(
    ("missing", "told"), [(None, 0), (3, 3), (np.int64(3), 3), (8, 8), (9, 8), (1000, 8)]
)
def test_what_is_missing_is_unknown_or_as_much_as_has_not_arrived_at_most(missing, told):
    it = receiver(missing=missing)
    it.on_datagrams(all_frames(LAYOUT)[:2], 0.0)
    assert it.missing == told


@pytest.mark.parametrize("missing", [2.5, "few"])
def test_what_is_missing_and_no_number_is_refused(missing):
    with pytest.raises(InputError, match=r"Own\.missing returned .* a number of chunks, or None"):
        receiver(missing=missing).missing  # noqa: B018 - reading it checks it


def repaired_by(half):
    class Mine(Passes):
        def receiver(self, *, transfer, datagram_wire_bytes):
            return half

    return Receiver(
        session=SESSION,
        transfer=6,
        layout=LAYOUT,
        into=LAYOUT.new_buffer(),
        rule=Own(),
        repair=Mine(),
        now_s=0.0,
    )


@pytest.mark.parametrize("gather_s", [0, 0.25, math.inf, -1e-3, math.nan, "long", None])
def test_how_long_arrivals_may_gather_is_a_time_of_0_or_more(gather_s):
    half = PassesReceiver(transfer=6)
    half.gather_s = gather_s
    it = repaired_by(half)
    if gather_s in (0, 0.25, math.inf):
        assert it.gather_s == gather_s
    else:
        with pytest.raises(InputError, match=r"PassesReceiver\.gather_s is .* seconds, 0 or more"):
            it.gather_s  # noqa: B018 - reading it checks it


def test_whether_it_only_answers_is_true_or_false():
    half = PassesReceiver(transfer=6)
    assert repaired_by(half).only_answers is True
    half.only_answers = "sometimes"  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"PassesReceiver\.only_answers is .* True or False"):
        repaired_by(half).only_answers  # noqa: B018 - reading it checks it


def test_a_half_that_is_none_is_refused():
    with pytest.raises(InputError, match=r"Mine\.receiver returned 3; expected a ReceiverRepair"):
        repaired_by(3)
