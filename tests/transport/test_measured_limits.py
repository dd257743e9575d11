"""Early Close whose limits follow what was measured of each peer."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.transport.layout import PayloadLayout
from testbed.transport.tolerance import EarlyClose, StopRule, required_chunks
from tests.transport import virtual
from tests.transport.virtual import DELAY_S, Two, layout_of, random_payload

CHUNKS = 20
LAYOUT = layout_of(CHUNKS)
FIRST_S = 2.0
# Four times as slow in one transfer of four.
HIT = [(0.1, CHUNKS)] * 3 + [(0.4, CHUNKS)]


def progress(received, *, now_s=FIRST_S, **history):
    came = np.arange(CHUNKS) < received
    return virtual.progress(came, now_s=now_s, first_s=FIRST_S, last_s=FIRST_S, **history)


def limits(recent, *, round_trip_s=None, tolerance=0.4, **options):
    """Seconds until the cut-off, and how many chunks it asks for then."""
    options = {"patience": 1.5, **options}

    def required(received):
        rule = EarlyClose(tolerance, 9.0, **options).stop_rule(critical=False)(LAYOUT)
        history = {"recent": recent, "round_trip_s": round_trip_s}
        deadline_s = rule.deadline_s(progress(received, **history))
        assert deadline_s is not None
        assert not rule.satisfied(progress(received, now_s=deadline_s - 1e-9, **history))
        return deadline_s, rule.satisfied(progress(received, now_s=deadline_s, **history))

    deadline_s, _ = required(CHUNKS)
    return deadline_s - FIRST_S, next(n for n in range(CHUNKS + 1) if required(n)[1])


@pytest.mark.parametrize(
    ("recent", "options", "limit_s", "required"),
    [
        # After a calm epoch all is waited for beyond the limit.
        ([(0.1, CHUNKS)] * 4, {}, 0.15, CHUNKS),
        # One of four would have lacked 1 - 0.15 / 0.4: 15.6 % of a transfer in the mean.
        (HIT, {}, 0.15, math.ceil(CHUNKS * (1 - 0.15625))),
        (HIT, {"tolerance": 0.05}, 0.15, 19),
        # A round trip more is time for a repair: 1 - 0.25 / 0.4 of one in four, 9.4 %.
        (HIT, {"round_trip_s": 0.1}, 0.25, math.ceil(CHUNKS * 0.90625)),
        # A transfer that was cut off counts with its pace.
        ([(0.1, CHUNKS // 2)] * 4, {}, 0.3, CHUNKS),
        # An epoch that is over does not count.
        (HIT * 8 + [(0.2, CHUNKS)] * 16, {}, 0.3, CHUNKS),
        # The constant limits hold where nothing was measured, where all came in one batch, where it
        # is of another size, and without `patience`.
        ([], {}, 9.0, 12),
        ([(0.0, CHUNKS)], {}, 9.0, 12),
        ([(0.1, 9), (0.1, 41)], {}, 9.0, 12),
        (HIT, {"patience": None}, 9.0, 12),
    ],
)
def test_the_limit_follows_the_calm_pace_and_the_fraction_what_would_have_been_lacking_then(
    recent, options, limit_s, required
):
    assert limits(recent, **options) == (pytest.approx(limit_s), required)


@given(
    recent=st.lists(
        st.tuples(st.just(0.0) | st.floats(1e-6, 1e3), st.integers(1, CHUNKS)), max_size=16
    ),
    round_trip_s=st.none() | st.floats(0, 10),
    tolerance=st.sampled_from([0.0, 0.1, 0.4, 0.95]),
    patience=st.floats(1, 4),
)
def test_whatever_was_measured_no_more_than_the_tolerance_is_given_up_and_never_what_must_arrive(
    recent, round_trip_s, tolerance, patience
):
    history = {"recent": recent, "round_trip_s": round_trip_s}
    layout = PayloadLayout([("body", 4 * (CHUNKS - 1)), ("head", 4)], 16)
    policy = EarlyClose(tolerance, 9.0, must="head", patience=patience)
    rule = policy.stop_rule(critical=False)(layout)
    least = required_chunks(CHUNKS, tolerance)
    for received in range(CHUNKS):  # the last chunk is the head
        assert not rule.satisfied(progress(received, now_s=1e9, **history))
    free = EarlyClose(tolerance, 9.0, patience=patience).stop_rule(critical=False)(layout)
    required = [free.satisfied(progress(n, now_s=1e9, **history)) for n in range(CHUNKS + 1)]
    assert required.index(True) >= least
    assert required[-1]
    deadline_s = free.deadline_s(progress(0, **history))
    assert deadline_s is not None and math.isfinite(deadline_s)


# In virtual time.


class Noting(StopRule):
    """Wants all, and notes the round trip that it is told."""

    def satisfied(self, progress):
        self.round_trip_s = progress.round_trip_s
        return False


def test_a_server_knows_the_round_trip_once_it_has_sent():
    two = Two(repair="selective")
    noted = []
    for number in (0, 2):
        rule = Noting()
        two.send(number)
        two.receive(number, rule=rule)
        two.run()
        noted.append(rule.round_trip_s)
        into, payload = two.layout.new_buffer(), random_payload(two.layout)
        whole = EarlyClose(0.0, 1.0).stop_rule(False)(two.layout)
        two.worker.connection.post_receive(number + 1, whole, into, two.simulation.now_s)
        two.server.connection.post_send(number + 1, payload, two.simulation.now_s)
        two.worker.work()
        two.server.work()
        two.run()
    assert noted == [None, pytest.approx(2 * DELAY_S, rel=0.1)]
