"""A peer that means harm, and what its datagrams and messages do to a connection: nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from testbed.transport.policies.repair import REPAIRS
from tests.fuzz.connections import attack
from tests.transport.hostile import (
    SIDES,
    TRANSFER,
    Victim,
    control_bytes,
    encoded,
    record,
    stranger_record,
)

repairs = st.sampled_from(sorted(REPAIRS))


class HostilePeer(RuleBasedStateMachine):
    """Any interleaving of datagrams, control messages and time."""

    @initialize(
        repair=repairs,
        chunks=st.integers(1, 40),
        tolerance=st.sampled_from([0, 0.1, 0.5]),
        opened=st.sampled_from([True, True, True, False]),
        posted=st.integers(0, 2),
    )
    def begin(self, repair, chunks, tolerance, opened, posted):
        self.victim = Victim(repair, chunks, tolerance, opened=opened, posted=posted)

    @rule(side=st.sampled_from(SIDES), transfer=st.integers(TRANSFER, TRANSFER + 4))
    def post(self, side, transfer):
        self.victim.post(side, transfer)

    @rule(records=st.lists(record, min_size=1, max_size=8))
    def datagrams(self, records):
        self.victim.datagrams(encoded(records))

    @rule(records=st.lists(stranger_record, min_size=1, max_size=8))
    def datagrams_of_another_session(self, records):
        before = self.victim.trace("receiver")
        assert self.victim.datagrams(encoded(records)) == 0
        assert self.victim.trace("receiver") == before

    @rule(noise=st.binary(min_size=24, max_size=240))
    def noise(self, noise):
        self.victim.datagrams(noise)

    @rule(side=st.sampled_from(SIDES), data=control_bytes())
    def control(self, side, data):
        self.victim.control(side, data)

    @rule(seconds=st.sampled_from([0.0, 1e-4, 0.01, 1.0, 1000.0]))
    def wait(self, seconds):
        self.victim.wait(seconds)

    @invariant()
    def everything_is_accounted_for(self):
        if hasattr(self, "victim"):
            self.victim.check()


TestHostilePeer = HostilePeer.TestCase
TestHostilePeer.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@settings(max_examples=100, deadline=None)
@given(repairs, st.lists(stranger_record, min_size=1, max_size=20))
def test_datagrams_of_other_sessions_are_counted_and_leave_no_trace(name, records):
    victim = Victim(name, 30, 0.1)
    before = victim.trace("receiver")
    assert victim.datagrams(encoded(records)) == 0
    assert victim.trace("receiver") == before
    connection = victim.sides["receiver"]
    ignored = connection.counters + connection.incoming.receivers[TRANSFER].ignored
    assert ignored == {"wrong-session": len(records)}
    victim.check()


@pytest.mark.parametrize(
    "share", [0.001, pytest.param(0.1, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_nothing_that_is_built_by_structure_ends_or_fills_a_connection(share):
    """A share of what `python -m tests.fuzz.connections` sends."""
    datagrams, messages = int(share * 1e7), int(share * 1e6)
    done = attack(datagrams, messages, seed=1)
    assert done["datagrams"] >= datagrams
    assert done["messages"] >= messages
