"""What a user's own rule or repair answers a receiver: taken if it makes sense, refused by name."""

import numpy as np
import pytest

from testbed.transport import StopRule
from tests.transport.transfer_parts import all_frames, new_receiver
from tests.transport.virtual import layout_of

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
