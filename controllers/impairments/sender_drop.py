"""`sender-drop`: datagrams vanish before the socket, as a third party reads DBLP's evaluation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import Field, model_validator

from controllers.impairments.base import Effect, Impairment, ImpairmentParameters, LabAccess
from testbed.lab.loss_table import LossModel
from testbed.shared.drop_order import DropOrder

ALL_WORKERS, SERVER = "workers", "server"
# A batch whose draw began before the end may be counted after it.
_SETTLE_S = 2e-3


class SenderDropParameters(ImpairmentParameters):
    """A share `q` of what `host` would send vanishes; `host: workers` means each of them."""

    allowed_targets = ("host",)
    exclusive = False  # independent losses, of which each takes its share
    of_our_transport = True

    host: str = Field(
        default=ALL_WORKERS, description="the sender: a host that trains, or `workers` for each"
    )
    q: float = Field(gt=0, le=1, description="share of the datagrams that vanish, at random")
    seed: str = Field(default="", description="of the draws; by default the run's and the name")

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

    def resolved(self, *, seed: int, rounds: int) -> dict[str, Any]:
        document = super().resolved(seed=seed, rounds=rounds)
        document["seed"] = self.seed or f"{seed}/{self.label}"
        return document

    @property
    def model(self) -> LossModel:
        return LossModel(loss_good=self.q)

    def senders(self, hosts: Collection[str]) -> list[str]:
        """Whose datagrams vanish."""
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
        return sum(each.met for each in self._orders), sum(each.left_out for each in self._orders)
