"""`clos`: leaves under spines for any number of hosts, with a ratio of oversubscription.

C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 32, 1953; as a
folded network of two stages it is `leaf-spine`, here with as many leaves as its hosts need.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from topologies.base import LabTopo
from topologies.settings import TopologyParameters


class Parameters(TopologyParameters):
    """Each leaf's links to the spines have together 1 / `oversubscription` of its hosts' rate."""

    hosts_per_leaf: int = Field(
        default=8, ge=1, le=1024, description="hosts that are linked to each leaf"
    )
    spines: int = Field(default=2, ge=1, le=64, description="switches that link all leaves")
    oversubscription: float = Field(
        default=1.0,
        ge=0.1,
        le=64,
        allow_inf_nan=False,
        description="what the hosts of a full leaf can send, over what its links to spines carry",
    )

    @model_validator(mode="after")
    def _core_has_one_rate(self) -> Self:
        if self.core.rate_bps is not None:
            raise ValueError(
                "core.rate_bps: follows from oversubscription; valid: leave it out, or the "
                "topology leaf-spine"
            )
        return self

    @property
    def core_rate_bps(self) -> int:
        """The rate of each link between a leaf and a spine."""
        whole_bps = self.hosts_per_leaf * self.rate_bps / self.oversubscription
        return round(whole_bps / self.spines)


class Topology(LabTopo):
    """Switches `leaf-N`, `spine-N`; each leaf is filled before the next: first the server's."""

    def build(self, parameters: Parameters) -> None:
        """The server and the first workers on leaf 1, traffic hosts last."""
        names, each = parameters.all_host_names(), parameters.hosts_per_leaf
        count = -(-len(names) // each)
        leaves = [self.addSwitch(f"leaf-{number}") for number in range(1, count + 1)]
        spines = [self.addSwitch(f"spine-{number}") for number in range(1, parameters.spines + 1)]
        for leaf in leaves:
            for spine in spines:
                self.addLink(leaf, spine, rate_bps=parameters.core_rate_bps)
        for number, leaf in enumerate(leaves):
            self.spread(names[number * each : (number + 1) * each], [leaf])
