"""What a congestion control is: it hears what became of the data, and names a rate or a window.

To add one, write one file beside this one with a subclass of `CongestionControl` and add it to
CONGESTION_CONTROLS in `__init__.py`. Its constructor's keyword parameters are its options as
users write them (`NAME:key=value,...`); parameters named `rate_bps` and `datagram_bytes` are
supplied from the endpoint's configuration when the text does not set them. One object lives as
long as the peer does, across transfers, so what it learnt is kept.

`path.PathMonitor` turns the feedback into what most algorithms want to know (round trips, their
minimum, delivery rates); `window.WindowControl` is the common part of those that keep a window.

All times are seconds on one monotonic clock, as floats and without a granularity of their own: a
local network's round trip is tens of microseconds.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Feedback:
    """What one message of the receiver says about the path; all sizes are wire bytes.

    Each byte that was sent is reported once, as delivered or as lost, unless a STOP ends the
    transfer before. A repair that takes back a loss (the datagram was only late) reports it as
    delivered and does not correct the earlier feedback. A repair whose timer runs out reports
    what it gives up as lost, with nothing delivered.

    Attributes:
        now_s: when the message came.
        delivered_bytes: newly known to have arrived since the last feedback.
        lost_bytes: newly known to be lost.
        in_flight_bytes: sent and of unknown fate, after this feedback.
        rtt_s: one sample of the round trip, that of the newest datagram that this message
            acknowledges: now_s less when it was sent. None when this message allows none.
        ecn_marked_bytes: how many of the delivered bytes carried a congestion mark.
        app_limited: the sender had less to send than it was allowed to, so the delivered bytes
            say little about the path's capacity.
        newest_sent_s: when the newest of the datagrams delivered was sent. None for unknown;
            then it is taken to be now_s - rtt_s, so only a repair that takes the receiver's own
            delay out of rtt_s has to set it.
        newest_lost_sent_s: when the newest of the datagrams lost was sent. None for unknown;
            then it is taken to be one round trip ago. Losses of one round trip are one sign of
            congestion, and this tells which belong together when they are found late.
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


class CongestionControl(ABC):
    """Limits one path by a rate, a window, or both.

    Attributes:
        needs_ecn: whether it is of no use unless queues on the path mark datagrams and the
            receiver's messages say which were marked.
    """

    needs_ecn = False

    @property
    @abstractmethod
    def rate_bps(self) -> float:
        """Allowed pace now, in bits per second on the wire; math.inf for unpaced."""

    @property
    def window_bytes(self) -> float:
        """Allowed wire bytes in flight now; math.inf (the default) for unlimited."""
        return math.inf

    def on_transfer_begin(self, now_s: float) -> None:  # noqa: B027 - optional to override
        """Hears that a transfer begins: nothing is in flight, after a pause of any length."""

    def on_sent(self, sent_bytes: int, now_s: float) -> None:  # noqa: B027 - optional to override
        """Hears that `sent_bytes` of datagrams were handed to the network."""

    @abstractmethod
    def on_feedback(self, feedback: Feedback) -> None:
        """Hears what became of what was sent."""

    def observe(self) -> dict[str, float]:
        """The inner state worth logging; a named state is logged as its number."""
        return {"rate_bps": self.rate_bps, "window_bytes": self.window_bytes}
