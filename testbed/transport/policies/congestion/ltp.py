"""LTP-style: a bandwidth-delay estimate that does not treat loss as congestion.

LTP's formulas and constants (Chen et al., IWQoS 2023, arXiv 2305.04279) are not known to us. These
are our assumptions; all else is as in `bbr`:

* Losses count as delivered while there is no queue: while the round trip is at most 1.25 times the
  smallest ever plus the time of 2 datagrams, and nearer to it than to the longest known.
* When the estimate has grown by half for three rounds without a tenth more being delivered, it
  falls back to four fifths of the earlier value, for queues that no round trip reveals.
* It is never more than ten times what was delivered in any of a transfer's last hundred rounds.
"""

import math

from testbed.transport.core.congestion import Feedback
from testbed.transport.policies.congestion.bbr import Bbr
from testbed.transport.policies.congestion.path import (
    DeliveryPlateau,
    MaxFilter,
    PlateauOptions,
)

_WORTH: PlateauOptions = {"growth": 1.5, "gain": 1.1, "patience": 3}
_PLATEAU_CUT = 0.8
# The estimate is at most so many times what was delivered in any of the last rounds.
_MOST, _MEMORY_ROUNDS = 10.0, 100
# A longer round trip than the smallest times this, plus the time of so many datagrams, is a queue.
_DELAY_FACTOR = 1.25
_SLACK_DATAGRAMS = 2


class Ltp(Bbr):
    """BBR's model, but losses count as delivered while there is no queue."""

    _excused_from_s = -math.inf  # losses of data sent before count as losses

    def on_transfer_begin(self, now_s: float) -> None:
        super().on_transfer_begin(now_s)
        self._worth = DeliveryPlateau()
        self._most_delivered = MaxFilter(_MEMORY_ROUNDS)

    def _bandwidth_sample(self, feedback: Feedback) -> float | None:
        delivered_bps = self.path.delivery_rate_bps
        if self.path.round_began and self._filled and not feedback.app_limited:
            enough_bps = self._worth.plateau_bps(self.bandwidth_bps, delivered_bps, **_WORTH)
            if enough_bps is not None:
                self._bandwidths.clear()
                self._excused_from_s = feedback.now_s
                return enough_bps * _PLATEAU_CUT
        sent_s = self.path.newest_sent_s(feedback)
        excused = sent_s is not None and sent_s >= self._excused_from_s and not self._queued
        arrived_bps = self.path.arrival_rate_bps
        if delivered_bps is None or arrived_bps is None:
            return None
        self._most_delivered.add(delivered_bps, self.path.rounds)
        return min(arrived_bps, _MOST * self._most_delivered.value) if excused else delivered_bps

    @property
    def _queued(self) -> bool:
        """Whether the last round trip shows a queue, or the last round a long one."""
        latest_s = self.path.latest_rtt_s
        if latest_s is None or not self.bandwidth_bps:
            return self.path.queued()
        slack_s = _SLACK_DATAGRAMS * self._datagram_bytes * 8 / self.bandwidth_bps
        return self.path.queued() or latest_s > _DELAY_FACTOR * self.path.base_rtt_s + slack_s
