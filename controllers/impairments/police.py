"""`police`: an OpenFlow meter drops what exceeds a rate, without queueing it."""

from __future__ import annotations

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.intercepted_flows import InterceptedFlows
from testbed.lab.kernel.shaping import ETHERNET_FRAME_BYTES

_BURST_TIME_S = 0.05


class PoliceParameters(ImpairmentParameters):
    """A token bucket of `burst_bytes` that fills at `rate_bps` (bits of Ethernet frames)."""

    rate_bps: int = Field(
        ge=10_000,
        le=100_000_000_000,
        description="what passes, in bits of Ethernet frames a second",
    )
    burst_bytes: int | None = Field(
        default=None,
        ge=2 * ETHERNET_FRAME_BYTES,
        le=1 << 30,
        description="passes at once; default: 50 ms of the rate",
    )
    spare_control: bool = Field(
        default=False, description="let the transport's control messages pass unmetered"
    )

    @property
    def bucket_bytes(self) -> int:
        """What passes at once."""
        of_rate = int(self.rate_bps * _BURST_TIME_S / 8)
        return self.burst_bytes or max(2 * ETHERNET_FRAME_BYTES, of_rate)


class Police(Impairment[PoliceParameters]):
    """Meters packets before the forwarding rules."""

    counts_as = "police"
    changes_rates = "no"
    openflow_only = True

    def __init__(self, parameters: PoliceParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._flows = InterceptedFlows(parameters, lab, spare_control=parameters.spare_control)

    def begin(self) -> None:
        wanted = self.parameters
        self._flows.install(rate_bps=wanted.rate_bps, burst_bytes=wanted.bucket_bytes)

    def end(self) -> None:
        self._flows.remove()

    def effect(self) -> Effect:
        counts = self._flows.counts()
        return Effect(
            met=counts.packets,
            dropped=counts.dropped,
            details={
                "offered_packets": counts.packets,
                "offered_bytes": counts.size_bytes,
                "switch": self._flows.switch,
            },
        )
