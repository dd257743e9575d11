"""Selective repair: out-of-order acknowledgements; losses are found by order and time.

LTP (arXiv 2305.04279) and the protocol of Xia et al. (APNet 2019) describe it in outline:
out-of-order acknowledgements, and losses that are repaired as soon as later datagrams reveal them.
Their details are not known to us, so thresholds and timers are those of QUIC and RACK (RFC 9002,
RFC 8985). Lost chunks go before chunks never sent. When nothing is left to send, the sender waits,
and sends a PROBE if no answer comes within a round trip and a margin.
"""

from dataclasses import dataclass

from testbed.transport.core.path_estimates import PathEstimates
from testbed.transport.core.repair import Arrange, Repair
from testbed.transport.policies.repair.acknowledged_sender import AcknowledgedSender
from testbed.transport.policies.repair.acknowledging_receiver import (
    AcknowledgingReceiver,
    check_ack_options,
)


class SelectiveSender(AcknowledgedSender):
    """Sends a chunk again when its last copy is known to be lost."""

    def on_dry(self, now_s: float) -> None:
        """Waits: the timer for the receiver's silence is running."""


@dataclass(frozen=True, kw_only=True)
class Selective(Repair):
    """The repair `selective`.

    Attributes:
        interval_s: time between ACKs that the sender did not request.
        overhead: the largest fraction of the bytes sent that these ACKs may cost.
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
