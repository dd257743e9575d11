"""The interface of congestion controls, which take feedback and set a rate, a window, or both.

Write a subclass of `CongestionControl` (the package's docstring says where). Its constructor's
keyword parameters are its options; the endpoint supplies `rate_bps` and `datagram_bytes` where it
has them and the user does not set them. One object serves one peer across all transfers. Times are
seconds on one monotonic clock. `path.PathMonitor` derives round trips and delivery rates;
`window.WindowControl` is the common part of controls with a window.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """What one message of the receiver says about the path; all sizes are wire bytes.

    Each byte sent is reported once, as delivered or as lost, unless a STOP ends the transfer
    before. If a datagram that was reported lost arrives late, the repair reports it as delivered
    and does not correct the earlier feedback. A repair whose timer expires reports the datagrams
    that it declares lost, with nothing delivered.

    Attributes:
        now_s: when the message arrived.
        delivered_bytes: newly known to have arrived since the last feedback.
        lost_bytes: newly declared lost.
        in_flight_bytes: sent, and neither arrived nor lost, after this feedback.
        rtt_s: a sample of the round trip: now_s minus the time when the newest acknowledged
            datagram was sent. None when this message gives none.
        ecn_marked_bytes: how many of the delivered bytes carried a congestion mark.
        app_limited: the sender had less to send than it was allowed to, so the delivered bytes
            say little about the path's capacity.
        newest_sent_s: when the newest delivered datagram was sent. None for unknown; then
            now_s - rtt_s is used. Only a repair that subtracts the receiver's delay from rtt_s
            must set it.
        newest_lost_sent_s: when the newest lost datagram was sent. None for unknown; then one
            round trip ago is used. It tells which losses belong to the same round trip, and so
            to the same sign of congestion.
        waited: what is reported lay unread at a busy receiver for an unknown time. So the time
            since `newest_sent_s` is longer than the path's, and rates over it are lower.
        lost_share: of the latest datagrams, as the repair estimates it; 0 where it does not.
        queueing: a full queue may cause the losses: the latest round trip was long, or nobody has
            told how long the queue is.
        sent_bytes: of this transfer, as `on_sent` tells of all of them.
        enough_bytes: of this transfer, so many would probably do without loss.
    """

    now_s: float
    delivered_bytes: int
    lost_bytes: int
    in_flight_bytes: int
    rtt_s: float | None = None
    ecn_marked_bytes: int = 0
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
        needs_ecn: whether it needs queues that mark datagrams, and a receiver whose messages
            count the marks.
        measures: whether feedback about the path moves it. A receiver then answers at once, because
            its delay would pass for the path's.
        infers_queue: whether a control that measures looks for a queue before that loses anything,
            by delay, rate or marks. A sender then sends in small batches, which would otherwise be
            the queue that is found.
        steady: whether rate and window stay as they are until the next feedback or transfer.
            Batches may then go without being offered one by one, and `on_sent` hears of several at
            once. A subclass does not inherit it.
        receive_buffer_bytes: what the peer's socket holds while the peer is busy; set for it.
    """

    needs_ecn = False
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
