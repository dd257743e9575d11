"""The transition tables."""

import pytest

from testbed.transport.core.errors import ProtocolError
from testbed.transport.core.states import (
    RECEIVER_TRANSITIONS,
    SENDER_TRANSITIONS,
    Machine,
    ReceiverEvent,
    ReceiverState,
    SenderEvent,
    SenderState,
)


def test_stopped_is_final_on_both_sides_and_possible_in_every_state_of_the_sender():
    for (state, _), after in SENDER_TRANSITIONS.items():
        assert state is not SenderState.STOPPED or after is SenderState.STOPPED
    for (before, _), then in RECEIVER_TRANSITIONS.items():
        assert before is not ReceiverState.STOPPED or then is ReceiverState.STOPPED
    for state in SenderState:
        assert SENDER_TRANSITIONS[state, SenderEvent.STOP] is SenderState.STOPPED


def test_data_and_probes_are_possible_in_every_state_of_the_receiver():
    for state in ReceiverState:
        for event in (ReceiverEvent.DATA, ReceiverEvent.PROBE):
            assert RECEIVER_TRANSITIONS[state, event] is state


def test_a_missing_transition_is_an_error_that_names_it():
    machine = Machine(SenderState.ASKING, SENDER_TRANSITIONS)
    with pytest.raises(ProtocolError, match="RAN_DRY is not possible while ASKING"):
        machine.on(SenderEvent.RAN_DRY)
    assert machine.state is SenderState.ASKING
