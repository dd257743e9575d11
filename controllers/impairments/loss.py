"""`loss`: random packet loss on the wire, independent (Bernoulli) or bursty (Gilbert-Elliott).

Packets are dropped at the receiving end of the wire, so that lost packets have used the link like
others. At a host, nftables' ingress hook drops packets; at a switch, an XDP program (which needs
real root).

Both follow the Gilbert-Elliott model: a packet is lost with probability `loss_good` or `loss_bad`,
depending on the state; then the state changes with probability `p_good_to_bad` or `p_bad_to_good`.
"""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field, model_validator

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.link_directions import direction
from testbed.lab.kernel import xdp_filter
from testbed.lab.kernel.packet_filter import PacketFilter
from testbed.lab.loss_model import LossModel


class LossParameters(ImpairmentParameters):
    """Either `q`, or the two probabilities of changing between a good and a bad state."""

    q: float | None = Field(default=None, gt=0, le=1, description="loss probability")
    p_good_to_bad: float | None = Field(
        default=None, gt=0, le=1, description="probability, after each packet, of turning bad"
    )
    p_bad_to_good: float | None = Field(
        default=None, gt=0, le=1, description="probability, after each packet, of turning good"
    )
    loss_good: float = Field(default=0.0, ge=0, le=1, description="loss probability when good")
    loss_bad: float = Field(default=1.0, gt=0, le=1, description="loss probability when bad")
    spare_control: bool = Field(
        default=True,
        description="lose data packets alone: over 100 bytes, on the data ports that the training "
        "declares; false, or where nothing declares any: all of IPv4",
    )

    @model_validator(mode="after")
    def _one_model(self) -> LossParameters:
        transitions = (self.p_good_to_bad, self.p_bad_to_good)
        if self.q is None:
            if None in transitions:
                raise ValueError("needs either q, or both p_good_to_bad and p_bad_to_good")
        else:
            extra = {"p_good_to_bad", "p_bad_to_good", "loss_good", "loss_bad"}
            given = sorted(
                key
                for key in extra & self.model_fields_set
                if getattr(self, key) != type(self).model_fields[key].default
            )
            if given:
                raise ValueError(f"{given[0]}: excludes q")
        return self

    def lacking(self, hosts: Collection[str]) -> str | None:
        if self.link is None or self.link[1] in hosts:
            return None
        return xdp_filter.missing()

    @property
    def model(self) -> LossModel:
        if self.q is not None:
            return LossModel(loss_good=self.q)
        return LossModel(
            p_good_to_bad=self.p_good_to_bad or 0.0,
            p_bad_to_good=self.p_bad_to_good or 0.0,
            loss_good=self.loss_good,
            loss_bad=self.loss_bad,
        )


class Loss(Impairment[LossParameters]):
    """Loses a random share of the packets of one direction."""

    counts_as = "loss"
    changes_rates = "no"

    def __init__(self, parameters: LossParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        declared = lab.network.get("data_ports") if parameters.spare_control else None
        self._data_ports = (declared[0], declared[1]) if declared else None
        end = direction(lab.network, parameters).receiver
        self._filter: PacketFilter | xdp_filter.XdpFilter
        if end.pid is None:
            self._filter = xdp_filter.filter_at(end.interface)
        else:
            self._filter = PacketFilter(end.pid, end.interface)

    def begin(self) -> None:
        self._filter.lose(self.parameters.model, data_ports=self._data_ports)

    def end(self) -> None:
        self._filter.clear()

    def effect(self) -> Effect:
        met, dropped = self._filter.take()
        return Effect(met=met, dropped=dropped)
