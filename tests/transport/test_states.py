"""The transition table of a sender, and what an error tells, also from another process."""

import pickle

import pytest

from testbed.transport.core.errors import PeerLost, ProtocolError
from testbed.transport.core.states import SENDER_TRANSITIONS, Machine, SenderEvent, SenderState


def test_stopped_is_final_and_possible_in_every_state_and_what_is_missing_is_named():
    for (state, _), after in SENDER_TRANSITIONS.items():
        assert state is not SenderState.STOPPED or after is SenderState.STOPPED
    for state in SenderState:
        assert SENDER_TRANSITIONS[state, SenderEvent.STOP] is SenderState.STOPPED
    machine = Machine(SenderState.ASKING, SENDER_TRANSITIONS)
    with pytest.raises(ProtocolError, match="RAN_DRY is not possible while ASKING"):
        machine.on(SenderEvent.RAN_DRY)
    assert machine.state is SenderState.ASKING


def test_a_lost_peer_and_the_reason_survive_the_way_between_processes():
    for error in (
        lost := PeerLost("worker-1", "silent for 30 s"),
        pickle.loads(pickle.dumps(lost)),
    ):
        assert (error.peer, error.reason) == ("worker-1", "silent for 30 s")
        assert str(error) == "lost worker-1: silent for 30 s"
