"""Rates that the experimenter chooses."""

import math

from testbed.transport.congestion.base import CongestionControl, Feedback
from testbed.transport.errors import check_number


class FixedRate(CongestionControl):
    """A fixed rate, which the experimenter chooses.

    Args:
        rate_bps: of Ethernet frames; in a lab `transport.pace` times the link's fair share.
    """

    measures = False
    steady_until_s = math.inf

    def __init__(self, *, rate_bps: float) -> None:
        if not rate_bps > 0:
            raise ValueError(f"rate_bps is {rate_bps}; valid: above 0")
        self._rate_bps = float(rate_bps)

    @property
    def rate_bps(self) -> float:
        return self._rate_bps

    def on_feedback(self, feedback: Feedback) -> None:
        """Ignores feedback."""


# A transfer is late when it has sent so many times what would do without loss. That is a little
# later than receivers end it that need no more, so that few go faster at once.
_PATIENCE = 1.5
_LEAST_LOSS = 0.01  # less is no reason to do anything


class CompensatedRate(FixedRate):
    """A fixed rate that makes up for losses once a transfer takes longer than calm ones: ours.

    Others who share the link have usually ended by then. At a loss of p it sends 1 / (1 - p) times
    as much, unless a queue may cause the losses, which more datagrams would only feed.

    Args:
        most: the most times that rate. With three senders to one link, 3 is all of the link.
    """

    def __init__(self, *, rate_bps: float, most: float = 3.0) -> None:
        super().__init__(rate_bps=rate_bps)
        check_number("most", most, least=1, most=100)
        self._most = float(most)
        self._lost_share = 0.0  # of the latest datagrams, where no queue causes that
        self._sent_bytes, self._late_bytes = 0.0, math.inf  # of this transfer

    @property
    def rate_bps(self) -> float:
        if not self._lost_share or self._sent_bytes <= self._late_bytes:
            return self._rate_bps
        return self._rate_bps * min(self._most, 1 / max(1 - self._lost_share, 1e-6))

    @property
    def steady_until_s(self) -> float:  # type: ignore[override]
        """Losses move the rate once, when the transfer becomes late."""
        waits = self._lost_share and self._sent_bytes <= self._late_bytes
        return -math.inf if waits else math.inf

    def on_transfer_begin(self, now_s: float) -> None:
        self._lost_share = 0.0

    def on_sent(self, sent_bytes: int, now_s: float) -> None:
        self._sent_bytes += sent_bytes

    def on_feedback(self, feedback: Feedback) -> None:
        counts = feedback.lost_share >= _LEAST_LOSS and not feedback.queueing
        self._lost_share = feedback.lost_share if counts else 0.0
        self._sent_bytes = feedback.sent_bytes
        self._late_bytes = _PATIENCE * feedback.needed_bytes
