"""`star`: n workers and one server, each on its own link to one switch."""

from __future__ import annotations

from typing import Any, Literal

from topologies.parameters import TopologyParameters


class Parameters(TopologyParameters):
    """Every link has the same rate and queue, in both directions."""

    name: Literal["star"] = "star"


def topology(parameters: Parameters) -> Any:
    """The Mininet topology; link options `rate_bps` and `queue_bytes` are read by the lab."""
    from mininet.topo import Topo  # Debian's package, not needed to read an experiment

    class Star(Topo):
        def build(self) -> None:
            switch = self.addSwitch("s1")
            for name in parameters.host_names():
                self.addLink(
                    self.addHost(name),
                    switch,
                    rate_bps=parameters.rate_bps,
                    queue_bytes=parameters.queue_bytes,
                )

    return Star()
