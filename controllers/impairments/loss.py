"""Lost packets: `loss` drops them where they arrive, `sender-drop` before the sender's socket."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from pydantic import Field, model_validator

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from controllers.impairments.link import direction
from testbed.lab.kernel import xdp_filter
from testbed.lab.loss_table import LossModel, LossTable, drawn
from testbed.shared.drop_order import DropOrder

ALL_WORKERS, SERVER = "workers", "server"
# A batch whose draw began before the end may be counted after it.
_SETTLE_S = 2e-3


class _DrawnParameters(ImpairmentParameters):
    seed: str = Field(default="", description="of the draws; by default the run's and the name")

    def resolved(self, *, seed: int, rounds: int) -> dict[str, Any]:
        document = super().resolved(seed=seed, rounds=rounds)
        document["seed"] = self.seed or f"{seed}/{self.label}"
        return document


class LossParameters(_DrawnParameters):
    """Drops packets where they arrive: by `q`, or by two states (Gilbert-Elliott)."""

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
        if self.q is None:
            if None in (self.p_good_to_bad, self.p_bad_to_good):
                raise ValueError("needs either q, or both p_good_to_bad and p_bad_to_good")
            return self
        for key in ("loss_bad", "loss_good", "p_bad_to_good", "p_good_to_bad"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}: excludes q")
        return self

    def lacking(self, hosts: Collection[str]) -> str | None:
        if self.link is None or self.link[1] in hosts:
            return None
        return xdp_filter.missing()

    @functools.cached_property
    def table(self) -> LossTable:
        return drawn(self.model, self.seed)

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
    """Loses the packets of its table that go one direction."""

    counts_as = "loss"
    changes_rates = "no"

    def __init__(self, parameters: LossParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        declared = lab.network.get("data_ports") if parameters.spare_control else None
        self._data_ports = (declared[0], declared[1]) if declared else None
        self._table = parameters.table
        self._occurrences = 0
        at = direction(lab.network, parameters)
        self._filter = lab.arrival_filter(at.sender.node, at.receiver.node, self._table)

    def begin(self) -> None:
        self._filter.lose(data_ports=self._data_ports, occurrence=self._occurrences)
        self._occurrences += 1

    def end(self) -> None:
        self._filter.clear()

    def effect(self) -> Effect:
        met, dropped = self._filter.take()
        planned = self._table.losses(self._occurrences - 1, met)
        return Effect(met=met, dropped=dropped, details={"planned": len(planned)})


class SenderDropParameters(_DrawnParameters):
    """Datagrams vanish before the socket, as a third party reads DBLP's evaluation."""

    allowed_targets = ("host",)
    exclusive = False  # independent losses, of which each takes its share
    of_our_transport = True

    host: str = Field(
        default=ALL_WORKERS, description="the sender: a host that trains, or `workers` for each"
    )
    q: float = Field(gt=0, le=1, description="share of the datagrams that vanish, at random")

    @model_validator(mode="after")
    def _somebody_sends_then(self) -> SenderDropParameters:
        if self.host not in (ALL_WORKERS, SERVER) and not self.host.startswith("worker-"):
            raise ValueError(
                f"host: {self.host!r} does not train; valid: workers, server, or one worker"
            )
        leg = "broadcast" if self.host == SERVER else "gather"
        # What lasts for a given time may reach into the other leg.
        if self.legs and not {leg, "round"} & {*self.legs} and self.duration_s is None:
            raise ValueError(
                f"leg: {self.leg!r}: {self.host!r} sends nothing then; valid: {leg}, both, round"
            )
        return self

    @property
    def hosts_named(self) -> dict[str, str]:
        return {} if self.host == ALL_WORKERS else super().hosts_named

    @property
    def model(self) -> LossModel:
        return LossModel(loss_good=self.q)

    def senders(self, hosts: Collection[str]) -> list[str]:
        if self.host != ALL_WORKERS:
            return [self.host]
        return [host for host in hosts if host.startswith("worker-")]


class SenderDrop(Impairment[SenderDropParameters]):
    """Sets the share that each sender's process leaves out."""

    counts_as = "sender-drop"
    changes_rates = "no"

    def __init__(self, parameters: SenderDropParameters, lab: LabAccess) -> None:
        super().__init__(parameters, lab)
        self._orders = [
            DropOrder.make(lab.shared, parameters.label, host)
            for host in parameters.senders(lab.hosts)
        ]
        self._before = (0, 0)

    def begin(self) -> None:
        self._before = self._counts()
        self._set(self.parameters.q)

    def end(self) -> None:
        self._set(0.0)

    def effect(self) -> Effect:
        self.lab.sleep(_SETTLE_S)
        met, left_out = (now - was for now, was in zip(self._counts(), self._before, strict=True))
        return Effect(met=met, dropped=left_out)

    def _set(self, share: float) -> None:
        for order in self._orders:
            order.set(share)

    def _counts(self) -> tuple[int, int]:
        met = sum(order.met for order in self._orders)
        return met, sum(order.left_out for order in self._orders)
