"""What impairments may use in virtual time: `LabAccess`, as far as a simulated network has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.lab.delay import DelaySettings
from testbed.lab.kernel.shaping import LinkShape
from testbed.lab.link_control import LinkControl
from testbed.lab.network import HostInfo, hosts_from_json
from testbed.run.simulated_network import SimulatedNetwork
from testbed.simulate.engine import Simulation


class SimulatedLinks(LinkControl):
    """The lab's, whose changes are made in virtual time."""

    def __init__(self, network: SimulatedNetwork) -> None:
        super().__init__(network.info)
        self._network = network

    def offered(self, first: str, second: str) -> tuple[int, int]:
        self._require(first, second)
        link = self._network.links[first, second]
        link.catch_up()
        return link.sent - link.dropped, link.dropped

    def _set_shape(self, way: tuple[str, str], key: str, shape: LinkShape) -> None:
        link = self._network.links[way]
        if key == "rate_bps":
            link.set_rate(shape.rate_bps)
        else:
            link.set_queue(shape.queue_bytes)

    def _set_delay(self, way: tuple[str, str], delay: DelaySettings) -> None:
        link = self._network.links[way]
        link.loss = delay.loss
        link.jitter_s = 2 * delay.jitter_s
        link.delay_s = delay.delay_s - delay.jitter_s


@dataclass(frozen=True, kw_only=True)
class SimulatedAccess:
    """What the simulated kinds use of `LabAccess`, and the simulated network itself."""

    clock: Simulation
    simulated: SimulatedNetwork
    records: Path
    shared: Path
    links: SimulatedLinks = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", SimulatedLinks(self.simulated))

    @property
    def network(self) -> Mapping[str, Any]:
        return self.simulated.info

    @property
    def hosts(self) -> Mapping[str, HostInfo]:
        return hosts_from_json(self.simulated.info)

    def now_s(self) -> float:
        return self.clock.now_s

    def sleep(self, duration_s: float) -> None:
        """All that was sent before has been counted."""

    def barrier(self, switch: str) -> None:
        """Switches act at once."""

    def set_port(self, switch: str, port: int, *, up: bool) -> None:
        """Takes the port's link down, or up; before anything is sent, prepares for that."""
        (other,) = (
            ends[1]["node"]
            for link in self.network["links"]
            for ends in ((link["first"], link["second"]), (link["second"], link["first"]))
            if (ends[0]["node"], ends[0]["number"]) == (switch, port)
        )
        if not self.clock.events:
            self.simulated.prepare_cut(switch, other)
        else:
            self.simulated.set_link(switch, other, up=up)
