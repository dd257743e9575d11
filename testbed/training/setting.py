"""What server and workers of one run share: its configuration, places and the payload's layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from testbed.training import models
from testbed.training.filling import FILLINGS, Filling
from testbed.transport import (
    EndpointConfig,
    Leg,
    PayloadLayout,
    ProtocolConfig,
)

_BARRIER_SLACK_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run as its training processes see it.

    Args:
        config: the run's `config.json`.
        directory: the run directory.
        addresses: host name -> address.
        link_rates_bps: host name -> rate of its link.
        controller_socket, coordination_socket: UNIX sockets outside the emulated network.
        session: random number that the transport's datagrams carry.
    """

    config: dict[str, Any]
    directory: Path
    addresses: dict[str, str]
    link_rates_bps: dict[str, int]
    controller_socket: Path
    coordination_socket: Path
    session: int

    @property
    def rounds(self) -> int:
        """How many rounds are trained."""
        return int(self.config["rounds"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.config["seed"])

    @property
    def training(self) -> dict[str, Any]:
        """The experiment's training section."""
        section: dict[str, Any] = self.config["training"]
        return section

    @property
    def workers(self) -> list[str]:
        """The workers in rank order."""
        return [name for name in self.addresses if name != "server"]

    @cached_property
    def protocol(self) -> ProtocolConfig:
        """The arm's transport configuration."""
        described = dict(self.config["protocol"])
        return ProtocolConfig(**described)

    def filling(self, leg: Leg) -> Filling:
        """What stands in for what a leg did not deliver."""
        return FILLINGS.create(self.config["filling"][leg.name.lower()])

    @cached_property
    def layout(self) -> PayloadLayout:
        """How the flat gradient is cut into chunks."""
        model = models.build(self.training["model"], seed=0)
        chunk_bytes = self.config["transport"]["chunk_bytes"]
        return PayloadLayout(models.tensor_sizes(model), chunk_bytes)

    @property
    def barrier_timeout_s(self) -> float:
        """How long a barrier may take: the transport reports a dead peer first."""
        return float(self.config["transport"]["peer_timeout_s"]) + _BARRIER_SLACK_S

    def endpoint(self, host: str) -> EndpointConfig:
        """The transport's configuration for one host.

        All workers send to the server at once and it sends to all of them at once, so each
        transfer is paced at its share of the slowest link that they have in common. Random
        choices follow from the run's seed, for each host in its own way.
        """
        is_server = host == "server"
        peers = {name: self.addresses[name] for name in (self.workers if is_server else ["server"])}
        share_bps = self.link_rates_bps["server"] / len(self.workers)
        slowest_bps = min(share_bps, *(self.link_rates_bps[name] for name in self.workers))
        transport = self.config["transport"]
        own = np.random.SeedSequence([self.seed, list(self.addresses).index(host)])
        return EndpointConfig(
            session=self.session,
            name=host,
            bind_address=self.addresses[host],
            peers=peers,
            is_server=is_server,
            protocol=self.protocol,
            layout=self.layout,
            rate_bps=math.floor(slowest_bps * transport["pace"]),
            seed=int(own.generate_state(1)[0]),
            peer_timeout_s=transport["peer_timeout_s"],
        )
