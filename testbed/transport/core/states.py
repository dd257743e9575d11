"""The state machine of a transfer's sender, with every transition in one table, as h11 has it.

Data may be lost, but messages are reliable and in order, and

* only the receiver ends a transfer, and STOPPED is final on both sides;
* each message that may still be in flight when a side stops is legal in its final state;
* the sender leaves SENDING only through RAN_DRY, which sends a PROBE, and every PROBE is answered
  by BITMAP, ACK or STOP: at once, or after a HOLD. A STOP that it crosses is its answer.

So a transfer ends if datagrams arrive with any probability above zero.
"""

from enum import Enum, auto
from typing import Generic, TypeVar

from testbed.transport.core.errors import ProtocolError


class SenderState(Enum):
    SENDING = auto()  # there are chunks to send
    ASKING = auto()  # nothing to send; a PROBE awaits its answer
    STOPPED = auto()  # the receiver has enough


class SenderEvent(Enum):
    RAN_DRY = auto()  # nothing left to send before the receiver answers
    FEEDBACK = auto()  # the receiver said what it has
    GAVE_UP = auto()  # a timer declared datagrams lost, so there is something to send
    STOP = auto()  # the receiver said that it has enough


SENDER_TRANSITIONS = {
    (SenderState.SENDING, SenderEvent.RAN_DRY): SenderState.ASKING,
    # The answer to a PROBE that was sent because the congestion window was full, or an
    # acknowledgement that the receiver sent on its own.
    (SenderState.SENDING, SenderEvent.FEEDBACK): SenderState.SENDING,
    (SenderState.SENDING, SenderEvent.STOP): SenderState.STOPPED,
    (SenderState.SENDING, SenderEvent.GAVE_UP): SenderState.SENDING,
    (SenderState.ASKING, SenderEvent.FEEDBACK): SenderState.SENDING,
    (SenderState.ASKING, SenderEvent.GAVE_UP): SenderState.SENDING,
    (SenderState.ASKING, SenderEvent.STOP): SenderState.STOPPED,
    # What a receiver says after its STOP changes nothing.
    (SenderState.STOPPED, SenderEvent.FEEDBACK): SenderState.STOPPED,
    (SenderState.STOPPED, SenderEvent.STOP): SenderState.STOPPED,
}

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Machine(Generic[S, E]):
    """A state and its table of transitions."""

    def __init__(self, initial: S, transitions: dict[tuple[S, E], S]) -> None:
        self.state = initial
        self._transitions = transitions

    def on(self, event: E) -> None:
        """Changes the state by the table; ProtocolError where it has no entry."""
        try:
            self.state = self._transitions[self.state, event]
        except KeyError:
            raise ProtocolError(f"{event.name} is not possible while {self.state.name}") from None
