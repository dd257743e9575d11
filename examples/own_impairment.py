"""An impairment: a link that keeps changing between its rate and a share of it.

`impairments: [{kind: ./own_impairment.py, host: server, rounds: [2], share: 0.2}]`
"""

from typing import Literal

from pydantic import Field

from controllers.impairments import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.link import TemporarySettings, direction


class Parameters(ImpairmentParameters):
    """It adds keys to `host` or `link`, `rounds`, `duration_s` and the other keys of YAML."""

    share: float = Field(default=0.25, gt=0, lt=1, description="of the link's rate")
    period_s: float = Field(default=0.02, ge=0.01, le=10, description="from one fall to the next")

    @property
    def sets_rate(self) -> Literal["one way", "both ways", ""]:
        return "one way"  # two entries that set one link's rate contradict each other


class FlappingRate(Impairment[Parameters]):
    """`begin`, then `tick` about every millisecond, then `end`; `effect` is logged with the end."""

    ticks = True
    changes_rates = "target"

    def __init__(self, parameters: Parameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        at = direction(lab.network, parameters)
        self._link = TemporarySettings(lab.links, at.sender.node, at.receiver.node)
        self._low_bps = max(10_000, round(at.rate_bps * parameters.share))
        self._low = False
        self._falls = 0

    def begin(self) -> None:
        self._falls = 0
        self._set(low=True)

    def tick(self, elapsed_s: float) -> None:
        self._set(low=elapsed_s % self.parameters.period_s < self.parameters.period_s / 2)

    def end(self) -> None:
        self._set(low=False)

    def effect(self) -> Effect:
        return Effect(details={"falls": self._falls, "low_rate_bps": self._low_bps})

    def _set(self, *, low: bool) -> None:
        if low and not self._low:
            self._link.set({"rate_bps": self._low_bps})
            self._falls += 1
        elif self._low and not low:
            self._link.undo()
        self._low = low
