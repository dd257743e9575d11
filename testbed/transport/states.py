"""The states of one transfer, every transition in one table, in the manner of h11.

Theory. A transfer is two machines that share nothing but messages. Data is a hint and may vanish;
control messages are reliable and in order, because they travel on TCP. So the pair is safe if

* only the receiver ends a transfer (it alone knows what arrived, and it alone judges how much is
  enough), and STOPPED is final on both sides;
* whatever may still be in flight when a side stops is legal in its final state: datagrams and a
  PROBE at the receiver, answers to a PROBE at the sender;
* the sender never waits without having asked: SENDING is left only through RAN_DRY, which sends
  a PROBE, and every PROBE is answered, by BITMAP or by STOP.

From these, a transfer ends whenever datagrams arrive with any probability above zero: each BITMAP
that finds the rule unsatisfied starts another pass over what is missing. The table is the same
for every repair; they differ in how often the receiver speaks and in what counts as missing.
"""

from enum import Enum, auto
from typing import Generic, TypeVar

from testbed.transport.errors import ProtocolError


class SenderState(Enum):
    """Where a sender stands."""

    SENDING = auto()  # there are chunks to send
    ASKING = auto()  # there are none, and a PROBE is out
    STOPPED = auto()  # the receiver has enough


class SenderEvent(Enum):
    """What moves a sender."""

    RAN_DRY = auto()  # nothing left to send before the receiver speaks
    FEEDBACK = auto()  # the receiver said what it has
    GAVE_UP = auto()  # a timer said that something is lost, so there is something to send
    STOP = auto()  # the receiver said that it has enough


class ReceiverState(Enum):
    """Where a receiver stands."""

    GATHERING = auto()
    STOPPED = auto()


class ReceiverEvent(Enum):
    """What moves a receiver."""

    DATA = auto()  # a batch of datagrams, good or bad
    PROBE = auto()  # the sender wants to know
    SATISFIED = auto()  # the stop rule said yes


SENDER_TRANSITIONS = {
    (SenderState.SENDING, SenderEvent.RAN_DRY): SenderState.ASKING,
    # An answer to a PROBE that was sent because the congestion window was closed, or a
    # receiver that reports on its own.
    (SenderState.SENDING, SenderEvent.FEEDBACK): SenderState.SENDING,
    (SenderState.SENDING, SenderEvent.STOP): SenderState.STOPPED,
    (SenderState.SENDING, SenderEvent.GAVE_UP): SenderState.SENDING,
    (SenderState.ASKING, SenderEvent.FEEDBACK): SenderState.SENDING,
    (SenderState.ASKING, SenderEvent.GAVE_UP): SenderState.SENDING,
    (SenderState.ASKING, SenderEvent.STOP): SenderState.STOPPED,
    # A STOP that crossed our PROBE is followed by the PROBE's own answer.
    (SenderState.STOPPED, SenderEvent.FEEDBACK): SenderState.STOPPED,
    (SenderState.STOPPED, SenderEvent.STOP): SenderState.STOPPED,
}

RECEIVER_TRANSITIONS = {
    (ReceiverState.GATHERING, ReceiverEvent.DATA): ReceiverState.GATHERING,
    (ReceiverState.GATHERING, ReceiverEvent.PROBE): ReceiverState.GATHERING,
    (ReceiverState.GATHERING, ReceiverEvent.SATISFIED): ReceiverState.STOPPED,
    # What was in flight when we stopped.
    (ReceiverState.STOPPED, ReceiverEvent.DATA): ReceiverState.STOPPED,
    (ReceiverState.STOPPED, ReceiverEvent.PROBE): ReceiverState.STOPPED,
}

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Machine(Generic[S, E]):
    """A state and the table that moves it."""

    def __init__(self, initial: S, transitions: dict[tuple[S, E], S]) -> None:
        self.state = initial
        self._transitions = transitions

    def on(self, event: E) -> S:
        """Moves along the table; ProtocolError where it has no entry."""
        try:
            self.state = self._transitions[self.state, event]
        except KeyError:
            raise ProtocolError(f"{event.name} is not possible while {self.state.name}") from None
        return self.state
