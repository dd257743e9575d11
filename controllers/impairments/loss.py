"""`loss`: Bernoulli loss of data packets on the wire from the victim's switch port to the victim.

The rule sits where the packets leave the wire (the ingress hook of the host's interface), not at
the switch port's output: a drop there is reported to Open vSwitch as a full socket, which gives up
the rest of its batch, so that independent losses would become bursts of losses.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, Switches
from testbed.lab.network import HostInfo
from testbed.lab.packet_filter import PacketFilter


class LossParameters(ImpairmentParameters):
    """`q` is the probability that a data packet is lost."""

    kind: Literal["loss"]
    q: float = Field(gt=0, le=1, description="loss probability")
    at_most_s: float = Field(
        default=2.0,
        gt=0,
        le=600,
        description="ends after this time even if the leg does not; a reliable transport would "
        "otherwise lengthen the very burst that it suffers from",
    )


class Loss(Impairment[LossParameters]):
    """Drops a random share of the victim's incoming data packets; control packets are spared."""

    def __init__(self, parameters: LossParameters, victim: HostInfo, switches: Switches) -> None:
        super().__init__(parameters, victim, switches)
        self._filter = PacketFilter(victim.pid, victim.interface)

    def duration_s(self) -> float:
        return self.parameters.at_most_s

    def begin(self) -> None:
        self._filter.drop_data(self.parameters.q)

    def end(self) -> None:
        self._filter.clear()

    def effect(self) -> Effect:
        return Effect(dropped=self._filter.take_dropped())
