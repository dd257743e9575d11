"""`blackout`: a flow entry drops all packets of one direction."""

from __future__ import annotations

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.intercepted_flows import InterceptedFlows

_ANY_BPS = 1_000_000_000_000
_ABOVE_POLICE = 10


class BlackoutParameters(ImpairmentParameters):
    """Drops every frame of one direction for a while."""

    spare_control: bool = Field(
        default=False, description="let the transport's control messages pass"
    )


class Blackout(Impairment[BlackoutParameters]):
    """Drops every packet; routing does not react to it (unlike link-down)."""

    counts_as = "blackout"
    changes_rates = "no"
    openflow_only = True

    def __init__(self, parameters: BlackoutParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._flows = InterceptedFlows(
            parameters, lab, spare_control=parameters.spare_control, above=_ABOVE_POLICE
        )

    def begin(self) -> None:
        # The meter passes everything; it only counts what is then dropped.
        self._flows.install(rate_bps=_ANY_BPS, burst_bytes=_ANY_BPS // 8, drop=True)

    def end(self) -> None:
        self._flows.remove()

    def effect(self) -> Effect:
        counts = self._flows.counts()
        return Effect(
            met=counts.packets,
            dropped=counts.packets,
            details={"dropped_bytes": counts.size_bytes, "switch": self._flows.switch},
        )
