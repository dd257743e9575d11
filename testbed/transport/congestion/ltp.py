"""LTP-style: a bandwidth-delay estimate that does not take loss for congestion.

Of LTP (Chen et al., IWQoS 2023, arXiv 2305.04279) this project knows only what others wrote about
it: that its rate control measures delay and bandwidth actively, as BBR does, and that it estimates
the bandwidth-delay product so that loss without congestion is ignored. Formulas and constants are
not known to us. This is therefore LTP-*style*, and the following are assumptions of ours:

* States, filters and gains are those of `bbr`.
* A delivery rate alone would sink under random loss q, because probing with 1.25 (1 - q) < 1 never
  finds more than it has: BBR's weakness beyond q = 20 %. So while the round trip is within
  `delay_factor` times the smallest ever plus `slack_datagrams` datagrams' time there is no queue
  to overflow, what was lost was lost on the way, and it counts as arrived. With a longer round
  trip, or one nearer to the longest than to the smallest known, the queue is what loses, and only
  what was delivered counts. A path whose delay has grown is thus treated as `bbr` treats it.
* Where the round trip does not tell, the estimate would rise for ever. So when it has grown by
  half without a tenth more being delivered for three rounds, it falls back to four fifths of what
  it was (see `worth`). The surplus until then is lost, which this transport tolerates: half of
  what is sent on average behind a queue of a tenth of the bandwidth-delay product, next to nothing
  behind one of half of it.

Idle times are treated as `bbr` does.
"""

import math

from testbed.transport.congestion.base import Feedback
from testbed.transport.congestion.bbr import Bbr
from testbed.transport.congestion.delivery_plateau import DeliveryPlateau, PlateauOptions
from testbed.transport.congestion.options import DATAGRAM_BYTES, INITIAL_WINDOW, check_options

_WORTH: PlateauOptions = {"growth": 1.5, "gain": 1.1, "patience": 3}
_FUTILE_CUT = 0.8


class Ltp(Bbr):
    """BBR's model with losses excused while there is no queue."""

    def __init__(
        self,
        *,
        datagram_bytes: int = DATAGRAM_BYTES,
        initial_window: float = INITIAL_WINDOW,
        window_gain: float = 2.0,
        bandwidth_rounds: int = 10,
        min_rtt_window_s: float = 1.0,
        probe_rtt_s: float = 0.01,
        delay_factor: float = 1.25,
        slack_datagrams: float = 2,
    ) -> None:
        """A longer round trip than `delay_factor` and `slack_datagrams` allow counts as a queue.

        Args:
            delay_factor: multiple of the smallest round trip.
            slack_datagrams: added to it, in times of a datagram at the present bandwidth.
        """
        super().__init__(
            datagram_bytes=datagram_bytes,
            initial_window=initial_window,
            window_gain=window_gain,
            bandwidth_rounds=bandwidth_rounds,
            min_rtt_window_s=min_rtt_window_s,
            probe_rtt_s=probe_rtt_s,
        )
        check_options(above=1, delay_factor=delay_factor)
        check_options(zero=True, slack_datagrams=slack_datagrams)
        self._delay_factor = delay_factor
        self._slack_bytes = slack_datagrams * datagram_bytes
        self._worth = DeliveryPlateau()
        self._excused_from_s = -math.inf  # what was sent before is not excused

    def on_transfer_begin(self, now_s: float) -> None:
        super().on_transfer_begin(now_s)
        self._worth.forget()

    def _bandwidth_sample(self, feedback: Feedback) -> float | None:
        delivered_bps = self.path.delivery_rate_bps
        if self.path.round_began and self._filled and not feedback.app_limited:
            enough_bps = self._worth.plateau_bps(self.bandwidth_bps, delivered_bps, **_WORTH)
            if enough_bps is not None:
                self._bandwidths.clear()
                self._excused_from_s = feedback.now_s
                return enough_bps * _FUTILE_CUT
        sent_s = self.path.newest_sent_s(feedback)
        excused = sent_s is not None and sent_s >= self._excused_from_s and not self._queued
        return self.path.arrival_rate_bps if excused else delivered_bps

    @property
    def _queued(self) -> bool:
        """Whether the last round trip shows a queue that could have overflowed."""
        slack_s = self._slack_bytes * 8 / self.bandwidth_bps if self.bandwidth_bps else 0.0
        return self.path.queued(self._delay_factor * self.path.base_rtt_s + slack_s)
