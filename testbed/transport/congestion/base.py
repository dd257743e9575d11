"""The interface of congestion controls, which take feedback and set a rate, a window, or both.

Write a subclass of `CongestionControl`. Its constructor's keyword parameters are its options; the
endpoint supplies `rate_bps` and `datagram_bytes` where the user does not. One object serves one
peer in all transfers. `path.PathControl` measures round trips and delivery rates.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """What one message of the receiver says about the path; all sizes are wire bytes.

    Each byte sent is reported once, as delivered or as lost, unless a STOP ends the transfer
    before; one that was reported lost and arrives late is reported again, as delivered.

    Attributes:
        now_s: when the message arrived, in seconds on one monotonic clock, as all times.
        delivered_bytes: newly known to have arrived since the last feedback.
        lost_bytes: newly declared lost.
        in_flight_bytes: sent, and neither arrived nor lost, after this feedback.
        rtt_s: a sample of the round trip, of the newest acknowledged datagram; None for none.
        app_limited: the sender had less to send than it was allowed to.
        newest_sent_s: when the newest delivered datagram was sent; None: now_s - rtt_s.
        newest_lost_sent_s: when the newest lost datagram was sent; None: a round trip ago.
        waited: what is reported lay unread at a busy receiver for an unknown time.
        lost_share: of the latest datagrams, as the repair estimates it; 0 where it does not.
        queueing: a full queue may cause the losses, as far as is known.
        sent_bytes: of this transfer.
        enough_bytes: of this transfer, so many would probably do without loss.
    """

    now_s: float
    delivered_bytes: int
    lost_bytes: int
    in_flight_bytes: int
    rtt_s: float | None = None
    app_limited: bool = False
    newest_sent_s: float | None = None
    newest_lost_sent_s: float | None = None
    waited: bool = False
    lost_share: float = 0.0
    queueing: bool = True
    sent_bytes: int = 0
    enough_bytes: float = math.inf


class CongestionControl(ABC):
    """Limits one path by a rate, a window, or both.

    Attributes:
        measures: whether feedback about the path moves it: a receiver then answers at once.
        infers_queue: whether it looks for a queue by delay or rate: batches are then small.
        steady: whether rate and window stay until the next feedback or transfer: `on_sent` may then
            hear of several batches at once. It is not inherited.
        receive_buffer_bytes: what the peer's socket holds while the peer is busy; set for it.
    """

    measures = True
    infers_queue = True
    steady = False
    receive_buffer_bytes = math.inf

    @property
    @abstractmethod
    def rate_bps(self) -> float:
        """The allowed pace now, in bits per second on the wire; math.inf for unpaced."""

    @property
    def window_bytes(self) -> float:
        """The allowed wire bytes in flight now; math.inf (the default) for unlimited."""
        return math.inf

    def on_transfer_begin(self, now_s: float) -> None:  # noqa: B027 - optional to override
        """Called when a transfer begins, with nothing in flight, after a pause of any length."""

    def on_sent(self, sent_bytes: int, now_s: float) -> None:  # noqa: B027 - optional to override
        """Called when `sent_bytes` of datagrams were handed to the network."""

    @abstractmethod
    def on_feedback(self, feedback: Feedback) -> None:
        """Called with each feedback."""
