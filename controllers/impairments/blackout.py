"""`blackout`: nothing passes in one direction, by a flow entry that drops."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.intercepted_flows import InterceptedFlows

_ANY_BPS = 1_000_000_000_000
_ABOVE_POLICE = 10


class BlackoutParameters(ImpairmentParameters):
    """Drops every frame of one direction for a while."""

    kind: Literal["blackout"]
    spare_control: bool = Field(
        default=False, description="let the transport's control connection pass"
    )


class Blackout(Impairment[BlackoutParameters]):
    """The path stays as it is: nobody routes around a blackout (see link-down)."""

    openflow_only = True

    def __init__(self, parameters: BlackoutParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._flows = InterceptedFlows(
            parameters, lab, spare_control=parameters.spare_control, above=_ABOVE_POLICE
        )

    def begin(self) -> None:
        # The meter lets everything pass: it only counts what is then dropped.
        self._flows.catch(rate_bps=_ANY_BPS, burst_bytes=_ANY_BPS // 8, drop=True)

    def end(self) -> None:
        self._flows.release()

    def effect(self) -> Effect:
        caught = self._flows.caught()
        return Effect(
            dropped=caught.packets,
            details={"dropped_bytes": caught.size_bytes, "switch": self._flows.switch},
        )
