"""Selective repair: datagrams acknowledged out of order, losses found by order and time.

This is what LTP (arXiv 2305.04279) and the protocol of Xia et al. (APNet 2019) describe in outline:
out-of-order acknowledgements, and losses that are repaired as soon as later datagrams reveal them.
How exactly they do it is not known to us, so thresholds and timers are those of QUIC and RACK
(RFC 9002, RFC 8985). What is lost goes before what was never sent. When nothing is left to send
the sender waits; if a round trip and a margin bring no word, it asks.
"""

from dataclasses import dataclass

from testbed.transport.repair.acknowledged_sender import AcknowledgedSender
from testbed.transport.repair.acknowledging_receiver import AcknowledgingReceiver, check_ack_options
from testbed.transport.repair.base import Arrange, Repair
from testbed.transport.repair.path_estimates import PathEstimates


class SelectiveSender(AcknowledgedSender):
    """Sends a chunk again when it knows that the last copy is lost."""

    def on_dry(self, now_s: float) -> None:
        """The timer of silence runs."""


@dataclass(frozen=True, kw_only=True)
class Selective(Repair):
    """Acknowledgements out of order.

    Attributes:
        interval_s: time between reports that nobody asked for.
        overhead: what fraction of the bytes sent these may cost at most.
    """

    interval_s: float = 1e-3
    overhead: float = 0.0125

    def __post_init__(self) -> None:
        check_ack_options(self.interval_s, self.overhead)

    def sender(
        self, *, transfer: int, chunk_count: int, arrange: Arrange, estimates: PathEstimates
    ) -> SelectiveSender:
        return SelectiveSender(
            transfer=transfer,
            chunk_count=chunk_count,
            arrange=arrange,
            estimates=estimates,
            lost_first=True,
        )

    def receiver(self, *, transfer: int, datagram_wire_bytes: int) -> AcknowledgingReceiver:
        return AcknowledgingReceiver(
            transfer=transfer,
            datagram_wire_bytes=datagram_wire_bytes,
            interval_s=self.interval_s,
            overhead=self.overhead,
        )
