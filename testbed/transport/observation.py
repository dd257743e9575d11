"""A record of a path's congestion state, for observers; made too seldom to cost time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The shortest time between two records of one peer.
INTERVAL_S = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """The sender's view of one path at one moment.

    Attributes:
        now_s: time of the record, on the monotonic clock.
        peer, transfer: the receiver and the transfer's number.
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


# Called during a transfer. It must not wait; an exception that it raises ends the transfer.
Observer = Callable[[Observation], None]
