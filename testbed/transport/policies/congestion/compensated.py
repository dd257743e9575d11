"""A fixed rate that makes up for losses once a transfer takes longer than calm ones: ours."""

from testbed.transport.core.congestion import CongestionControl, Feedback

# A transfer is late when it has sent so many times what would do without loss. That is a little
# later than receivers end it that need no more, so that few go faster at once.
_PATIENCE = 1.5
_LEAST_LOSS = 0.01  # less is no reason to do anything


class CompensatedRate(CongestionControl):
    """Paces at `rate_bps`; a late transfer that loses datagrams goes on faster.

    Others who share the link have usually ended by then, and left their shares to nobody. At a loss
    of p it sends 1 / (1 - p) times as much, so that as much arrives as without loss. Where a queue
    may cause the losses, which more datagrams would only feed, it keeps to `rate_bps`.

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
        self._rate_bps = self._own_bps

    @property
    def rate_bps(self) -> float:
        return self._rate_bps

    @property
    def steady(self) -> bool:  # type: ignore[override]
        """Until it goes faster, nothing changes but by feedback."""
        return self._rate_bps == self._own_bps

    def on_transfer_begin(self, now_s: float) -> None:
        self._rate_bps = self._own_bps

    def on_feedback(self, feedback: Feedback) -> None:
        late = feedback.sent_share > _PATIENCE and not feedback.queueing
        lost_share = feedback.lost_share if late else 0.0
        factor = 1.0 if lost_share < _LEAST_LOSS else 1 / max(1 - lost_share, 1e-6)
        self._rate_bps = self._own_bps * min(self._most, factor)
