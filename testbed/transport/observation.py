"""What an observer hears of a path's congestion state, seldom enough to cost next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# At most this often per peer; a data path that answers more often is not watched more closely.
INTERVAL_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The sender's view of one path at one moment.

    Attributes:
        now_s: when, on the monotonic clock.
        peer, transfer: to whom, and in which transfer.
        rate_bps: the allowed pace in bits per second on the wire; math.inf for unpaced.
        window_bytes: the allowed wire bytes in flight; math.inf for unlimited.
        rtt_s: the latest sample of the round trip; None before the first.
        retransmits: datagrams of this transfer that were sent again so far.
    """

    now_s: float
    peer: str
    transfer: int
    rate_bps: float
    window_bytes: float
    rtt_s: float | None
    retransmits: int


# Called in the middle of a transfer: it must not wait, and what it raises ends the transfer.
Observer = Callable[[Observation], None]
