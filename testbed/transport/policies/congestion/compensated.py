"""A fixed rate that makes up for losses once a transfer takes longer than calm ones: ours."""

import math
from collections import deque

from testbed.transport.core.congestion import CongestionControl, Feedback

# A transfer is late when it has sent so many times what calm ones do. That is a little later than
# receivers end it that need no more, so that few go faster at once. A quarter of the latest count
# as calm: it stays so while up to three quarters are hit.
_PATIENCE = 1.5
_CALM = 0.25
_RECENT = 16


class CompensatedRate(CongestionControl):
    """Paces at `rate_bps`; a late transfer that loses datagrams goes on faster.

    Others who share the link have usually ended by then, and left their shares to nobody. At a loss
    of p it sends 1 / (1 - p) times as much, so that as much arrives as without loss. Where the
    latest round trip shows a queue, which more datagrams would only feed, it keeps to `rate_bps`.

    Args:
        rate_bps: of Ethernet frames; in a lab `transport.pace` times the link's fair share.
        most: the most times that rate. With three senders to one link, 3 is all of the link.
    """

    measures = False  # its losses are no less true when a receiver answers late

    def __init__(self, *, rate_bps: float, most: float = 3.0) -> None:
        if not rate_bps > 0:
            raise ValueError(f"rate_bps is {rate_bps}; valid: above 0")
        if isinstance(most, bool) or not isinstance(most, int | float) or not 1 <= most <= 100:
            raise ValueError(f"most is {most!r}; valid: 1 to 100")
        self._own_bps, self._most = float(rate_bps), float(most)
        self._lost_share = 0.0  # of the latest datagrams, where no queue has lost them
        self._earlier_bytes: deque[int] = deque(maxlen=_RECENT)
        self._sent_bytes = 0
        self._late_bytes = math.inf  # more than this is more than calm transfers send

    @property
    def rate_bps(self) -> float:
        if not self._lost_share or self._sent_bytes <= self._late_bytes:
            return self._own_bps
        return self._own_bps * min(self._most, 1 / max(1 - self._lost_share, 1e-6))

    @property
    def steady(self) -> bool:  # type: ignore[override]
        """Until something is lost nothing changes, and batches need no decisions."""
        return not self._lost_share

    def on_transfer_begin(self, now_s: float) -> None:
        if self._sent_bytes:
            self._earlier_bytes.append(self._sent_bytes)
            calm = sorted(self._earlier_bytes)
            self._late_bytes = _PATIENCE * calm[int(len(calm) * _CALM)]
        self._sent_bytes = 0
        self._lost_share = 0.0

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        self._sent_bytes += sent_bytes

    def on_feedback(self, feedback: Feedback) -> None:
        self._lost_share = 0.0 if feedback.queueing else feedback.lost_share
